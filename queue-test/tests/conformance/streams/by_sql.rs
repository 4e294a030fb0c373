//! Groups that are read by SQL: `CALL queue_claim('s@g', …)`, beside members of the library and
//! alone.

mod filters;
mod killed;
mod loss;
mod ordered;

use std::slice;
use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::transaction;
use rowmq_core::model::{OffsetSpec, Settlement, TopicSettings};
use rowmq_core::stream::group::group_settings;
use rowmq_core::{NewMessage, enqueue_all, stream};
use rowmq_test::until;

use super::pages::full;
use super::{Stream, claim_n};
use crate::scene::{all, numbers, settle, text, threads};
use crate::sql_consumer::{SqlConsumer, bodies};
use crate::sql_plans::read_so_far;

impl Stream {
    pub(super) async fn session(&self) -> SqlConsumer {
        SqlConsumer::new(self.db.url()).await
    }

    /// Returns how many messages the group has in its own topic, how many of them are claimed, how
    /// many ranges it has, and what it has lost.
    pub(super) async fn of_group(&mut self) -> (i64, i64, i64, i64) {
        (
            self.number("SELECT COUNT(*) FROM queue_message").await,
            self.number("SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0").await,
            self.number("SELECT COUNT(*) FROM queue_range").await,
            self.number("SELECT COALESCE(SUM(lost), 0) FROM queue_cursor").await,
        )
    }
}

impl SqlConsumer {
    /// Claims from the group and acks until nothing comes; returns the bodies.
    pub(super) async fn drain(&mut self, group: &str, limit: u32) -> Vec<String> {
        let (mut got, mut empty) = (Vec::new(), 0);
        // A claim that only passes what the group does not want returns nothing.
        while empty < 3 {
            let claimed = self.claim_of(group, limit).await;
            assert!(claimed.len() <= limit as usize);
            empty = if claimed.is_empty() { empty + 1 } else { 0 };
            if !claimed.is_empty() {
                self.settle_all(&claimed, "ack").await;
            }
            got.extend(bodies(&claimed));
        }
        got
    }
}

fn sorted(mut bodies: Vec<String>) -> Vec<String> {
    bodies.sort_by_key(|body| body.parse::<u64>().unwrap());
    bodies
}

#[tokio::test]
async fn a_session_gets_messages_of_pages_and_rows_with_all_that_they_had() {
    let mut stream = Stream::in_rows(1).await;
    stream.group("g", false).await;
    let sent: Vec<_> = (0..300).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent[..100]).await.unwrap();
    stream.sequence().await;
    stream.sql("UPDATE queue_partition SET pages = TRUE").await;
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent[100..200]).await.unwrap();
    stream.sequence().await;
    let id = stream.topic.id;
    let append = async |conn: &mut _| stream::append(conn, id, &sent[200..]).await;
    assert!(transaction(&mut stream.conn, "test", append).await.unwrap().in_log);
    let mut session = stream.session().await;
    let mut rows: Vec<Row> = Vec::new();
    // Claims that begin and end within pages.
    for n in [1, 70, 29, 80, 200] {
        let call = format!("CALL queue_claim('s@g', {n}, NULL)");
        let claimed: Vec<Row> = session.conn.query(call).await.unwrap();
        let deliveries: Vec<String> =
            claimed.iter().map(|row| row.get("delivery").unwrap()).collect();
        let ack = "CALL queue_settle(?, 'ack', NULL, NULL)";
        session.conn.exec_drop(ack, (deliveries.join(","),)).await.unwrap();
        rows.extend(claimed);
    }
    assert_eq!(rows.len(), 300);
    for (row, message) in rows.iter().zip(&sent) {
        let bytes = |name: &str| row.get::<Option<Vec<u8>>, _>(name).unwrap();
        assert_eq!(row.get::<String, _>("msg_id").unwrap(), message.msg_id.to_string());
        assert_eq!((bytes("key"), bytes("biz_id")), (message.key.clone(), message.biz_id.clone()));
        let headers = (!message.headers.is_empty()).then(|| br#"{"a":"b"}"#.to_vec());
        assert_eq!((bytes("headers"), bytes("body")), (headers, Some(message.body.clone())));
        let life = |name| row.get::<Option<String>, _>(name).unwrap();
        assert_eq!(life("expires_at").is_some(), message.expires.is_some());
        assert!(life("expires_at").is_none_or(|end| end > life("enqueued_at").unwrap()));
        let counts = ["delivery_no", "failures", "priority"].map(|name| row.get::<u32, _>(name));
        assert_eq!(counts, [Some(1), Some(0), Some(5)]);
    }
    let wrong = "SELECT COUNT(*) FROM queue_log l JOIN queue_archive a ON a.msg_id = l.msg_id";
    assert_eq!(stream.number(wrong).await, 0);
    assert_eq!(stream.of_group().await, (0, 0, 0, 0));
}

