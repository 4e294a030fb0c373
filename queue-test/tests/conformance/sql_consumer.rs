//! The SQL contract for consumers: `CALL queue_claim(…)` and `CALL queue_settle(…)` from any
//! language, beside workers of the library. Through the bare driver, as such a consumer uses it.

use std::slice;
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use rowmq_core::account::Account;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{Access, TopicSettings};
use rowmq_core::store;
use rowmq_core::{NewMessage, Priority, enqueue};
use rowmq_test::until;

use crate::scene::{Scene, claim_n, numbers};
use crate::sql_contract::{client, refusal};

/// A session that claims by SQL.
pub(crate) struct SqlConsumer {
    pub(crate) conn: Conn,
}

/// What a call of `queue_claim` returns.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) delivery: String,
    pub(crate) priority: u32,
    pub(crate) body: String,
}

impl SqlConsumer {
    pub(crate) async fn new(url: &ServerUrl) -> Self {
        Self { conn: client(url).await }
    }

    pub(crate) async fn claim(&mut self, limit: u32) -> Vec<Claimed> {
        self.claim_of("t", limit).await
    }

    pub(crate) async fn claim_of(&mut self, topic: &str, limit: u32) -> Vec<Claimed> {
        let call = "CALL queue_claim(?, ?, NULL)";
        let rows: Vec<Row> = self.conn.exec(call, (topic, limit)).await.unwrap();
        let claimed = |row: Row| Claimed {
            delivery: row.get("delivery").unwrap(),
            priority: row.get("priority").unwrap(),
            body: String::from_utf8_lossy(&row.get::<Vec<u8>, _>("body").unwrap()).into_owned(),
        };
        rows.into_iter().map(claimed).collect()
    }

    /// Claims, and confirms that the reply has come: the next claim does not give these back.
    pub(crate) async fn claim_and_keep(&mut self, limit: u32) -> Vec<Claimed> {
        let claimed = self.claim(limit).await;
        if let Some(first) = claimed.first() {
            self.run("START TRANSACTION").await;
            self.settle(first, "ack").await;
            self.run("ROLLBACK").await;
        }
        claimed
    }

    /// Claims until this many have come.
    pub(crate) async fn claim_n(&mut self, n: usize) -> Vec<Claimed> {
        let mut claimed = Vec::new();
        until("so many are claimed", async || {
            let limit = u32::try_from(n - claimed.len()).unwrap();
            claimed.extend(self.claim_and_keep(limit).await);
            claimed.len() == n
        })
        .await;
        claimed
    }

    /// Settles the message; returns the outcome.
    pub(crate) async fn settle(&mut self, claimed: &Claimed, verdict: &str) -> String {
        self.settle_all(slice::from_ref(claimed), verdict).await
    }

