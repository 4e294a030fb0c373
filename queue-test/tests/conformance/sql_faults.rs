//! What a call of the SQL contract leaves behind when it is killed, waits for a lock or loses its
//! transaction.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{Limits, TopicSettings};
use rowmq_core::{NewMessage, Priority, Unique, enqueue};
use rowmq_test::until;

use crate::scene::{Scene, text};
use crate::sql_consumer::{SqlConsumer, bodies};
use crate::sql_contract::client;

/// The claimed messages that no slot counts.
const UNCOUNTED: &str = "SELECT COUNT(*) FROM queue_message m LEFT JOIN queue_slot h ON h.topic_id = m.topic_id \
    AND h.id = m.id AND h.worker_id = m.worker_id AND h.claim_no = m.claim_no \
    WHERE m.worker_id <> 0 AND h.id IS NULL";

/// `ER_QUERY_INTERRUPTED`.
const KILLED: u16 = 1317;

impl SqlConsumer {
    pub(crate) async fn id(&mut self) -> u64 {
        self.conn.query_first("SELECT CONNECTION_ID()").await.unwrap().unwrap()
    }

    /// Returns the rows, or the number of the error.
    pub(crate) async fn tried(&mut self, sql: &str) -> Result<Vec<Row>, u16> {
        match self.conn.query(sql).await {
            Ok(rows) => Ok(rows),
            Err(mysql_async::Error::Server(error)) => Err(error.code),
            Err(other) => panic!("{sql}: {other}"),
        }
    }

    /// Runs a call that is killed while it waits for a lock that the scene holds.
    pub(crate) async fn killed_waiting(&mut self, scene: &mut Scene, sql: &str) {
        let id = self.id().await;
        let kill = async {
            until("the call waits", async || scene.lock_waits().await > 0).await;
            scene.sql(&format!("KILL QUERY {id}")).await;
        };
        let (tried, ()) = tokio::join!(self.tried(sql), kill);
        assert_eq!(tried.unwrap_err(), KILLED, "{sql}");
        scene.sql("ROLLBACK").await;
    }

    /// Runs a call in a transaction that a deadlock undoes: the scene's transaction has changed
    /// more rows, so this one is the victim. Leaves the table `booked`.
    pub(crate) async fn undone(&mut self, scene: &mut Scene, sql: &str) {
        let table = "id INT PRIMARY KEY, n INT NOT NULL";
        scene.sql(&format!("CREATE TABLE IF NOT EXISTS booked ({table}) ENGINE = InnoDB")).await;
        scene.sql("REPLACE INTO booked VALUES (1, 0)").await;
        let many: Vec<_> = (2..300).map(|id| format!("({id}, 0)")).collect();
        scene.sql("START TRANSACTION; UPDATE queue_message SET history = ''").await;
        scene.sql(&format!("INSERT INTO booked VALUES {}", many.join(", "))).await;
        self.run("START TRANSACTION").await;
        self.run("UPDATE booked SET n = n + 1 WHERE id = 1").await;
        let cross = async {
            until("the call waits", async || scene.lock_waits().await > 0).await;
            scene.sql("UPDATE booked SET n = 0 WHERE id = 1").await;
        };
        let (tried, ()) = tokio::join!(self.tried(sql), cross);
        assert_eq!(tried.unwrap_err(), 1213, "{sql}");
        scene.sql("ROLLBACK").await;
    }
}

pub(crate) fn settle(delivery: &str, verdict: &str) -> String {
    format!("CALL queue_settle('{delivery}', '{verdict}', NULL, NULL)")
}

#[tokio::test]
async fn a_settle_waits_for_no_neighbour() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(3).await;
    consumer.settle(&held[1], "release").await;
    scene.sql("START TRANSACTION; UPDATE queue_message SET failures = 0, priority = 5, history = '' WHERE body = '1'").await;
    consumer.run("SET SESSION innodb_lock_wait_timeout = 1").await;
    consumer.settle(&held[0], "ack").await;
    consumer.run("START TRANSACTION").await;
    consumer.settle(&held[2], "ack").await;
    consumer.run("COMMIT").await;
    scene.sql("ROLLBACK").await;
    assert_eq!(scene.hot().await, (1, 0, 0));
}

