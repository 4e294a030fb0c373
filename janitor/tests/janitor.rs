//! The janitor's binary and driver against real consumers.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot be set up has failed"
)]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::store::{self, worker::WorkerRow};
use rowmq_core::worker::{Worker, WorkerOptions};
use rowmq_core::{NewMessage, Topic, enqueue_to};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::{TestDatabase, until};
use tokio_util::sync::CancellationToken;

/// A process that is killed when the test ends, if not before.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Starts a consumer process that holds each of its messages for ten minutes. Consumers sweep
/// themselves by default; this one does not.
fn holder(url: &ServerUrl) -> Process {
    let test = std::env::current_exe().expect("this test's path");
    let folder: PathBuf = test.parent().and_then(|deps| deps.parent()).expect("target").into();
    let child = Command::new(folder.join("examples/recorder"))
        .args(["work", "/dev/null", "--work", "600000"])
        .env("ROWMQ_URL", url.expose())
        .env("ROWMQ_CONSUMER_SWEEP", "false")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Process(child.expect("the recorder is built; run the tests by ./ops/test"))
}

fn janitor(url: &ServerUrl, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rowmq-janitor"));
    command.args(arguments).env("ROWMQ_URL", url.expose()).stdin(Stdio::null());
    command
}

async fn messages(database: &TestDatabase, n: usize) -> Topic {
    let topic = database.topic("work").await;
    let mut conn = database.connect().await;
    let messages: Vec<_> = (0..n).map(|i| NewMessage::new(format!("{i}"))).collect();
    enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    topic
}

async fn workers(database: &TestDatabase) -> Vec<WorkerRow> {
    let mut conn = database.connect().await;
    store::worker::latest(&mut conn, 10).await.expect("workers")
}

/// Returns how many messages of the topic are claimed, and how many are ready.
async fn claimed_and_ready(database: &TestDatabase, topic: &Topic) -> (usize, usize) {
    let mut conn = database.connect().await;
    let all = store::inspect::peek(&mut conn, topic.id, 1000).await.expect("peeked");
    let claimed = all.iter().filter(|message| message.conn_id.is_some()).count();
    (claimed, all.len() - claimed)
}

/// Starts a janitor process; returns once it has performed a duty.
async fn sweeping(database: &TestDatabase) -> Process {
    let process =
        Process(janitor(database.url(), &[]).stderr(Stdio::null()).spawn().expect("runs"));
    let mut conn = database.connect().await;
    until("sweeping", async || !store::duty::all(&mut conn).await.expect("duties").is_empty())
        .await;
    process
}

/// F1, with the janitor as a process.
#[tokio::test(flavor = "multi_thread")]
async fn the_janitor_returns_the_claims_of_a_killed_consumer() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 16).await;
    let mut victim = holder(database.url());
    until("claimed", async || claimed_and_ready(&database, &topic).await == (16, 0)).await;
    let _janitor = sweeping(&database).await;
    victim.0.kill().expect("killed");
    let took =
        until("rescued", async || claimed_and_ready(&database, &topic).await == (0, 16)).await;
    println!("claims of a killed consumer returned {} ms after the kill", took.as_millis());
    assert_eq!(workers(&database).await[0].state, "dead");
}

/// A missing table makes one duty fail repeatedly; the others continue, and the rescue does not
/// forget what it has seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_duty_that_fails_again_and_again_holds_up_no_rescue() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 16).await;
    let mut victim = holder(database.url());
    until("claimed", async || claimed_and_ready(&database, &topic).await == (16, 0)).await;
    let _janitor = sweeping(&database).await;
    let mut conn = database.connect().await;
    conn.batch_execute("DROP TABLE queue_schedule").await.expect("dropped");
    victim.0.kill().expect("killed");
    until("rescued", async || claimed_and_ready(&database, &topic).await == (0, 16)).await;
    assert_ne!(
        workers(&database).await[0].end_reason.as_deref(),
        Some("no beat for a whole lease"),
        "its sessions were seen to be gone"
    );
}

