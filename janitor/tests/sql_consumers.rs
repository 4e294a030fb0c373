//! SQL consumers whose sessions end in every possible way, and the janitor that takes back what
//! they held: beside workers of the library, on one topic.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Row};
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{OnDone, Settlement, TopicSettings};
use rowmq_core::worker::{SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, Topic, enqueue_to};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::{TestDatabase, until};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A database with the topic `t`, a table that handlers write to, and a janitor at work.
struct Fixture {
    database: TestDatabase,
    topic: Topic,
    admin: Conn,
    _janitor: DropGuard,
}

async fn session(url: &ServerUrl) -> Conn {
    let opts = Opts::from_url(url.expose()).expect("a URL");
    Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await.expect("a session")
}

impl Fixture {
    async fn new(messages: usize) -> Self {
        let database = TestDatabase::new().await;
        // Many kills must not dead-letter a message.
        let settings =
            TopicSettings { max_crashes: 10_000, max_attempts: 10_000, ..TopicSettings::default() };
        let topic = database.topic_with("t", &settings).await;
        let mut admin = session(database.url()).await;
        let table = "CREATE TABLE effect (body VARBINARY(9) NOT NULL) ENGINE = InnoDB";
        admin.query_drop(table).await.expect("made");
        let all: Vec<_> = (0..messages).map(|n| NewMessage::new(n.to_string())).collect();
        enqueue_to(&mut database.connect().await, &topic, &all).await.expect("enqueued");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let options = DriverOptions::new(database.url().clone(), "test");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let driver = Driver::new(options).run(stopped, |_| {});
            runtime.expect("a runtime").block_on(driver);
        });
        Self { database, topic, admin, _janitor: stop.drop_guard() }
    }

    async fn number(&mut self, query: &str) -> u64 {
        self.admin.query_first(query).await.expect("read").expect("a row")
    }

    async fn claimed(&mut self) -> u64 {
        self.number("SELECT COUNT(*) FROM queue_message WHERE worker_id > 0").await
    }

    /// Waits until the janitor has taken back everything; returns the first worker's state.
    async fn rescued(&mut self) -> String {
        until("rescued", async || self.claimed().await == 0).await;
        let state = "SELECT CONCAT(state, ' ', COALESCE(end_reason, '')) FROM queue_worker ORDER BY id LIMIT 1";
        self.admin.query_first(state).await.expect("read").expect("a worker")
    }
}

/// Claims with a lease that no pause of a busy machine outlasts.
async fn claim(conn: &mut Conn, limit: u32) -> mysql_async::Result<Vec<(String, String)>> {
    claim_for(conn, limit, 60).await
}

async fn claim_for(
    conn: &mut Conn,
    limit: u32,
    lease: u32,
) -> mysql_async::Result<Vec<(String, String)>> {
    conn.exec_drop("SET @queue_lease = ?", (lease,)).await?;
    let rows: Vec<Row> = conn.exec("CALL queue_claim('t', ?, NULL)", (limit,)).await?;
    let claimed = |row: Row| (row.get("delivery").expect("text"), row.get("body").expect("text"));
    Ok(rows.into_iter().map(claimed).collect())
}

async fn settle(conn: &mut Conn, delivery: &str, verdict: &str) -> mysql_async::Result<()> {
    conn.exec_drop("CALL queue_settle(?, ?, NULL, NULL)", (delivery, verdict)).await
}

fn number_of(error: &mysql_async::Error) -> u16 {
    match error {
        mysql_async::Error::Server(error) => error.code,
        other => panic!("{other}"),
    }
}

const COUNTS: &str = "SELECT crashes * 100 + suspicions * 10 + delivery_no FROM queue_message";