#[tokio::test]
async fn a_killed_claim_is_undone_by_the_next_call() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_and_keep(1).await;
    for next in [
        "CALL queue_claim('t', 2, NULL)",
        "CALL queue_beat()",
        &settle(&held[0].delivery, "retry"),
        "CALL queue_leave()",
    ] {
        scene.sql("START TRANSACTION; SELECT id FROM queue_worker FOR UPDATE").await;
        consumer.killed_waiting(&mut scene, "CALL queue_claim('t', 1, NULL)").await;
        consumer.run(next).await;
        assert_eq!(scene.transactions().await.len(), 0, "{next}");
    }
    assert_eq!(scene.hot().await, (2, 2, 1));
}

/// A KILL after the commit: the session has a claim, and its client does not know it.
#[tokio::test]
async fn what_a_killed_claim_did_not_hand_out_is_given_back() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let unsaid = consumer.claim(3).await;
    let held = consumer.claim(4).await;
    assert_eq!(bodies(&held), ["0", "1", "2", "3"]);
    assert_eq!(consumer.refused(&settle(&unsaid[0].delivery, "ack")).await, 31015);
    assert_eq!(scene.hot().await, (4, 4, 1));
    assert_eq!(scene.number("SELECT MAX(failures + crashes) FROM queue_message").await, 0);
}

#[tokio::test]
async fn an_ack_is_not_said_alone_after_its_transaction_was_undone() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(1).await.remove(0);
    let ack = settle(&held.delivery, "ack");
    consumer.undone(&mut scene, &ack).await;
    assert_eq!(consumer.refused(&ack).await, 31025);

    // A KILL may have undone the transaction on one server and not on the other: both, or neither.
    let work = "UPDATE booked SET n = n + 1 WHERE id = 1";
    consumer.run("START TRANSACTION").await;
    consumer.run(work).await;
    scene.sql("START TRANSACTION; UPDATE queue_message SET history = ''").await;
    consumer.killed_waiting(&mut scene, &ack).await;
    if let Err(number) = consumer.tried(&ack).await {
        assert_eq!(number, 31025);
        consumer.run("START TRANSACTION").await;
        consumer.run(work).await;
        consumer.settle(&held, "ack").await;
    }
    consumer.run("COMMIT").await;
    assert_eq!(scene.hot().await, (0, 0, 0));
    assert_eq!(scene.number("SELECT SUM(n) FROM booked").await, 1);
}

#[tokio::test]
async fn what_is_locked_hides_nothing_behind_it() {
    let mut scene = Scene::new().await;
    let mut expired = NewMessage::new("expired").with_unique(Unique::until_done("u"));
    expired = expired.with_priority(Priority::FIRST);
    scene.sql("START TRANSACTION").await;
    enqueue(&mut scene.conn, &scene.topic.name, &expired).await.unwrap();
    scene.sql("COMMIT").await;
    for (body, priority) in [("a", 0), ("b", 0), ("c", 9)] {
        let message = NewMessage::new(body).with_priority(Priority::new(priority).unwrap());
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    }
    scene
        .sql("UPDATE queue_message SET expires_at = UTC_TIMESTAMP(6) WHERE body = 'expired'")
        .await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    // Another transaction has its key locked.
    scene.sql("START TRANSACTION; SELECT topic_id FROM queue_unique FOR UPDATE").await;
    assert_eq!(bodies(&consumer.claim_and_keep(1).await), ["a"]);
    // Everything else at this priority is locked, too.
    let (topic, id) =
        (scene.topic.id.0, scene.number("SELECT id FROM queue_message WHERE body = 'b'").await);
    scene.sql(&format!("SELECT id FROM queue_message WHERE topic_id = {topic} AND priority = 0 AND id = {id} FOR UPDATE")).await;
    assert_eq!(bodies(&consumer.claim_and_keep(1).await), ["c"]);
    scene.sql("ROLLBACK").await;
    assert_eq!(bodies(&consumer.claim_n(1).await), ["b"]);
    assert_eq!(scene.hot().await, (3, 3, 3));
}