/// F15: without PROCESS and with its own account, the janitor sees no other session and must not
/// conclude that there is none; the lease still rescues.
#[tokio::test(flavor = "multi_thread")]
async fn a_janitor_without_process_resets_no_live_claim_and_rescues_by_lease() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 16).await;
    let on_tables = format!("ALL ON {}.*", database.name());
    let blind = database.account(&[&on_tables]).await;
    let mut victim = holder(database.url());
    until("claimed", async || claimed_and_ready(&database, &topic).await == (16, 0)).await;
    let log = tempfile::NamedTempFile::new().expect("a log");
    let stderr = log.reopen().expect("a log");
    let _janitor = Process(janitor(&blind, &[]).stderr(stderr).spawn().expect("runs"));
    let said = || std::fs::read_to_string(log.path()).expect("a log");
    until("warned", async || said().contains("PROCESS")).await;
    let mut conn = database.connect().await;
    let mut runs = async || {
        let duties = store::duty::all(&mut conn).await.expect("duties");
        duties.iter().find(|duty| duty.name == "rescue").map_or(0, |duty| duty.runs)
    };
    until("swept for a while", async || runs().await >= 3).await;
    assert_eq!(claimed_and_ready(&database, &topic).await, (16, 0), "the owner lives");
    assert_eq!(workers(&database).await[0].state, "alive");
    victim.0.kill().expect("killed");
    until("rescued", async || claimed_and_ready(&database, &topic).await == (0, 16)).await;
    assert_eq!(
        workers(&database).await[0].end_reason.as_deref(),
        Some("no beat for a whole lease")
    );
}

/// F14: four janitors, and every message is returned once.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_janitors_one_sweeps_and_another_takes_over() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 16).await;
    let mut victim = holder(database.url());
    until("claimed", async || claimed_and_ready(&database, &topic).await == (16, 0)).await;
    let mut stops = Vec::new();
    for index in 0..4 {
        let stop = CancellationToken::new();
        let options = DriverOptions::new(database.url().clone(), format!("janitor {index}"));
        let (name, stopped) = (format!("janitor {index}"), stop.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let driver = Driver::new(options).run(stopped, |_| {});
            runtime.expect("a runtime").block_on(driver);
        });
        stops.push((name, stop));
    }
    let mut conn = database.connect().await;
    let mut sweeper = async || {
        let duties = store::duty::all(&mut conn).await.expect("duties");
        duties.into_iter().find(|duty| duty.name == "rescue").map(|duty| duty.holder)
    };
    let mut first = None;
    until("sweeping", async || {
        first = sweeper().await;
        first.is_some()
    })
    .await;
    let first = first.expect("a sweeper");
    stops.iter().filter(|(name, _)| *name == first).for_each(|(_, stop)| stop.cancel());
    victim.0.kill().expect("killed");
    until("rescued", async || claimed_and_ready(&database, &topic).await == (0, 16)).await;
    assert_ne!(sweeper().await, Some(first), "another has taken over");
    let all = store::inspect::peek(&mut conn, topic.id, 100).await.expect("peeked");
    assert!(all.iter().all(|message| message.delivery_no == 1), "returned, not claimed again");
    stops.iter().for_each(|(_, stop)| stop.cancel());
}

#[tokio::test(flavor = "multi_thread")]
async fn once_for_cron_rescues_and_ends() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 4).await;
    let mut victim = holder(database.url());
    until("claimed", async || claimed_and_ready(&database, &topic).await == (4, 0)).await;
    victim.0.kill().expect("killed");
    // Repeated as cron does: if the server notices late that the victim is gone, the next run
    // rescues.
    until("rescued", async || {
        let done = janitor(database.url(), &["--once"]).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        claimed_and_ready(&database, &topic).await == (0, 4)
    })
    .await;
}

/// A cousin of seed defect S8: a session whose statement is not text must not blind the janitor.
#[tokio::test(flavor = "multi_thread")]
async fn a_binary_statement_in_the_process_list_does_not_blind_the_janitor() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let list = store::process_list::show(&mut conn).await.expect("a list");
    let own = store::process_list::visibility(&mut conn).await.expect("a visibility").conn;
    assert!(list.contains(&own));
    let mut other = database.connect().await;
    let mut blob = vec![0xa1, 0xfb, 0x9f, 0xf7, 0xb5];
    blob.resize(100_000, 0xff);
    let topic = database.topic("work").await;
    let messages: Vec<_> = (0..200).map(|_| NewMessage::new(blob.clone())).collect();
    let busy = tokio::spawn(async move {
        enqueue_to(&mut other, &topic, &messages).await.expect("enqueued");
    });
    while !busy.is_finished() {
        store::process_list::show(&mut conn).await.expect("the list can be read");
    }
    busy.await.expect("enqueued");
}