/// F1.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_session_gives_back_what_it_held_and_is_charged() {
    let mut place = Fixture::new(1).await;
    let mut conn = session(place.database.url()).await;
    let held = claim(&mut conn, 1).await.expect("claimed");
    conn.query_drop("START TRANSACTION").await.expect("begun");
    conn.query_drop("INSERT INTO effect VALUES ('0')").await.expect("written");
    settle(&mut conn, &held[0].0, "ack").await.expect("settled");
    place.admin.query_drop(format!("KILL {}", conn.id())).await.expect("killed");
    // Rolled back with its session: not settled, and not claimed by another worker in the meantime.
    assert_eq!(place.rescued().await, "dead both sessions left the process list");
    assert_eq!(place.number("SELECT COUNT(*) FROM effect").await, 0);
    assert_eq!(place.number(COUNTS).await, 101, "a lone crash");
    let mut other = session(place.database.url()).await;
    let again = claim(&mut other, 1).await.expect("claimed");
    assert_eq!(again[0].1, "0");
    settle(&mut other, &again[0].0, "ack").await.expect("settled");
}

/// The row is locked in the sweep that declares the death, and only that sweep counts what the
/// session held.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_crash_counts_as_one_although_its_row_was_locked_at_first() {
    let mut place = Fixture::new(1).await;
    let mut conn = session(place.database.url()).await;
    claim(&mut conn, 1).await.expect("claimed");
    let mut reader = session(place.database.url()).await;
    reader.query_drop("START TRANSACTION").await.expect("begun");
    reader.query_drop("SELECT 1 FROM queue_message FOR UPDATE").await.expect("locked");
    place.admin.query_drop(format!("KILL {}", conn.id())).await.expect("killed");
    let still_locked = "SELECT COUNT(*) FROM queue_duty \
        WHERE name = 'rescue' AND JSON_EXTRACT(CONVERT(report USING utf8mb4), '$.still_locked') = 1";
    until("found locked", async || place.number(still_locked).await == 1).await;
    reader.query_drop("ROLLBACK").await.expect("unlocked");
    place.rescued().await;
    assert_eq!(place.number(COUNTS).await, 101, "a lone crash");
}

/// A pool that resets a connection before it hands it out again releases the name lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_reset_is_fenced_at_once_and_rescued_after_its_lease() {
    let mut place = Fixture::new(1).await;
    let mut conn = session(place.database.url()).await;
    let held = claim_for(&mut conn, 1, 3).await.expect("claimed");
    assert!(conn.reset().await.expect("asked"), "the server resets");
    let fenced = settle(&mut conn, &held[0].0, "ack").await.expect_err("not its own");
    assert_eq!(number_of(&fenced), 31015);
    let beat = conn.query_drop("CALL queue_beat()").await.expect_err("no worker");
    assert_eq!(number_of(&beat), 31015);
    assert_eq!(place.rescued().await, "dead no beat for a whole lease");
    let fenced = settle(&mut conn, &held[0].0, "ack").await.expect_err("not its own");
    assert_eq!(number_of(&fenced), 31015);
    let again = claim(&mut conn, 1).await.expect("claimed");
    settle(&mut conn, &again[0].0, "ack").await.expect("settled");
}

/// How a frozen process, or a pulled cable, looks to the server.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_says_nothing_for_its_lease_is_ended_by_the_server() {
    let mut place = Fixture::new(1).await;
    let mut conn = session(place.database.url()).await;
    claim_for(&mut conn, 1, 10).await.expect("claimed");
    assert_eq!(place.rescued().await, "dead both sessions left the process list");
    assert!(claim(&mut conn, 1).await.is_err(), "the session is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_leaves_gives_back_what_it_held_uncharged() {
    let mut place = Fixture::new(2).await;
    let mut conn = session(place.database.url()).await;
    let held = claim(&mut conn, 2).await.expect("claimed");
    settle(&mut conn, &held[0].0, "ack").await.expect("settled");
    conn.query_drop("CALL queue_leave()").await.expect("left");
    assert_eq!(place.rescued().await, "stopped ");
    assert_eq!(place.number(COUNTS).await, 1, "delivered once, and no crash");
    let fenced = settle(&mut conn, &held[1].0, "ack").await.expect_err("given back");
    assert_eq!(number_of(&fenced), 31015);
}