/// No member of the library and no janitor is there.
#[tokio::test]
async fn sessions_sequence_and_share_a_group() {
    let mut stream = Stream::new(4).await;
    stream.group("g", false).await;
    stream.group("h", false).await;
    let keyed = |n: usize| NewMessage::new(n.to_string()).with_key(format!("key {}", n % 7));
    let sent: Vec<_> = (0..300).map(keyed).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    let (mut a, mut b) = (stream.session().await, stream.session().await);
    let (first, second) = (a.claim_of("s@g", 20).await, b.claim_of("s@g", 20).await);
    assert_eq!((first.len(), second.len()), (20, 20));
    let mut got = [bodies(&first), bodies(&second)].concat();
    a.settle_all(&first, "ack").await;
    b.settle_all(&second, "ack").await;
    // A claim comes back empty while another session has the partition locked.
    until("all is drained", async || {
        let (of_a, of_b) = tokio::join!(a.drain("s@g", 20), b.drain("s@g", 20));
        got.extend(of_a.into_iter().chain(of_b));
        got.len() >= 300
    })
    .await;
    let everything: Vec<_> = (0..300).map(|n| n.to_string()).collect();
    assert_eq!(sorted(got), everything);
    assert_eq!(sorted(a.drain("s@h", 1000).await), everything, "the other group, too");
    // The log is as the library's sequencer writes it.
    let logged = stream.logged().await;
    stream.assert_dense(&logged).await;
    assert_eq!(logged.len(), 300);
    let place = "SELECT COUNT(*) FROM queue_log WHERE partition_no <> CRC32(ordering_key) MOD 4";
    assert_eq!(stream.number(place).await, 0);
    let order = "SELECT COUNT(*) FROM queue_log a JOIN queue_log b ON b.ordering_key = a.ordering_key \
        AND b.offset_no > a.offset_no AND CAST(b.body AS UNSIGNED) < CAST(a.body AS UNSIGNED)";
    assert_eq!(stream.number(order).await, 0);
    assert_eq!(stream.of_group().await, (0, 0, 0, 0));
}

#[tokio::test]
async fn sessions_and_members_sequence_together() {
    let mut stream = Stream::new(3).await;
    let group = stream.group("g", false).await;
    let mut session = stream.session().await;
    let worker = stream.worker().await;
    let mut got = Vec::new();
    for round in 0..20 {
        stream.enqueue(round * 50..round * 50 + 50).await;
        let of_worker = worker.claim_range(group.group().unwrap(), 20);
        let (of_worker, of_session) = tokio::join!(of_worker, session.claim_of("s@g", 20));
        let of_worker = of_worker.unwrap().deliveries;
        got.extend(crate::scene::bodies(&of_worker));
        settle(&worker, all(&of_worker, &Settlement::Ack)).await;
        if !of_session.is_empty() {
            session.settle_all(&of_session, "ack").await;
        }
        got.extend(bodies(&of_session));
    }
    got.extend(session.drain("s@g", 100).await);
    let of_worker = claim_n(&worker, &group, 0).await;
    assert!(of_worker.is_empty());
    let everything: Vec<_> = (0..1000).map(|n| n.to_string()).collect();
    assert_eq!(sorted(got), everything);
    let logged = stream.logged().await;
    stream.assert_dense(&logged).await;
}

