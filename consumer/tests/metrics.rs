//! The metrics of a consumer for a topic that it pauses on errors.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use rowmq_core::{NewMessage, enqueue_to};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase, until};

/// The command, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn scrape(address: &str) -> String {
    get(address, "/metrics")
}

fn get(address: &str, path: &str) -> String {
    let mut answer = String::new();
    let mut endpoint = TcpStream::connect(address).expect("it is served");
    endpoint.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).expect("asked");
    endpoint.read_to_string(&mut answer).expect("answered");
    answer
}

/// A worker that is cut off finds nothing, without an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_the_server_does_not_answer_is_not_ready() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let mut command = Program::built("rowmq-consumer");
    command.args(["exec", "mail", "--metrics", "0", "--", "true"]);
    command.env("ROWMQ_URL", proxy.url(database.url()).expose()).env_remove("RUST_LOG");
    command.env("ROWMQ_CONSUMER_LEASE", "2s").env("ROWMQ_CONSUMER_BEAT", "500ms");
    let consumer = Program::start(&mut command);
    let served = consumer.said("Metrics are served").await;
    let address = served.rsplit('=').next().expect("an address").to_owned();
    until("ready", async || get(&address, "/readyz").starts_with("HTTP/1.0 200")).await;
    proxy.blackhole();
    until("not ready", async || get(&address, "/readyz").contains("almost a lease")).await;
    proxy.reset();
    proxy.pass();
    until("ready again", async || get(&address, "/readyz").starts_with("HTTP/1.0 200")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_on_errors_is_a_warning_in_the_log_and_a_metric() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"));
    command.args(["exec", "mail", "--metrics", "0", "--concurrency", "1"]);
    command.args(["--pause-on-errors", "100%/2", "--pause-for", "1h", "--", "false"]);
    command.env("ROWMQ_URL", database.url().expose()).env_remove("RUST_LOG");
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut running = Running(child);
    let log = BufReader::new(running.0.stderr.take().expect("piped"));
    let mut lines = log.lines().map_while(Result::ok);
    let served = lines.find(|line| line.contains("Metrics are served")).expect("it logs where");
    let address = served.rsplit('=').next().expect("an address").to_owned();
    let shows = |what: &str| scrape(&address).lines().any(|line| line == what);
    until("begun", async || shows("queue_paused_on_errors{topic=\"mail\"} 0")).await;
    assert!(shows("queue_error_pauses_total{topic=\"mail\"} 0"));
    let messages: Vec<_> = (0..5).map(|n| NewMessage::new(n.to_string())).collect();
    enqueue_to(&mut database.connect().await, &topic, &messages).await.expect("enqueued");
    let warned = lines.find(|line| line.contains("Too many messages failed"));
    let warned = warned.expect("it is logged");
    assert!(warned.contains("failed=2") && warned.contains("topic.name=\"mail\""), "{warned}");
    assert!(shows("queue_paused_on_errors{topic=\"mail\"} 1"));
    assert!(shows("queue_error_pauses_total{topic=\"mail\"} 1"));
}