#[tokio::test]
async fn of_a_batch_what_is_locked_is_left_and_the_rest_is_claimed() {
    let mut scene = Scene::new().await;
    let expired = NewMessage::new("expired").with_unique(Unique::until_done("u"));
    scene.sql("START TRANSACTION").await;
    enqueue(&mut scene.conn, &scene.topic.name, &expired).await.unwrap();
    scene.sql("COMMIT").await;
    scene.enqueue(2).await;
    scene
        .sql("UPDATE queue_message SET expires_at = UTC_TIMESTAMP(6) WHERE body = 'expired'")
        .await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    scene.sql("START TRANSACTION; SELECT topic_id FROM queue_unique FOR UPDATE").await;
    assert_eq!(bodies(&consumer.claim_and_keep(3).await), ["0", "1"]);
    assert_eq!(scene.number("SELECT CAST(n AS SIGNED) FROM queue_claim").await, 2);
    scene.sql("ROLLBACK").await;
    // Now it is discarded.
    assert_eq!(consumer.claim(3).await.len(), 0);
    assert_eq!(scene.hot().await, (2, 2, 1));
}

#[tokio::test]
async fn a_retry_policy_of_any_length_fails_no_retry() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    for name in ["queue-retry", "queue-max-attempts"] {
        scene.sql(&format!("UPDATE queue_message SET headers = CONCAT('{{\"{name}\":\"', REPEAT('9', 70000), '\"}}') WHERE worker_id = 0 LIMIT 1")).await;
        let held = consumer.claim(1).await;
        assert_eq!(consumer.settle(&held[0], "retry").await, "retry", "{name}");
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 2);
}

/// With its own tables under the queue's names, a session could claim to be another one.
#[tokio::test]
async fn a_session_that_shadows_the_tables_settles_nothing_of_others() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut owner = SqlConsumer::new(scene.db.url()).await;
    let held = owner.claim(1).await;
    let mut thief = SqlConsumer::new(scene.db.url()).await;
    thief.run("DO GET_LOCK('queue:ffffffffffffffffffffffffffffffff', 0)").await;
    for table in ["queue_worker", "queue_claim"] {
        thief.run(&format!("CREATE TEMPORARY TABLE mine AS SELECT * FROM {table}")).await;
        thief.run("UPDATE mine SET conn_id = CONNECTION_ID()").await;
        thief.run(&format!("ALTER TABLE mine RENAME TO {table}")).await;
    }
    thief.run("UPDATE queue_worker SET instance = REPEAT(0xff, 16)").await;
    assert_eq!(thief.refused(&settle(&held[0].delivery, "ack")).await, 31015);
    owner.settle(&held[0], "ack").await;
}

#[tokio::test]
async fn a_session_keeps_its_lease_when_it_is_registered_anew() {
    let mut scene = Scene::new().await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    consumer.run("SET @queue_lease = 30").await;
    consumer.run("CALL queue_claim('t', 1, NULL)").await;
    scene.sql("UPDATE queue_worker SET state = 'dead'").await;
    consumer.run("CALL queue_claim('t', 1, NULL)").await;
    let lease = "SELECT lease_ms FROM queue_worker WHERE state = 'alive'";
    assert_eq!(scene.number(lease).await, 30_000);
}

/// Kills what the session runs, repeatedly.
pub(crate) async fn kill_often(url: &ServerUrl, session: u64, ended: &AtomicBool) {
    let mut conn = client(url).await;
    let (mut turn, mut times) = (0, 0);
    while !ended.load(Ordering::Relaxed) {
        conn.query_drop(format!("KILL QUERY {session}")).await.unwrap();
        turn = (turn * 5 + 3) % 16;
        // The pauses grow, so that the work progresses on a machine of any speed.
        times += 1;
        tokio::time::sleep(Duration::from_millis(2 + turn + times / 8)).await;
    }
}

