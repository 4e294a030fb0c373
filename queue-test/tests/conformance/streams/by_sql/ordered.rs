//! Ordered groups that are read by SQL: one message of a partition at a time, and none overtakes a
//! failure.

use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::model::{OffsetSpec, OnDone, PartitionNo, Settlement, TopicSettings};
use rowmq_core::rescue::{Why, take_range_back};
use rowmq_core::store::stream::range::of_partition;
use rowmq_core::store::topic;
use rowmq_core::stream::group::{group_settings, reset_group};
use rowmq_core::{NewMessage, Topic, enqueue_all};
use rowmq_test::until;

use super::super::filters::wanting;
use super::super::{Stream, claim_n};
use crate::scene::{all, settle, text};
use crate::sql_consumer::{Claimed, SqlConsumer, bodies};

impl Stream {
    async fn ordered(&mut self, settings: &TopicSettings) -> Topic {
        self.group_with("g", true, OffsetSpec::Earliest, settings).await
    }

    /// Makes what waits for its retry due.
    async fn make_due(&mut self) {
        self.sql("UPDATE queue_range SET ready_at = UTC_TIMESTAMP(6)").await;
    }

    /// Returns the rows that the group's messages have outside of the log.
    async fn rows(&mut self) -> String {
        let rows = "SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM queue_message), \
            (SELECT COUNT(*) FROM queue_claim), (SELECT COUNT(*) FROM queue_scheduled), \
            (SELECT COUNT(*) FROM queue_dead), (SELECT COUNT(*) FROM queue_archive), \
            (SELECT COUNT(*) FROM queue_range))";
        text(&mut self.conn, rows).await
    }
}

/// Claims one message of the group; `None`: there is none.
async fn one(session: &mut SqlConsumer) -> Option<Claimed> {
    session.claim_of("s@g", 10).await.pop()
}

#[tokio::test]
async fn messages_of_a_partition_come_one_after_the_other() {
    let mut stream = Stream::new(1).await;
    stream.ordered(&group_settings()).await;
    stream.enqueue(0..5).await;
    let (mut a, mut b) = (stream.session().await, stream.session().await);
    a.run("SET SESSION sql_safe_updates = 1, group_concat_max_len = 4").await;
    for n in 0..5 {
        let held = one(&mut a).await.unwrap();
        assert_eq!(held.body, n.to_string());
        assert!(one(&mut b).await.is_none(), "the partition is held");
        assert_eq!(stream.rows().await, "0 0 0 0 0 1");
        // Work and ack commit together, or not at all.
        a.run("START TRANSACTION").await;
        assert_eq!(a.settle(&held, "ack").await, "ack");
        a.run("ROLLBACK").await;
        assert!(one(&mut b).await.is_none(), "the partition is held");
        assert_eq!(a.settle(&held, "ack").await, "ack");
        assert_eq!(stream.rows().await, "0 0 0 0 0 0");
    }
    assert!(one(&mut a).await.is_none());
    assert_eq!(stream.number("SELECT CAST(done AS SIGNED) FROM queue_throughput").await, 5);
}