    /// Settles the messages; returns the outcomes, separated by commas.
    pub(crate) async fn settle_all(&mut self, claimed: &[Claimed], verdict: &str) -> String {
        let delay = (verdict == "snooze").then_some(3600);
        let reason = (verdict != "ack").then_some("it says: no");
        let values = (deliveries(claimed), verdict, reason, delay);
        self.conn.exec_drop("CALL queue_settle(?, ?, ?, ?)", values).await.unwrap();
        self.conn.query_first("SELECT @queue_settled").await.unwrap().unwrap()
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        self.conn.query_drop(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Returns the number of the refusal.
    pub(crate) async fn refused(&mut self, sql: &str) -> u16 {
        let (number, state, text) = refusal(&mut self.conn, sql).await;
        assert_eq!(state, "45000", "{sql}: {text}");
        assert!(text.starts_with("queue: "), "{text}");
        number
    }
}

/// Returns the argument of `queue_settle`.
pub(crate) fn deliveries(claimed: &[Claimed]) -> String {
    let deliveries: Vec<_> = claimed.iter().map(|claimed| claimed.delivery.as_str()).collect();
    deliveries.join(",")
}

/// Returns the bodies as text, in order.
pub(crate) fn bodies(claimed: &[Claimed]) -> Vec<String> {
    claimed.iter().map(|claimed| claimed.body.clone()).collect()
}

async fn consumer(scene: &Scene) -> SqlConsumer {
    SqlConsumer::new(scene.db.url()).await
}

#[tokio::test]
async fn work_and_ack_commit_together_or_not_at_all() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let mut scene = Scene::new().await;
        scene.sql("CREATE TABLE booked (body VARCHAR(9) PRIMARY KEY) ENGINE = InnoDB").await;
        scene.enqueue(2).await;
        let mut consumer = consumer(&scene).await;
        consumer.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
        let claimed = consumer.claim(2).await;
        assert_eq!(bodies(&claimed), ["0", "1"], "{level}");
        for (end, left) in [("ROLLBACK", (2, 2, 1)), ("COMMIT", (1, 1, 1))] {
            consumer.run("START TRANSACTION").await;
            consumer.run("INSERT INTO booked VALUES ('0')").await;
            assert_eq!(consumer.settle(&claimed[0], "ack").await, "ack");
            consumer.run(end).await;
            assert_eq!(scene.hot().await, left, "{level}, {end}");
            let booked = scene.number("SELECT COUNT(*) FROM booked").await;
            assert_eq!(booked, 2 - left.0, "{level}, {end}");
        }
        // The last of its rows takes the claim with it, here in the call's own transaction.
        consumer.settle(&claimed[1], "ack").await;
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn a_delivery_has_all_that_was_enqueued() {
    let mut scene = Scene::new().await;
    let message = NewMessage::new(vec![0, 255, b'\'', b'\\'])
        .with_key(vec![255, 0])
        .with_biz_id("biz-å")
        .with_header("trace", "å")
        .with_priority(Priority::new(3).unwrap())
        .with_expiry(Duration::from_secs(3600));
    enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    let mut consumer = consumer(&scene).await;
    let row: Row =
        consumer.conn.query_first("CALL queue_claim('t', NULL, NULL)").await.unwrap().unwrap();
    assert_eq!(row.get::<String, _>("msg_id").unwrap(), message.msg_id.to_string());
    assert_eq!(row.get::<Vec<u8>, _>("body").unwrap(), message.body);
    assert_eq!(row.get::<Vec<u8>, _>("key").unwrap(), [255, 0]);
    assert_eq!(row.get::<String, _>("biz_id").unwrap(), "biz-å");
    assert_eq!(row.get::<String, _>("headers").unwrap(), r#"{"trace":"å"}"#);
    let numbers =
        ["delivery_no", "failures", "priority"].map(|name| row.get::<u32, _>(name).unwrap());
    assert_eq!(numbers, [1, 0, 3]);
    let age =
        "SELECT COUNT(*) FROM queue_message WHERE conn_id > 0 AND worker_id > 0 AND claim_no > 0";
    assert_eq!(scene.number(age).await, 1);
    let time = |name| row.get::<String, _>(name).unwrap();
    assert!(time("enqueued_at") < time("expires_at"));
}

#[tokio::test]
async fn messages_come_in_order_of_priority_and_insertion_and_to_one_session_each() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let urgent = NewMessage::new("urgent").with_priority(Priority::FIRST);
    enqueue(&mut scene.conn, &scene.topic.name, &urgent).await.unwrap();
    let (mut one, mut other) = (consumer(&scene).await, consumer(&scene).await);
    assert_eq!(bodies(&one.claim_and_keep(3).await), ["urgent"], "a claim is of one priority");
    assert_eq!(bodies(&one.claim(2).await), ["0", "1"]);
    let worker = scene.worker().await;
    let by_library = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(by_library[0].body, b"2");
    assert_eq!(bodies(&other.claim_and_keep(5).await), ["3"]);
    assert_eq!(bodies(&other.claim(5).await), numbers(0..0));
    let workers = "SELECT COUNT(DISTINCT worker_id) FROM queue_claim";
    assert_eq!(scene.number(workers).await, 3);
}

/// Rescue reads a claim from its first row to its last.
#[tokio::test]
async fn a_claim_has_no_row_that_is_far_from_its_first_one() {
    let mut scene = Scene::new().await;
    scene.enqueue(12).await;
    scene.sql("UPDATE queue_message SET id = id + 100000 ORDER BY id DESC LIMIT 1").await;
    let mut first = consumer(&scene).await;
    first.run("SET SESSION group_concat_max_len = 4").await;
    let near: Vec<_> = (0..11).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&first.claim(100).await), near);
    // The near ones are another session's: the far one is found behind them.
    first.run("CALL queue_leave()").await;
    // By their whole keys: a range may be read, and locked, beyond its end.
    let near = scene.text("SELECT GROUP_CONCAT(id) FROM queue_message WHERE id < 100000").await;
    scene.sql("BEGIN").await;
    let lock = format!(
        "SELECT id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = {} AND priority = 5 AND id IN ({near}) FOR UPDATE",
        scene.topic.id
    );
    scene.sql(&lock).await;
    assert_eq!(bodies(&consumer(&scene).await.claim(100).await), ["11"]);
}