/// What the client does after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    /// Rolls its transaction back: that is the rule.
    Careful,
    /// Continues as if nothing had happened, and so commits what a killed call has left.
    Heedless,
}

impl Client {
    fn mend(self) -> &'static [&'static str] {
        match self {
            Self::Careful => &["ROLLBACK"],
            Self::Heedless => &["START TRANSACTION", "COMMIT"],
        }
    }
}

/// Works on ten messages after another until 20 calls were killed: `a…` is booked and acked in one
/// transaction, `r…` is retried. `at_once`: how many messages one call settles.
async fn work_while_killed(
    scene: &mut Scene,
    consumer: &mut SqlConsumer,
    client: Client,
    at_once: usize,
    limits: Limits,
) -> i64 {
    let mend = client.mend();

    let (mut killed, mut done, mut empty) = (0, 0, 0);
    while killed < 20 {
        for i in 0..10 {
            let body = format!("{}{}", if i % 2 == 0 { "a" } else { "r" }, done + i);
            enqueue(&mut scene.conn, &scene.topic.name, &NewMessage::new(body)).await.unwrap();
        }
        done += 10;
        while scene.number("SELECT COUNT(*) FROM queue_message").await > 0 {
            let Ok(rows) = consumer.tried("CALL queue_claim('t', 3, NULL)").await else {
                killed += 1;
                mend_until_done(consumer, mend).await;
                continue;
            };
            let has_slots = limits.bounds_running() && limits.only_running().is_none();
            assert!(!has_slots || scene.number(UNCOUNTED).await == 0, "{client:?}");
            empty = if rows.is_empty() { empty + 1 } else { 0 };
            assert!(empty < 1000, "nothing more is handed out: {}", held_now(scene).await);
            let (acked, retried): (Vec<_>, Vec<_>) =
                rows.iter().map(Work::of).partition(|work| work.body.starts_with('a'));
            let mut parts: Vec<_> = acked.chunks(at_once).chain(retried.chunks(at_once)).collect();
            while let Some(works) = parts.pop() {
                while let Err(number) = work(consumer, works).await {
                    mend_until_done(consumer, mend).await;
                    if number == 31015 && works.len() > 1 && client == Client::Heedless {
                        // The client has committed half of a killed call.
                        parts.extend(works.chunks(1));
                        break;
                    }
                    if number == 31015 {
                        assert_none_is_held(scene, works).await;
                        break;
                    }
                    // 1305: killed while the call looked for a savepoint that does not exist. 1689:
                    // killed while it waited for the lock of a table's definition.
                    assert!([KILLED, 1305, 1689, 31025].contains(&number), "{number}");
                    killed += 1;
                }
            }
        }
    }
    done
}

/// Returns what is claimed, and by which claims, to explain a failure.
async fn held_now(scene: &mut Scene) -> String {
    let rows = "SELECT CONCAT('message ', worker_id, '.', claim_no, '.', id, ' ', CONVERT(body USING latin1)) AS told \
                FROM queue_message UNION ALL \
                SELECT CONCAT('claim ', worker_id, '.', claim_no, ' ', lo, '-', hi, ' by ', conn_id) FROM queue_claim \
                UNION ALL SELECT CONCAT('worker ', id, ' ', state, ' ', conn_id, ' lock ', \
                  COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(instance)))), 'free')) FROM queue_worker";
    let all = format!("SELECT GROUP_CONCAT(told SEPARATOR ', ') FROM ({rows}) AS rows_told");
    text(&mut scene.conn, &all).await
}

/// The messages that are claimed.
struct Work {
    delivery: String,
    body: String,
}