/// Runs a sweep over five entries of the audit; returns the ages in days of those that it leaves.
async fn ages_left_by(sweep: impl AsyncFn(&ServerUrl) -> bool) -> Vec<i64> {
    #[derive(diesel::QueryableByName)]
    struct Row {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        days: i64,
    }
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    for days in [1, 5, 399, 401, 499] {
        let entry = format!(
            "INSERT INTO queue_audit (at, actor, origin, action, target) VALUES \
             (UTC_TIMESTAMP(6) - INTERVAL {days} DAY, 'ada', 'here', 'purge', 'mail')"
        );
        conn.batch_execute(&entry).await.expect("filled");
    }
    assert!(sweep(database.url()).await);
    let read = "SELECT CAST(TIMESTAMPDIFF(DAY, at, UTC_TIMESTAMP(6)) AS SIGNED) AS days \
         FROM queue_audit ORDER BY at DESC";
    let rows: Vec<Row> =
        diesel_async::RunQueryDsl::load(diesel::sql_query(read), &mut conn).await.expect("read");
    rows.into_iter().map(|row| row.days).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_is_kept_for_400_days_unless_the_janitor_is_told_otherwise() {
    let run = async |arguments: &[&str]| {
        let arguments = [&["--once"][..], arguments].concat();
        let once =
            async |url: &ServerUrl| janitor(url, &arguments).status().expect("it ran").success();
        ages_left_by(once).await
    };
    assert_eq!(run(&[]).await, [1, 5, 399]);
    assert_eq!(run(&["--audit-retention", "3d"]).await, [1]);
    assert_eq!(run(&["--audit-retention", "none"]).await, [1, 5, 399, 401, 499]);
    // A consumer that stands in for the janitor does not have that setting.
    let stand_in = async |url: &ServerUrl| {
        Driver::new(DriverOptions::new(url.clone(), "test")).run_once().await.expect("swept")
    };
    assert_eq!(ages_left_by(stand_in).await, [1, 5, 399, 401, 499]);
}

/// The rows of a worker that stopped cleanly, or has no row, are returned uncharged (H7).
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_a_worker_whose_row_is_gone_are_returned() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 8).await;
    let options = WorkerOptions::new(database.url().clone(), "orphan");
    let worker = Worker::start(options).await.expect("registered");
    let claimed = worker.claim(topic.id, 8).await.expect("claimed");
    assert_eq!(claimed.deliveries.len(), 8);
    let mut conn = database.connect().await;
    assert_eq!(
        store::worker::stop(&mut conn, worker.id(), worker.instance()).await.expect("stopped"),
        1
    );
    let driver = Driver::new(DriverOptions::new(database.url().clone(), "test"));
    assert!(driver.run_once().await.expect("swept"));
    assert_eq!(claimed_and_ready(&database, &topic).await, (0, 8));
}

/// The topic was deleted while the transaction that enqueued had an old snapshot.
#[tokio::test]
async fn messages_without_a_topic_get_one_again() {
    let database = TestDatabase::new().await;
    let topic = messages(&database, 3).await;
    let mut conn = database.connect().await;
    store::topic::delete(&mut conn, topic.id).await.expect("deleted");
    let options = DriverOptions::new(database.url().clone(), "test");
    let driver = Driver::new(DriverOptions { measures: true, ..options });
    assert!(driver.run_once().await.expect("swept"));
    let all = store::topic::all(&mut conn).await.expect("topics");
    let all: Vec<_> = all.iter().map(|topic| (topic.id, topic.name.to_string())).collect();
    assert_eq!(all, [(topic.id, format!("restored-{}", topic.id.0))]);
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("depth");
    assert_eq!(depth.unsettled, 3);
}