/// One round looks where the next free row is, however many rows other sessions hold before it.
#[tokio::test]
async fn rows_that_others_hold_make_a_claim_neither_empty_nor_slow() {
    let mut scene = Scene::new().await;
    scene.enqueue(8).await;
    scene.sql("UPDATE queue_message SET id = id * 100000 ORDER BY id DESC").await;
    scene.sql("UPDATE queue_message SET priority = 9 ORDER BY id DESC LIMIT 2").await;
    let mut consumer = consumer(&scene).await;
    let beats = "SELECT CAST(COALESCE(MAX(beat_no), 0) AS SIGNED) FROM queue_worker";
    let topic = scene.topic.id.0;
    for (held, expected) in [(5, ["5"]), (6, ["6"])] {
        scene.sql("BEGIN").await;
        let rows =
            format!("topic_id = {topic} AND priority = 5 AND CAST(body AS UNSIGNED) < {held}");
        scene.sql(&format!("SELECT id FROM queue_message WHERE {rows} FOR UPDATE")).await;
        let before = scene.number(beats).await;
        let claimed = consumer.claim(10).await;
        assert_eq!(bodies(&claimed), expected, "{held}");
        let rounds = scene.number(beats).await - before;
        assert!(rounds <= 2, "{rounds} rounds, each with a commit");
        scene.sql("ROLLBACK").await;
        consumer.settle(&claimed[0], "release").await;
    }
}

/// MariaDB cuts off what it aggregates at the one, and refuses a list beside a table at the other.
#[tokio::test]
async fn a_session_may_bound_its_groups_and_ask_for_safe_updates() {
    let mut scene = Scene::new().await;
    scene.enqueue(1000).await;
    let mut consumer = consumer(&scene).await;
    consumer.run("SET SESSION group_concat_max_len = 4, sql_safe_updates = 1").await;
    let claimed = consumer.claim(1000).await;
    assert_eq!(claimed.len(), 1000);
    assert_eq!(consumer.settle_all(&claimed, "ack").await, vec!["ack"; 1000].join(","));
    let kept: Option<(u32, u32)> = consumer
        .conn
        .query_first("SELECT @@group_concat_max_len, @@sql_safe_updates")
        .await
        .unwrap();
    assert_eq!(kept, Some((4, 1)));
}

#[tokio::test]
async fn what_a_claim_has_passed_is_found_when_it_is_ready() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let (mut one, mut other) = (consumer(&scene).await, consumer(&scene).await);
    let passed = one.claim(2).await;
    assert_eq!(bodies(&other.claim_and_keep(1).await), ["2"]);
    // Given back: the floor reports it, so the claim finds it at once.
    one.settle(&passed[1], "release").await;
    assert_eq!(bodies(&other.claim_and_keep(1).await), ["1"]);
    // Freed by hand, which reports nothing.
    scene.sql("UPDATE queue_message SET worker_id = 0 WHERE body = '0'").await;
    let mut found = Vec::new();
    until("both are claimed", async || {
        found.extend(bodies(&other.claim_and_keep(1).await));
        found.len() == 2
    })
    .await;
    found.sort_unstable();
    assert_eq!(found, ["0", "3"]);
}

#[tokio::test]
async fn a_suspect_is_claimed_alone_by_a_session_that_holds_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let mut consumer = consumer(&scene).await;
    let held = consumer.claim_and_keep(1).await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE body = '2'").await;
    assert_eq!(bodies(&consumer.claim(5).await), ["1"], "not beside another");
    for claimed in held {
        consumer.settle(&claimed, "ack").await;
    }
    consumer.run("CALL queue_leave()").await;
    let suspect = consumer.claim_and_keep(5).await;
    assert_eq!((bodies(&suspect), suspect[0].priority), (vec!["2".to_owned()], 5));
    scene.enqueue(1).await;
    assert_eq!(bodies(&consumer.claim(5).await), numbers(0..0), "nothing beside a suspect");
    consumer.settle(&suspect[0], "ack").await;
    assert_eq!(consumer.claim(5).await.len(), 1);
}

#[tokio::test]
async fn nothing_is_handed_out_while_claims_are_paused() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut consumer = consumer(&scene).await;
    store::topic::set_access(&mut scene.conn, &scene.topic.name, Access::WriteOnly).await.unwrap();
    assert_eq!(consumer.claim(1).await.len(), 0);
    store::topic::set_access(&mut scene.conn, &scene.topic.name, Access::ReadWrite).await.unwrap();
    store::switch::set(&mut scene.conn, Access::Denied).await.unwrap();
    assert_eq!(consumer.claim(1).await.len(), 0);
    store::switch::set(&mut scene.conn, Access::ReadWrite).await.unwrap();
    assert_eq!(consumer.claim(1).await.len(), 1);
}