impl Work {
    fn of(row: &Row) -> Self {
        let body = String::from_utf8(row.get("body").unwrap()).unwrap();
        Self { delivery: row.get("delivery").unwrap(), body }
    }
}

fn list(works: &[Work]) -> String {
    works.iter().map(|work| work.delivery.as_str()).collect::<Vec<_>>().join(",")
}

/// Asserts that the session holds none of these: each was acked (the reply was lost) or given back.
async fn assert_none_is_held(scene: &mut Scene, works: &[Work]) {
    let delivery = "CONVERT(CONCAT(worker_id, '.', claim_no, '.', id) USING latin1)";
    let list = list(works);
    let held =
        format!("SELECT COUNT(*) FROM queue_message WHERE FIND_IN_SET({delivery}, '{list}')");
    if scene.number(&held).await > 0 {
        panic!("refused, and still held: {list} of {}", held_now(scene).await);
    }
}

async fn work(consumer: &mut SqlConsumer, works: &[Work]) -> Result<(), u16> {
    if works[0].body.starts_with('r') {
        let retry = format!("CALL queue_settle('{}', 'retry', 'no', 3600)", list(works));
        return consumer.tried(&retry).await.map(drop);
    }
    consumer.tried("START TRANSACTION").await?;
    for work in works {
        consumer.tried(&format!("INSERT INTO booked VALUES ('{}')", work.body)).await?;
    }
    consumer.tried(&settle(&list(works), "ack")).await?;
    consumer.tried("COMMIT").await.map(drop)
}

async fn mend_until_done(consumer: &mut SqlConsumer, mend: &[&str]) {
    for sql in mend {
        while consumer.tried(sql).await.is_err() {}
    }
}

#[tokio::test]
async fn nothing_is_lost_doubled_or_stuck_by_kills() {
    kill_clients(Limits::default()).await;
}

#[tokio::test]
async fn nothing_is_lost_doubled_or_stuck_by_kills_in_a_topic_with_limits() {
    let max_running = std::num::NonZeroU32::new(3);
    let number = Limits { max_running, ..Limits::default() };
    kill_clients(number).await;
    kill_clients(Limits { rate: Some("1000000/1s".parse().unwrap()), ..number }).await;
    kill_clients(Limits { max_running_per_key: max_running, ..Limits::default() }).await;
}

async fn kill_clients(limits: Limits) {
    for (client, at_once) in
        [(Client::Careful, 1), (Client::Careful, 3), (Client::Heedless, 1), (Client::Heedless, 3)]
    {
        let by_the_rule = client == Client::Careful;
        let settings = TopicSettings { limits, ..TopicSettings::default() };
        let mut scene = Scene::with(&settings).await;
        scene.sql("CREATE TABLE booked (body VARCHAR(9) NOT NULL) ENGINE = InnoDB").await;
        let url = scene.db.url().clone();
        let mut consumer = SqlConsumer::new(&url).await;
        let (session, ended) = (consumer.id().await, AtomicBool::new(false));
        let works = async {
            let done = work_while_killed(&mut scene, &mut consumer, client, at_once, limits).await;
            ended.store(true, Ordering::Relaxed);
            done
        };
        let (done, ()) = tokio::join!(works, kill_often(&url, session, &ended));
        let (messages, claimed, claims) = scene.hot().await;
        assert_eq!((messages, claimed), (0, 0), "stuck: {client:?}, {at_once}");
        for (table, text) in [("booked", "body"), ("queue_scheduled", "CONVERT(body USING latin1)")]
        {
            let distinct = format!("SELECT COUNT(DISTINCT {text}) FROM {table}");
            assert_eq!(
                scene.number(&distinct).await,
                done / 2,
                "lost in {table}: {client:?}, {at_once}"
            );
            let all = scene.number(&format!("SELECT COUNT(*) FROM {table}")).await;
            assert!(!by_the_rule || all == done / 2, "doubled in {table}: {all} of {}", done / 2);
        }
        assert!(!by_the_rule || claims == 0, "{claims} claims are left");
    }
}