#[tokio::test]
async fn nothing_overtakes_a_failure() {
    let mut stream = Stream::new(1).await;
    let settings = TopicSettings { max_attempts: 3, ..group_settings() };
    stream.ordered(&settings).await;
    stream.enqueue(0..4).await;
    let mut session = stream.session().await;
    let mut failures = 0;
    for (verdict, becomes, charged) in [
        ("retry", "retry", 1),
        ("snooze", "snooze", 0),
        ("release", "release", 0),
        ("retry", "retry", 1),
    ] {
        let held = one(&mut session).await.unwrap();
        assert_eq!(held.body, "0");
        assert_eq!(session.settle(&held, verdict).await, becomes);
        failures += charged;
        if verdict != "release" {
            assert!(one(&mut session).await.is_none(), "{verdict}: it waits");
            stream.make_due().await;
        }
        let kept = "SELECT CAST(failures AS SIGNED) FROM queue_range";
        assert_eq!(
            (stream.number(kept).await, stream.rows().await),
            (failures, "0 0 0 0 0 1".to_owned())
        );
    }
    let history = text(&mut stream.conn, "SELECT history FROM queue_range").await;
    assert_eq!(history.matches("it says: no").count(), 2, "{history}");
    // Its third failure is its last one; the next message follows.
    let held = one(&mut session).await.unwrap();
    assert_eq!(session.settle(&held, "retry").await, "dead-letter");
    let dead = "SELECT CONCAT_WS(' ', body, failures, cause, delivery_no, LENGTH(history) - LENGTH(REPLACE(history, 'it says', ''))) FROM queue_dead";
    assert_eq!(text(&mut stream.conn, dead).await, "0 3 attempts 5 21");
    let held = one(&mut session).await.unwrap();
    assert_eq!(
        (held.body.as_str(), session.settle(&held, "discard").await),
        ("1", "discard".to_owned())
    );
    let held = one(&mut session).await.unwrap();
    assert_eq!(
        (held.body.as_str(), session.settle(&held, "dead-letter").await),
        ("2", "dead-letter".to_owned())
    );
    assert_eq!(one(&mut session).await.unwrap().body, "3");
    assert_eq!(stream.rows().await, "0 0 0 2 1 1");
}

