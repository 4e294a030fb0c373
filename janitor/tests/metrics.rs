//! What a janitor's metrics show of the database, and when they stop showing it.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::store;
use rowmq_core::store::duty::take_office;
use rowmq_core::store::installation::Office;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{TestDatabase, until};

/// A janitor with an endpoint, killed when the test ends, if not before.
pub(crate) struct Janitor {
    child: Child,
    address: String,
}

impl Janitor {
    pub(crate) fn start(url: &ServerUrl) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rowmq-janitor"))
            .args(["--metrics", "0"])
            .env("ROWMQ_URL", url.expose())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut lines = log.by_ref().map_while(Result::ok);
        let served = lines.find(|line| line.contains("Metrics are served"));
        let address = served.expect("it serves").rsplit('=').next().expect("where").to_owned();
        std::thread::spawn(move || log.map_while(Result::ok).for_each(drop));
        Self { child, address }
    }

    /// Returns the lines that are not comments.
    fn metrics(&self) -> Vec<String> {
        let mut stream = TcpStream::connect(&self.address).expect("it serves");
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").expect("asked");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let body = text.split_once("\r\n\r\n").expect("an answer").1;
        body.lines().filter(|line| line.starts_with("queue_")).map(str::to_owned).collect()
    }

    pub(crate) fn shows(&self, part: &str) -> bool {
        self.metrics().iter().any(|line| line.contains(part))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_janitor_has_measured_is_absent_once_it_is_true_no_longer() {
    let database = TestDatabase::new().await;
    let gone = database.topic("gone").await;
    database.topic("mail").await;
    let janitor = Janitor::start(database.url());
    let measured =
        ["queue_depth{", "queue_topic_bytes{", "queue_server_durable", "queue_table_bytes{"];
    until("it measures", async || measured.iter().all(|part| janitor.shows(part))).await;
    assert!(janitor.shows("queue_oldest_age_seconds{topic=\"gone\"}"));
    assert!(janitor.shows("queue_sweeping 1") && janitor.shows("queue_process_list_proved 1"));

    let mut conn = database.connect().await;
    store::topic::delete(&mut conn, gone.id).await.expect("deleted");
    until("the topic's depth is gone", async || {
        !janitor.shows("queue_oldest_age_seconds{topic=\"gone\"}")
    })
    .await;
    assert!(janitor.shows("queue_oldest_age_seconds{topic=\"mail\"}"));

    // This test is the sweeper from now on.
    until("its lock is taken away", async || {
        if take_office(&mut conn, Office::Sweeper).await.expect("asked") {
            return true;
        }
        let duties = store::duty::all(&mut conn).await.expect("duties");
        let sweeper = duties.first().expect("it sweeps").conn;
        // The sweeper may be another one by now.
        drop(conn.batch_execute(&format!("KILL {}", sweeper.0)).await);
        false
    })
    .await;
    until("it shows nothing of what it saw", async || {
        janitor.shows("queue_sweeping 0")
            && !measured.iter().any(|part| janitor.shows(part))
            && !janitor.shows("queue_process_list_proved")
            && !janitor.shows("queue_workers_alive")
    })
    .await;
    assert!(janitor.shows("queue_rescued_total 0"), "counters stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_janitor_whose_server_is_out_of_reach_does_not_say_that_it_sweeps() {
    let database = TestDatabase::new().await;
    database.topic("mail").await;
    let proxy = FaultProxy::start(database.url()).await;
    let janitor = Janitor::start(&proxy.url(database.url()));
    until("it measures", async || janitor.shows("queue_depth{")).await;
    proxy.refuse();
    until("it says that it does not", async || {
        janitor.shows("queue_sweeping 0") && !janitor.shows("queue_depth{")
    })
    .await;
    proxy.pass();
    until("it measures again", async || {
        janitor.shows("queue_sweeping 1") && janitor.shows("queue_depth{")
    })
    .await;
}