#[tokio::test]
async fn what_becomes_of_a_message_is_as_in_a_queue() {
    let mut stream = Stream::new(1).await;
    let settings = TopicSettings {
        max_attempts: 2,
        ledger_window: Some(Duration::from_secs(3600)),
        ..group_settings()
    };
    stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
    let message = |n: usize| NewMessage::new(n.to_string()).with_biz_id(format!("b{}", n % 5));
    let sent: Vec<_> = (0..10).map(message).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    let mut session = stream.session().await;
    session.run("CREATE TABLE booked (body VARCHAR(9) PRIMARY KEY) ENGINE = InnoDB").await;
    let held = session.claim_of("s@g", 5).await;
    // Work and ack commit together.
    session.run("START TRANSACTION").await;
    session.run("INSERT INTO booked VALUES ('0')").await;
    session.settle(&held[0], "ack").await;
    session.run("COMMIT").await;
    assert_eq!(session.settle(&held[1], "retry").await, "retry");
    assert_eq!(session.settle(&held[2], "dead-letter").await, "dead-letter");
    assert_eq!(session.settle(&held[3], "discard").await, "discard");
    assert_eq!(session.settle(&held[4], "release").await, "release");
    // The biz id of the sixth message is that of the one that was acked.
    assert_eq!(bodies(&session.claim_of("s@g", 1).await), ["4"]);
    session.run("CALL queue_leave()").await;
    let mut session = stream.session().await;
    assert_eq!(bodies(&session.claim_of("s@g", 10).await), ["6", "7", "8", "9"]);
    let of = |table: &str| {
        format!(
            "SELECT COUNT(*) FROM {table} WHERE topic_id = (SELECT id FROM queue_topic WHERE name = 's@g')"
        )
    };
    for (table, n) in
        [("queue_scheduled", 1), ("queue_dead", 1), ("queue_archive", 1), ("queue_ledger", 1)]
    {
        assert_eq!(stream.number(&of(table)).await, n, "{table}");
    }
    // The second failure of the retried message is its last one.
    stream.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    crate::moves::promote(&mut stream.conn, 10).await;
    let mut other = stream.session().await;
    let again = other.claim_of("s@g", 1).await;
    assert_eq!(bodies(&again), ["1"]);
    assert_eq!(other.settle(&again[0], "retry").await, "dead-letter");
}

/// With the same filter, a session and a member of the library want the same.
#[tokio::test]
async fn a_session_takes_over_ranges_that_were_given_back() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..100).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 40).await;
    // A transaction has acked the sixth message, and the owner has died alone with the first.
    stream.sql("INSERT INTO queue_passed SELECT MIN(id), 5 FROM queue_range").await;
    let freed = "UPDATE queue_range SET worker_id = 0, claim_no = 0, conn_id = 0, failures = 2, crashes = 1, history = 'h'";
    stream.sql(freed).await;
    let mut session = stream.session().await;
    let first = session.claim_of("s@g", 3).await;
    assert_eq!(bodies(&first), numbers(0..3));
    let past = "SELECT GROUP_CONCAT(CONCAT_WS(' ', failures, crashes, delivery_no, history) ORDER BY id) FROM queue_message";
    assert_eq!(text(&mut stream.conn, past).await, "2 1 2 h,0 0 2,0 0 2");
    session.settle_all(&first, "ack").await;
    let rest: Vec<_> = (3..100).filter(|n| *n != 5).map(|n| n.to_string()).collect();
    assert_eq!(sorted(session.drain("s@g", 30).await), rest);
    assert_eq!(stream.of_group().await, (0, 0, 0, 0));
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_passed").await, 0);
}