#[tokio::test]
async fn every_refusal_of_a_consumer_has_its_number_and_changes_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    scene.sql("INSERT INTO queue_topic (name, kind, partitions, created_at, updated_at) VALUES ('s', 'stream', 1, NOW(), NOW())").await;
    let mut consumer = consumer(&scene).await;
    let held = consumer.claim(1).await;
    let token = held[0].delivery.clone();
    let settle = |rest: &str| format!("CALL queue_settle('{token}', {rest})");
    for (call, number) in [
        ("CALL queue_claim('nowhere', NULL, NULL)".to_owned(), 31001),
        ("CALL queue_claim(NULL, NULL, NULL)".to_owned(), 31001),
        ("CALL queue_claim('s', NULL, NULL)".to_owned(), 31016),
        ("CALL queue_claim('t', 0, NULL)".to_owned(), 31017),
        ("CALL queue_claim('t', 1001, NULL)".to_owned(), 31017),
        ("CALL queue_claim('t', NULL, -1)".to_owned(), 31030),
        ("CALL queue_claim('t', NULL, 3601)".to_owned(), 31030),
        (settle("'done', NULL, NULL"), 31019),
        (settle("'ACK', NULL, NULL"), 31019),
        (settle("NULL, NULL, NULL"), 31019),
        (settle("'snooze', NULL, NULL"), 31021),
        (settle("'ack', NULL, 1"), 31021),
        (settle("'retry', NULL, -1"), 31021),
        (settle("'snooze', NULL, 315360001"), 31021),
        ("CALL queue_settle('1.2', 'ack', NULL, NULL)".to_owned(), 31022),
        ("CALL queue_settle(NULL, 'ack', NULL, NULL)".to_owned(), 31022),
        ("CALL queue_settle('1.2.3;', 'ack', NULL, NULL)".to_owned(), 31022),
        ("CALL queue_settle('1.2.3', 'ack', NULL, NULL)".to_owned(), 31015),
        ("CALL queue_settle('9999999999999999999.1.1', 'ack', NULL, NULL)".to_owned(), 31015),
    ] {
        assert_eq!(consumer.refused(&call).await, number, "{call}");
    }
    assert_eq!(scene.hot().await, (2, 1, 1));
    assert_eq!(consumer.settle(&held[0], "ack").await, "ack");
}

#[tokio::test]
async fn a_claim_within_a_transaction_is_refused_and_ends_it_not() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    scene.sql("CREATE TABLE booked (id INT PRIMARY KEY) ENGINE = InnoDB").await;
    let mut consumer = consumer(&scene).await;
    let held = consumer.claim(1).await;
    let release = format!("CALL queue_settle('{}', 'release', NULL, NULL)", held[0].delivery);
    for begin in ["START TRANSACTION", "SET autocommit = 0"] {
        consumer.run(begin).await;
        consumer.run("INSERT INTO booked VALUES (1)").await;
        for call in
            ["CALL queue_claim('t', 1, NULL)", "CALL queue_beat()", "CALL queue_leave()", &release]
        {
            assert_eq!(consumer.refused(call).await, 31014, "{begin}: {call}");
        }
        consumer.run("ROLLBACK").await;
        assert_eq!(scene.number("SELECT COUNT(*) FROM booked").await, 0, "{begin}");
    }
    // Without autocommit a settle is part of the caller's transaction.
    consumer.settle(&held[0], "ack").await;
    assert_eq!(scene.hot().await, (2, 1, 1));
    consumer.run("COMMIT").await;
    assert_eq!(scene.hot().await, (1, 0, 0));
}

#[tokio::test]
async fn a_settle_that_is_refused_undoes_itself_and_nothing_else() {
    let settings =
        TopicSettings { ledger_window: Some(Duration::from_secs(60)), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    scene.sql("CREATE TABLE booked (id INT PRIMARY KEY) ENGINE = InnoDB").await;
    for body in ["a", "b"] {
        let message = NewMessage::new(body).with_biz_id("same");
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    }
    let mut consumer = consumer(&scene).await;
    let held = consumer.claim(2).await;
    assert_eq!(held.len(), 2);
    consumer.settle(&held[0], "ack").await;
    consumer.run("START TRANSACTION").await;
    consumer.run("INSERT INTO booked VALUES (1)").await;
    let ack = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", held[1].delivery);
    assert_eq!(consumer.refused(&ack).await, 31023);
    consumer.run("ROLLBACK").await;
    assert_eq!(scene.hot().await, (1, 1, 1));
    consumer.settle(&held[1], "ack").await;
    assert_eq!(scene.hot().await, (0, 0, 0));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 1);
}