/// A zombie: its claim was taken back and belongs to another worker, while it still works.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_taken_back_settles_nothing_and_says_so() {
    let mut place = Fixture::new(1).await;
    let mut zombie = session(place.database.url()).await;
    let held = claim(&mut zombie, 1).await.expect("claimed");
    let dead = "UPDATE queue_worker SET state = 'dead'";
    place.admin.query_drop(dead).await.expect("declared");
    place.rescued().await;
    let worker = WorkerOptions::new(place.database.url().clone(), "other");
    let worker = Worker::start(worker).await.expect("registered");
    let mut again = Vec::new();
    until("claimed", async || {
        let claimed = worker.claim_suspect(place.topic.id).await.expect("claimed");
        again.extend(claimed.deliveries);
        again.extend(worker.claim(place.topic.id, 1).await.expect("claimed").deliveries);
        !again.is_empty()
    })
    .await;
    zombie.query_drop("START TRANSACTION").await.expect("begun");
    zombie.query_drop("INSERT INTO effect VALUES ('0')").await.expect("written");
    let fenced = settle(&mut zombie, &held[0].0, "ack").await.expect_err("another's");
    assert_eq!(number_of(&fenced), 31015);
    zombie.query_drop("ROLLBACK").await.expect("rolled back");
    assert_eq!(place.claimed().await, 1);
    let ack = Settled::new(&again[0], Settlement::Ack, OnDone::Delete);
    assert_eq!(worker.settle(vec![ack]).await.expect("settled"), [SettleOutcome::Settled]);
    assert_eq!(place.number("SELECT COUNT(*) FROM effect").await, 0);
}

/// How messages were acked, by number.
type Tally = Arc<Vec<AtomicUsize>>;

fn tally(messages: usize) -> Tally {
    Arc::new((0..messages).map(|_| AtomicUsize::new(0)).collect())
}

fn count(tally: &Tally, body: &str) {
    let n: usize = body.parse().expect("a number");
    tally[n].fetch_add(1, Ordering::Relaxed);
}

/// Claims and handles until it is stopped, with a new session whenever the old one is lost.
async fn consume_by_sql(url: ServerUrl, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut conn) = Conn::new(
            OptsBuilder::from_opts(Opts::from_url(url.expose()).expect("a URL"))
                .prefer_socket(false),
        )
        .await
        else {
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            if handle_some(&mut conn).await.is_err() {
                break;
            }
        }
        // The janitor takes back what the session holds, unless the session can still leave.
        drop(conn.query_drop("ROLLBACK").await);
        drop(conn.query_drop("CALL queue_leave()").await);
    }
}

/// The documented loop: the effect and the ack in one transaction; sometimes another verdict.
async fn handle_some(conn: &mut Conn) -> mysql_async::Result<()> {
    let held = claim_for(conn, 3, 3).await?;
    if held.is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for (delivery, body) in held {
        conn.query_drop("START TRANSACTION").await?;
        conn.exec_drop("INSERT INTO effect VALUES (?)", (&body,)).await?;
        match rowmq_core::chance::name().as_bytes()[0] {
            0..30 => {
                conn.query_drop("ROLLBACK").await?;
                let retry = "CALL queue_settle(?, 'retry', 'by lot', 0)";
                conn.exec_drop(retry, (&delivery,)).await?;
            }
            30..50 => {
                conn.query_drop("ROLLBACK").await?;
                settle(conn, &delivery, "release").await?;
            }
            _ => {
                settle(conn, &delivery, "ack").await?;
                conn.query_drop("COMMIT").await?;
            }
        }
    }
    Ok(())
}