#[tokio::test]
async fn messages_of_a_suspect_range_are_claimed_alone() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..10).await;
    stream.sequence().await;
    claim_n(&stream.worker().await, &group, 4).await;
    let suspect = "suspicions = 2, worker_id = 0, claim_no = 0, conn_id = 0";
    stream.sql(&format!("UPDATE queue_range SET {suspect}")).await;
    let mut session = stream.session().await;
    let mut got = Vec::new();
    until("each is claimed", async || {
        let claimed = session.claim_of("s@g", 10).await;
        let suspects = claimed.iter().filter(|it| it.body.parse::<u32>().unwrap() < 4).count();
        assert!(suspects == 0 || claimed.len() == 1, "{claimed:?}");
        if !claimed.is_empty() {
            session.settle_all(&claimed, "ack").await;
        }
        got.extend(bodies(&claimed));
        got.len() == 10
    })
    .await;
    assert_eq!(sorted(got), numbers(0..10));
}

/// After a mass crash there may be thousands of suspects.
#[tokio::test]
async fn new_messages_have_their_turn_between_suspects() {
    let mut stream = Stream::new(1).await;
    stream.group("g", false).await;
    stream.enqueue(0..3).await;
    let mut session = stream.session().await;
    let held = session.claim_of("s@g", 3).await;
    session.settle_all(&held, "release").await;
    stream.sql("UPDATE queue_message SET priority = 105").await;
    stream.enqueue(3..5).await;
    let mut got = Vec::new();
    for _ in 0..2 {
        let claimed = session.claim_of("s@g", 1).await;
        session.settle_all(&claimed, "ack").await;
        got.extend(bodies(&claimed));
    }
    assert_eq!(got, ["0", "3"]);
}

/// A session at the servers' default isolation level, and a delivery of a queue.
#[tokio::test]
async fn an_open_transaction_with_a_checkpoint_holds_up_no_group() {
    let mut stream = Stream::new(2).await;
    stream.group("g", true).await;
    stream.db.topic("t").await;
    stream.enqueue(0..4).await;
    let (mut session, mut other) = (stream.session().await, stream.session().await);
    session.run("CALL queue_send('t', 'x', NULL)").await;
    let held = session.claim(1).await;
    session.run("START TRANSACTION").await;
    session.run(&format!("CALL queue_checkpoint('{}', 'page 1', 5)", held[0].delivery)).await;
    other.run("SET SESSION innodb_lock_wait_timeout = 1").await;
    let first = other.claim_of("s@g", 1).await;
    assert_eq!(other.settle_all(&first, "ack").await, "ack");
    assert_eq!(session.settle(&held[0], "ack").await, "ack");
    session.run("COMMIT").await;
}

#[tokio::test]
async fn a_locked_partition_keeps_sessions_from_sequencing_no_other() {
    let mut stream = Stream::new(2).await;
    stream.group("g", false).await;
    stream.enqueue(0..40).await;
    stream.sql("START TRANSACTION; SELECT next_offset FROM queue_partition WHERE partition_no = 0 FOR UPDATE").await;
    let mut session = stream.session().await;
    assert_eq!(session.drain("s@g", 50).await.len(), 20);
    stream.sql("ROLLBACK").await;
    assert_eq!(session.drain("s@g", 50).await.len(), 20);
}

/// On MariaDB a KILL can hide rows of a range, and what is not seen would be passed.
#[tokio::test]
async fn a_pause_of_the_stream_or_the_group_stops_its_sessions() {
    let mut stream = Stream::new(1).await;
    stream.group("g", false).await;
    stream.enqueue(0..1).await;
    let mut session = stream.session().await;
    for name in ["s", "s@g"] {
        let set = |paused| {
            format!("UPDATE queue_topic SET claim_paused = {paused} WHERE name = '{name}'")
        };
        stream.sql(&set(true)).await;
        assert!(session.claim_of("s@g", 1).await.is_empty(), "{name}");
        stream.sql(&set(false)).await;
    }
    assert_eq!(session.claim_of("s@g", 1).await.len(), 1);
}