#[tokio::test]
async fn what_expired_or_was_handled_before_is_settled_and_not_handed_out() {
    let settings =
        TopicSettings { ledger_window: Some(Duration::from_secs(60)), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let mut consumer = consumer(&scene).await;
    for body in ["first", "again", "expired", "expired", "live"] {
        let mut message = NewMessage::new(body);
        if body != "live" && body != "expired" {
            message = message.with_biz_id("same");
        }
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    }
    scene
        .sql("UPDATE queue_message SET expires_at = UTC_TIMESTAMP(6) WHERE body = 'expired'")
        .await;
    let first = consumer.claim(1).await;
    consumer.settle(&first[0], "ack").await;
    // Even with a limit of 1.
    assert_eq!(bodies(&consumer.claim(1).await), ["live"]);
    assert_eq!(scene.hot().await, (1, 1, 1));
    let discarded = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'discarded' \
         AND reason = 'it had expired before its handler could begin'";
    assert_eq!(scene.number(discarded).await, 2);
}

#[tokio::test]
async fn a_session_says_its_lease_to_the_server_and_takes_it_back_when_it_leaves() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = consumer(&scene).await;
    let timeouts =
        "SELECT CONCAT(@@wait_timeout, ' ', @@net_write_timeout, ' ', @@net_read_timeout)";
    let before: Option<String> = consumer.conn.query_first(timeouts).await.unwrap();
    for (lease, seconds) in [("NULL", 60), ("30", 30), ("NULL", 60), ("7", 7)] {
        consumer.run(&format!("SET @queue_lease = {lease}")).await;
        consumer.run("CALL queue_claim('t', 1, NULL)").await;
        let now: Option<String> = consumer.conn.query_first(timeouts).await.unwrap();
        assert_eq!(now, Some(format!("{seconds} {seconds} {seconds}")), "{lease}");
        let told = scene.number("SELECT lease_ms FROM queue_worker").await;
        assert_eq!(told, seconds * 1000);
    }
    for lease in ["2", "86401", "'a minute'"] {
        consumer.run(&format!("SET @queue_lease = {lease}")).await;
        assert_eq!(consumer.refused("CALL queue_claim('t', 1, NULL)").await, 31018, "{lease}");
    }
    let beat = scene.number("SELECT beat_no FROM queue_worker").await;
    consumer.run("CALL queue_beat()").await;
    assert_eq!(scene.number("SELECT beat_no FROM queue_worker").await, beat + 1);
    consumer.run("CALL queue_leave()").await;
    assert_eq!(consumer.conn.query_first::<String, _>(timeouts).await.unwrap(), before);
    assert_eq!(scene.text("SELECT state FROM queue_worker").await, "stopped");
    assert_eq!(consumer.refused("CALL queue_beat()").await, 31015);
    consumer.run("CALL queue_leave()").await;
}

#[tokio::test]
async fn an_account_with_the_right_to_claim_sees_only_what_it_claims() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut consumer = SqlConsumer::new(&scene.db.account_of(Account::Claimer).await).await;
    let claimed = consumer.claim(1).await;
    let (code, ..) = refusal(&mut consumer.conn, "SELECT body FROM queue_message").await;
    assert_eq!(code, 1142);
    consumer.run("CALL queue_beat()").await;
    consumer.settle(&claimed[0], "ack").await;
    consumer.run("CALL queue_leave()").await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

/// H21: connection ids restart with the server, and a new session has the id of a dead one.
#[tokio::test]
async fn a_session_with_the_id_of_an_earlier_one_has_nothing_of_its_claims() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut earlier = consumer(&scene).await;
    let held = earlier.claim(1).await;
    let mut later = consumer(&scene).await;
    let id: u64 = later.conn.query_first("SELECT CONNECTION_ID()").await.unwrap().unwrap();
    scene.sql(&format!("UPDATE queue_worker SET conn_id = {id}, life_conn_id = {id}")).await;
    scene.sql(&format!("UPDATE queue_claim SET conn_id = {id}")).await;
    let ack = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", held[0].delivery);
    assert_eq!(later.refused(&ack).await, 31015);
    assert_eq!(bodies(&later.claim(2).await), ["1"]);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_worker").await, 2);
    assert_eq!(scene.hot().await, (2, 2, 2));
}