/// By members of the library and sessions, over several partitions.
#[tokio::test]
async fn keys_keep_their_order_in_every_consumer() {
    let mut stream = Stream::new(3).await;
    let group = stream.ordered(&group_settings()).await;
    let keyed = |n: usize| NewMessage::new(n.to_string()).with_key(format!("key {}", n % 11));
    let sent: Vec<_> = (0..200).map(keyed).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    let (mut a, mut b) = (stream.session().await, stream.session().await);
    let worker = stream.worker().await;
    let (mut got, mut turn) = (Vec::<usize>::new(), 0);
    let mut from = HashMap::<&str, usize>::new();
    until("all are handled", async || {
        turn += 1;
        for (name, session) in [("a", &mut a), ("b", &mut b)] {
            let Some(held) = one(session).await else { continue };
            let fails = turn % 9 == 0;
            session.settle(&held, if fails { "release" } else { "ack" }).await;
            if !fails {
                got.push(held.body.parse().unwrap());
                *from.entry(name).or_default() += 1;
            }
        }
        let claimed = worker.claim_range(group.group().unwrap(), 3).await.unwrap().deliveries;
        got.extend(crate::scene::bodies(&claimed).iter().map(|it| it.parse::<usize>().unwrap()));
        settle(&worker, all(&claimed, &Settlement::Ack)).await;
        *from.entry("worker").or_default() += claimed.len();
        got.len() == 200
    })
    .await;
    assert!(from.values().all(|n| *n > 5), "{from:?}");
    for key in 0..11 {
        let of_key: Vec<_> = got.iter().filter(|n| **n % 11 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

#[tokio::test]
async fn what_a_member_holds_back_waits_for_sessions_too_and_goes_on_with_its_past() {
    let mut stream = Stream::new(1).await;
    let group = stream.ordered(&group_settings()).await;
    stream.enqueue(0..6).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    let held = claim_n(&worker, &group, 6).await;
    let failed = Settlement::Retry { delay: Duration::from_secs(60), error: "no".to_owned() };
    worker.settle(all(&held[..1], &Settlement::Ack)).await.unwrap();
    worker.settle(all(&held[1..2], &failed)).await.unwrap();
    let mut session = stream.session().await;
    until("the member has given its range back", async || {
        stream.number("SELECT COUNT(*) FROM queue_range WHERE worker_id = 0").await == 1
    })
    .await;
    assert!(one(&mut session).await.is_none());
    stream.make_due().await;
    let again = one(&mut session).await.unwrap();
    assert_eq!(again.body, "1");
    let ranges = "SELECT GROUP_CONCAT(CONCAT_WS(' ', mark, hi, failures, worker_id <> 0) ORDER BY mark) FROM queue_range";
    assert_eq!(text(&mut stream.conn, ranges).await, "1 2 1 1,2 6 0 0");
    // A transaction had acked a message of the rest.
    let passed = "INSERT INTO queue_passed SELECT id, 3 FROM queue_range WHERE worker_id = 0";
    stream.sql(passed).await;
    session.settle(&again, "ack").await;
    let rest = session.drain("s@g", 10).await;
    assert_eq!(rest, ["2", "4", "5"]);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_passed").await, 0);
    assert_eq!(stream.rows().await, "0 0 0 0 0 0");
}

#[tokio::test]
async fn a_message_of_a_dead_session_is_claimed_again_before_those_behind_it() {
    let mut stream = Stream::new(1).await;
    let group = stream.ordered(&group_settings()).await;
    stream.enqueue(0..3).await;
    let mut died = stream.session().await;
    let held = one(&mut died).await.unwrap();
    for (crash, suspicions) in
        [(Why::Crashed { rows_held: 2 }, 1), (Why::Crashed { rows_held: 2 }, 2)]
    {
        stream.sql("UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6)").await;
        let ranges = of_partition(&mut stream.conn, group.id, PartitionNo(0)).await.unwrap();
        take_range_back(&mut stream.conn, &ranges[0], crash).await.unwrap();
        assert_eq!(
            stream.number("SELECT CAST(suspicions AS SIGNED) FROM queue_range").await,
            suspicions
        );
        let late = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", held.delivery);
        assert_eq!(died.refused(&late).await, 31015);
        assert_eq!(one(&mut stream.session().await).await.unwrap().body, "0");
    }
    stream.sql("UPDATE queue_range SET worker_id = 0").await;
    let mut session = stream.session().await;
    // Alone now: not beside another claim.
    stream.group_with("h", false, OffsetSpec::Earliest, &group_settings()).await;
    let other = session.claim_of("s@h", 1).await;
    session.run("START TRANSACTION").await;
    session.settle_all(&other, "ack").await;
    session.run("ROLLBACK").await;
    assert!(one(&mut session).await.is_none());
    session.settle_all(&other, "ack").await;
    let suspect = one(&mut session).await.unwrap();
    assert_eq!((suspect.body.as_str(), suspect.priority), ("0", 5));
    assert!(session.claim_of("s@h", 1).await.is_empty(), "nothing beside a suspect");
    assert_eq!(session.settle(&suspect, "ack").await, "ack");
    assert_eq!(one(&mut session).await.unwrap().body, "1");
}

#[tokio::test]
async fn an_answer_that_never_came_is_given_back_by_the_next_claim() {
    let mut stream = Stream::new(1).await;
    stream.ordered(&group_settings()).await;
    stream.enqueue(0..2).await;
    let mut session = stream.session().await;
    let first = one(&mut session).await.unwrap();
    let again = one(&mut session).await.unwrap();
    assert_eq!((first.body.as_str(), again.body.as_str()), ("0", "0"));
    assert_ne!(first.delivery, again.delivery);
    let late = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", first.delivery);
    assert_eq!(session.refused(&late).await, 31015);
    session.settle(&again, "ack").await;
    assert_eq!(one(&mut session).await.unwrap().body, "1");
}

#[tokio::test]
async fn a_reset_fences_a_session() {
    let mut stream = Stream::new(1).await;
    let group = stream.ordered(&group_settings()).await;
    stream.enqueue(0..3).await;
    let mut session = stream.session().await;
    let first = one(&mut session).await.unwrap();
    session.settle(&first, "ack").await;
    let held = one(&mut session).await.unwrap();
    reset_group(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap();
    let late = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", held.delivery);
    assert_eq!(session.refused(&late).await, 31015);
    assert_eq!(session.drain("s@g", 1).await, ["0", "1", "2"]);
}

#[tokio::test]
async fn what_is_expired_repeated_unwanted_or_damaged_holds_nothing_back() {
    let mut stream = Stream::new(1).await;
    let window = Some(Duration::from_secs(3600));
    let settings = TopicSettings { ledger_window: window, ..wanting(&["type"]) };
    stream.ordered(&settings).await;
    let wanted = |body: &str| NewMessage::new(body).with_header("type", "x");
    let mut sent = vec![wanted("first").with_biz_id("b")];
    sent.extend((1..64).map(|n: usize| NewMessage::new(n.to_string())));
    sent.extend((0..64).map(|_| wanted("damaged")));
    sent.push(wanted("expired").with_expiry(Duration::from_micros(1)));
    sent.push(wanted("repeated").with_biz_id("b"));
    sent.push(wanted("last"));
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    stream.sequence().await;
    stream.damage(127, "body").await;
    let mut session = stream.session().await;
    session.run("SET SESSION group_concat_max_len = 4").await;
    assert_eq!(session.drain("s@g", 1).await, ["first", "last"]);
    assert_eq!(stream.rows().await, "0 0 0 1 1 0", "a dead letter, and a discarded one");
    assert_eq!(stream.number("SELECT CAST(lost AS SIGNED) FROM queue_cursor").await, 63);
    assert_eq!(stream.number("SELECT CAST(next_offset AS SIGNED) FROM queue_cursor").await, 131);
}

#[tokio::test]
async fn an_acked_message_is_archived_if_the_group_keeps_what_it_has_handled() {
    let mut stream = Stream::new(1).await;
    let on_done = OnDone::Keep(Duration::from_secs(3600));
    stream.ordered(&TopicSettings { on_done, ..group_settings() }).await;
    stream.enqueue(0..2).await;
    let mut session = stream.session().await;
    assert_eq!(session.drain("s@g", 1).await, ["0", "1"]);
    assert_eq!(stream.rows().await, "0 0 0 0 2 0");
}

/// Otherwise a client that does what the texts say would never get past the message.
#[tokio::test]
async fn a_message_whose_biz_id_is_in_the_ledger_is_acked_alone() {
    for pages in [true, false] {
        let mut stream = Stream::new(1).await;
        stream.sql(&format!("UPDATE queue_partition SET pages = {pages}")).await;
        let window = Some(Duration::from_secs(3600));
        stream.ordered(&TopicSettings { ledger_window: window, ..group_settings() }).await;
        let sent = [NewMessage::new("0"), NewMessage::new("1").with_key("k").with_biz_id("b")];
        enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
        stream.sequence().await;
        let mut session = stream.session().await;
        let first = one(&mut session).await.unwrap();
        session.settle(&first, "ack").await;
        let held = one(&mut session).await.unwrap();
        let ack = format!("CALL queue_settle('{}', 'ack', NULL, NULL)", held.delivery);
        let other = "INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until) \
            SELECT id, 0, 'b', REPEAT('x', 16), UTC_TIMESTAMP(6) + INTERVAL 1 HOUR FROM queue_topic WHERE name = 's@g'";
        stream.sql(other).await;
        session.run("START TRANSACTION").await;
        assert_eq!(session.refused(&ack).await, 31023);
        session.run("ROLLBACK").await;
        assert_eq!(session.settle(&held, "ack").await, "ack", "pages: {pages}");
        assert!(one(&mut session).await.is_none());
    }
}

#[tokio::test]
async fn a_message_that_retention_removes_while_it_is_handled_holds_nothing_up() {
    for verdict in ["ack", "retry", "dead-letter"] {
        let mut stream = Stream::in_rows(1).await;
        stream.ordered(&group_settings()).await;
        stream.enqueue(0..2).await;
        stream.sequence().await;
        let mut session = stream.session().await;
        let held = one(&mut session).await.unwrap();
        stream.sql("DELETE FROM queue_log WHERE offset_no = 0; UPDATE queue_partition SET first_offset = 1").await;
        assert_eq!(session.settle(&held, verdict).await, verdict);
        assert_eq!(bodies(&session.claim_of("s@g", 1).await), ["1"]);
        let lost = i64::from(verdict != "ack");
        assert_eq!(
            stream.number("SELECT CAST(lost AS SIGNED) FROM queue_cursor").await,
            lost,
            "{verdict}"
        );
    }
}

#[tokio::test]
async fn a_checkpoint_of_a_message_in_a_page_is_there_for_its_next_delivery() {
    let mut stream = Stream::new(1).await;
    stream.ordered(&group_settings()).await;
    stream.enqueue(0..70).await;
    stream.sequence().await;
    let mut session = stream.session().await;
    for _ in 0..5 {
        let done = one(&mut session).await.unwrap();
        session.settle(&done, "ack").await;
    }
    let held = one(&mut session).await.unwrap();
    let last = |held: &Claimed| format!("CALL queue_last_checkpoint('{}')", held.delivery);
    assert!(session.tried(&last(&held)).await.unwrap().is_empty());
    let save = format!("CALL queue_checkpoint('{}', 'page 7', 40)", held.delivery);
    session.run(&save).await;
    session.run(&save).await;
    session.settle(&held, "release").await;
    assert_eq!(session.refused(&save).await, 31015);
    let again = one(&mut session).await.unwrap();
    let saved = session.tried(&last(&again)).await.unwrap().remove(0);
    assert_eq!(
        (saved.get("delivery_no"), saved.get("state")),
        (Some(1), Some("page 7".to_owned()))
    );
    // The library saves and reads it under the same key.
    let key = "SELECT COUNT(*) FROM queue_checkpoint k JOIN queue_log l ON k.msg_id = SUBSTRING(l.entries, 17 + 52 * 5, 16)";
    assert_eq!(stream.number(key).await, 1);
    session.settle(&again, "ack").await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_checkpoint").await, 0);
}

/// Otherwise the message behind it would go on from there.
#[tokio::test]
async fn a_checkpoint_of_a_message_that_retention_has_removed_is_refused() {
    for pages in [true, false] {
        let mut stream = Stream::new(1).await;
        stream.sql(&format!("UPDATE queue_partition SET pages = {pages}")).await;
        stream.ordered(&group_settings()).await;
        stream.enqueue(0..64).await;
        stream.sequence().await;
        let mut session = stream.session().await;
        let held = one(&mut session).await.unwrap();
        stream.enqueue(64..65).await;
        stream.sequence().await;
        stream.sql("DELETE FROM queue_log WHERE offset_no < 64").await;
        stream.sql("UPDATE queue_partition SET first_offset = 64").await;
        let save = format!("CALL queue_checkpoint('{}', 'page 7', 40)", held.delivery);
        assert_eq!(session.refused(&save).await, 31015, "pages: {pages}");
        assert_eq!(stream.number("SELECT COUNT(*) FROM queue_checkpoint").await, 0);
        session.settle(&held, "ack").await;
        assert_eq!(one(&mut session).await.unwrap().body, "64");
    }
}

/// A filter decides what is claimed, and not what becomes of a message that is held.
#[tokio::test]
async fn a_message_that_the_group_wants_no_more_while_it_is_held_is_settled() {
    let mut stream = Stream::new(1).await;
    let group = stream.ordered(&wanting(&["type"])).await;
    let sent = NewMessage::new("0").with_header("type", "x");
    enqueue_all(&mut stream.conn, &stream.topic.name, &[sent]).await.unwrap();
    let mut session = stream.session().await;
    let held = one(&mut session).await.unwrap();
    topic::set(&mut stream.conn, &group.name, &wanting(&["other"])).await.unwrap();
    assert_eq!(session.settle(&held, "dead-letter").await, "dead-letter");
    assert_eq!(stream.rows().await, "0 0 0 1 0 0");
}

#[tokio::test]
async fn a_session_settles_at_every_isolation_level_and_holds_up_no_sequencer() {
    let mut stream = Stream::in_rows(1).await;
    stream.ordered(&group_settings()).await;
    let mut session = stream.session().await;
    for (n, level) in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"].iter().enumerate() {
        stream.enqueue(n..n + 1).await;
        session.run(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
        let held = one(&mut session).await.unwrap();
        assert_eq!(held.body, n.to_string());
        session.run("START TRANSACTION").await;
        let verdict = if n == 1 { "retry" } else { "ack" };
        assert_eq!(session.settle(&held, verdict).await, verdict);
        if *level != "SERIALIZABLE" {
            // The message is the last of the log, and the sequencer appends behind it.
            stream.enqueue(n + 10..n + 11).await;
            stream.sequence().await;
        }
        session.run("COMMIT").await;
        stream.sql("UPDATE queue_range SET ready_at = NULL").await;
        session.drain("s@g", 1).await;
    }
    assert_eq!(stream.rows().await, "0 0 0 0 0 0");
}