/// Acks what it claims; counts the acks that the library reports as settled, or as unknown.
async fn consume_by_library(
    url: ServerUrl,
    topic: Topic,
    stop: Arc<AtomicBool>,
    settled: Tally,
    unknown: Tally,
) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(worker) = Worker::start(WorkerOptions::new(url.clone(), "worker")).await else {
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            let mut deliveries = match worker.claim(topic.id, 3).await {
                Ok(claimed) => claimed.deliveries,
                Err(_) => break,
            };
            if deliveries.is_empty() {
                let Ok(claimed) = worker.claim_suspect(topic.id).await else { break };
                deliveries = claimed.deliveries;
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let acks = deliveries.iter().map(|d| Settled::new(d, Settlement::Ack, OnDone::Delete));
            let Ok(outcomes) = worker.settle(acks.collect()).await else {
                deliveries.iter().for_each(|d| count(&unknown, &String::from_utf8_lossy(&d.body)));
                break;
            };
            for (delivery, outcome) in deliveries.iter().zip(outcomes) {
                let tally = match outcome {
                    SettleOutcome::Settled => &settled,
                    SettleOutcome::Fenced => continue,
                    SettleOutcome::Unknown | SettleOutcome::Deferred => &unknown,
                };
                count(tally, &String::from_utf8_lossy(&delivery.body));
            }
        }
    }
}

/// F1, F5, F6: SQL consumers and workers of the library on one topic; their sessions are killed at
/// random. Nothing is lost, nothing is acked twice, and a transaction's effects happen once.
#[tokio::test(flavor = "multi_thread")]
async fn beside_workers_of_the_library_and_random_kills_nothing_is_lost_nor_acked_twice() {
    const MESSAGES: usize = 400;
    const KILLS: usize = 60;
    let mut place = Fixture::new(MESSAGES).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (settled, unknown) = (tally(MESSAGES), tally(MESSAGES));
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let url = place.database.url().clone();
        tasks.push(tokio::spawn(consume_by_sql(url.clone(), Arc::clone(&stop))));
        let tallies = (Arc::clone(&settled), Arc::clone(&unknown));
        let topic = place.topic.clone();
        let library = consume_by_library(url, topic, Arc::clone(&stop), tallies.0, tallies.1);
        tasks.push(tokio::spawn(library));
    }
    let victim = "SELECT IF(RAND() < 0.5, conn_id, life_conn_id) FROM queue_worker \
         WHERE state = 'alive' AND conn_id > 0 ORDER BY RAND() LIMIT 1";
    let mut kills = 0;
    while kills < KILLS && place.number("SELECT COUNT(*) FROM queue_message").await > 0 {
        let found: Option<u64> = place.admin.query_first(victim).await.expect("read");
        // The session may have ended by itself in the meantime.
        if let Some(id) = found
            && place.admin.query_drop(format!("KILL {id}")).await.is_ok()
        {
            kills += 1;
        }
        tokio::time::sleep(std::time::Duration::from_millis(15)).await;
    }
    assert!(kills > 10, "only {kills} kills");
    let left = "SELECT (SELECT COUNT(*) FROM queue_message) + (SELECT COUNT(*) FROM queue_scheduled) \
         + (SELECT COUNT(*) FROM queue_claim)";
    until("drained", async || place.number(left).await == 0).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(place.number("SELECT COUNT(*) FROM queue_dead").await, 0);
    let effects: Vec<(usize, usize)> = place
        .admin
        .query("SELECT CAST(body AS UNSIGNED), COUNT(*) FROM effect GROUP BY body")
        .await
        .expect("read");
    let by_sql = tally(MESSAGES);
    effects.iter().for_each(|(n, times)| by_sql[*n].store(*times, Ordering::Relaxed));
    let sum = |tally: &Tally| tally.iter().map(|n| n.load(Ordering::Relaxed)).sum::<usize>();
    assert!(sum(&by_sql) > 0 && sum(&settled) > 0, "both had their share");
    for n in 0..MESSAGES {
        let [sql, library, unknown] =
            [&by_sql, &settled, &unknown].map(|tally| tally[n].load(Ordering::Relaxed));
        assert!(sql + library <= 1, "{n}: acked {sql} times by SQL, {library} by the library");
        assert!(sql + library + unknown >= 1, "{n} is lost");
    }
}
