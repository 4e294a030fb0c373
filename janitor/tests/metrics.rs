//! What a janitor's metrics show of the database, and when they stop showing it.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::store;
use rowmq_core::store::duty::take_office;
use rowmq_core::store::installation::Office;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{Program, TestDatabase, until};

/// A janitor with an endpoint, killed when the test ends, if not before.
pub(crate) struct Janitor {
    program: Program,
    address: String,
}

impl Janitor {
    pub(crate) async fn start(url: &ServerUrl) -> Self {
        let mut command = Program::built("rowmq-janitor");
        command.args(["--metrics", "0"]);
        let program = Program::start(command.env("ROWMQ_URL", url.expose()).env_remove("RUST_LOG"));
        let served = program.said("Metrics are served").await;
        let address = served.rsplit('=').next().expect("where").to_owned();
        Self { program, address }
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

#[tokio::test(flavor = "multi_thread")]
async fn what_a_janitor_has_measured_is_absent_once_it_is_true_no_longer() {
    let database = TestDatabase::new().await;
    let gone = database.topic("gone").await;
    database.topic("mail").await;
    let janitor = Janitor::start(database.url()).await;
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
    let janitor = Janitor::start(&proxy.url(database.url())).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_janitor_waits_at_its_start_for_a_server_that_is_away() {
    let database = TestDatabase::new().await;
    let proxy = FaultProxy::start(database.url()).await;
    proxy.refuse();
    let janitor = Janitor::start(&proxy.url(database.url())).await;
    janitor.program.said("Cannot start yet; trying again.").await;
    proxy.pass();
    until("it sweeps", async || janitor.shows("queue_sweeping 1")).await;
}