/// Larger transactions hold up replication.
#[tokio::test]
async fn a_session_sequences_at_most_sixteen_megabytes_in_one_transaction() {
    let mut stream = Stream::new(1).await;
    stream.group("g", false).await;
    let large = NewMessage::new(vec![b'x'; 4 * 1024 * 1024]);
    for _ in 0..5 {
        enqueue_all(&mut stream.conn, &stream.topic.name, slice::from_ref(&large)).await.unwrap();
    }
    let mut session = stream.session().await;
    assert_eq!(session.claim_of("s@g", 1).await.len(), 1);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_log").await, 4);
}

/// No bell rings when the other session is done.
#[tokio::test]
async fn a_claim_beside_another_does_not_wait_for_its_bell() {
    for ordered in [false, true] {
        let mut stream = Stream::new(1).await;
        stream.group("g", ordered).await;
        stream.enqueue(0..1).await;
        stream.sequence().await;
        let mut session = stream.session().await;
        stream.sql("START TRANSACTION; SELECT next_offset FROM queue_cursor FOR UPDATE").await;
        assert!(session.claim_of("s@g", 1).await.is_empty());
        let id = session.id().await;
        let bell = format!(
            "SELECT GET_LOCK(CONCAT('queue:', LOWER(HEX(instance)), ':bell'), 0) FROM queue_worker WHERE conn_id = {id} AND state = 'alive'"
        );
        assert_eq!(stream.number(&bell).await, 1);
        let script = async {
            until("it looks by itself", async || {
                threads(&mut stream.conn)
                    .await
                    .iter()
                    .any(|thread| thread.id == id && thread.sleeps)
            })
            .await;
            stream.sql("ROLLBACK").await;
        };
        let call = until("it has claimed", async || {
            let call = "CALL queue_claim('s@g', 1, 3600)";
            session.conn.query::<Row, _>(call).await.unwrap().len() == 1
        });
        tokio::join!(call, script);
    }
}

#[tokio::test]
async fn a_session_that_waits_gets_what_is_sent() {
    for ordered in [false, true] {
        let mut stream = Stream::new(2).await;
        stream.group("g", ordered).await;
        let mut session = stream.session().await;
        let script = async {
            let waits = "SELECT COUNT(*) FROM queue_worker WHERE topics IS NOT NULL";
            until("it waits", async || stream.number(waits).await == 1).await;
            stream.enqueue(0..1).await;
        };
        let wait = "CALL queue_claim('s@g', 1, 3600)";
        let (rows, _) = tokio::join!(session.conn.query::<Row, _>(wait), script);
        assert_eq!(rows.unwrap().len(), 1, "ordered: {ordered}");
    }
}

/// H13: what the calls read does not grow with the log, the other groups and the other ranges.
#[tokio::test]
async fn the_calls_read_by_key_however_much_there_is() {
    for ordered in [false, true] {
        let mut stream = Stream::new(1).await;
        stream.group("g", ordered).await;
        stream.enqueue(0..20_000).await;
        while stream.sequence().await > 0 {}
        let other = "INSERT INTO queue_range (group_id, partition_no, mark, hi) \
            SELECT 77, 0, offset_no, offset_no + 1 FROM queue_log";
        stream.sql(other).await;
        let passed = "INSERT INTO queue_passed (range_id, offset_no) \
            SELECT r.id, l.offset_no FROM queue_range r, queue_log l WHERE r.mark < 1000";
        stream.sql(passed).await;
        stream.sql("UPDATE queue_cursor SET next_offset = 10000").await;
        let mut session = stream.session().await;
        session.claim_of("s@g", 1).await;
        let mut before = read_so_far(&mut session).await;
        for verdict in ["ack", "retry"] {
            let claimed = session.claim_of("s@g", 1).await;
            let claim = read_so_far(&mut session).await;
            assert!(claim - before <= 600, "a claim has read {} rows", claim - before);
            session.settle_all(&claimed, verdict).await;
            before = read_so_far(&mut session).await;
            assert!(before - claim <= 400, "{verdict} has read {} rows", before - claim);
        }
    }
}
