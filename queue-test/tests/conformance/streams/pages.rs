//! Pages: several messages in one row of the log.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::DateTime;
use rowmq_core::connection::transaction;
use rowmq_core::find::{PageToken, Query, Searched, find};
use rowmq_core::model::found::{Filter, Found};
use rowmq_core::model::{
    DeadCause, Headers, Offset, OffsetSpec, PartitionNo, Position, Retention, Settlement,
    TopicSettings,
};
use rowmq_core::store::find::Bodies;
use rowmq_core::store::stream::log::{self, Stretch};
use rowmq_core::stream::group::group_settings;
use rowmq_core::worker::Settled;
use rowmq_core::{Delivery, NewMessage, enqueue_all, stream};
use rowmq_test::until;

use super::broadcast::member;
use super::filters::wanting;
use super::retention::by_time;
use super::{Stream, claim_n, offsets};
use crate::inspect::rows_read;
use crate::scene::{all, bodies, settle, text};

/// Messages with everything that a message of a stream may have, one in three with nothing.
pub(super) fn full(n: usize) -> NewMessage {
    let message = NewMessage::new(format!("body {n}"));
    if n.is_multiple_of(3) {
        return message;
    }
    let message = message.with_key("ключ").with_biz_id(n.to_string()).with_header("a", "b");
    if n % 3 == 1 { message.with_expiry(Duration::from_secs(3600)) } else { message }
}

fn assert_alike(found: &[Delivery], sent: &[NewMessage]) {
    assert_eq!(found.len(), sent.len());
    for message in sent {
        let delivery = found.iter().find(|it| it.msg_id == message.msg_id).unwrap();
        let key = (&delivery.key, &delivery.biz_id);
        assert_eq!(key, (&message.key, &message.biz_id));
        assert_eq!((&delivery.headers, &delivery.body), (&message.headers, &message.body));
        let life = delivery.expires_at.map(|end| (end - delivery.enqueued_at).num_seconds());
        assert_eq!(life.is_some(), message.expires.is_some(), "{message:?}");
        assert!(life.is_none_or(|life| (3500..=3601).contains(&life)), "{life:?}");
    }
}

#[tokio::test]
async fn messages_in_pages_have_all_that_they_had() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    let first: Vec<_> = (0..150).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &first).await.unwrap();
    stream.sequence().await;
    let second: Vec<_> = (150..300).map(full).collect();
    let id = stream.topic.id;
    let append = async |conn: &mut _| stream::append(conn, id, &second).await;
    assert!(transaction(&mut stream.conn, "test", append).await.unwrap().in_log);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_log").await, 6, "64, 64 and 22 each");
    assert_eq!(stream.number("SELECT SUM(messages) FROM queue_log").await, 300);
    let worker = stream.worker().await;
    // Claims that begin and end within pages.
    let mut found = Vec::new();
    for n in [1, 70, 29, 200] {
        found.extend(claim_n(&worker, &group, n).await);
    }
    assert!(offsets(&found).into_iter().eq(0..300));
    let sent: Vec<_> = first.into_iter().chain(second).collect();
    assert_alike(&found, &sent);
    settle(&worker, all(&found, &Settlement::Ack)).await;
}

/// Rows of an older release and pages, one behind the other.
#[tokio::test]
async fn rows_and_pages_are_read_as_one_log() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..100).await;
    stream.sequence().await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_log").await, 100);
    stream.sql("UPDATE queue_partition SET pages = TRUE").await;
    stream.enqueue(100..200).await;
    stream.sequence().await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_log").await, 102);
    let worker = stream.worker().await;
    let mut found = claim_n(&worker, &group, 99).await;
    found.extend(claim_n(&worker, &group, 101).await);
    let numbers: Vec<_> = (0..200).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&found), numbers);
}

/// The rows behind its end hold one message each, which may be large.
#[tokio::test]
async fn a_claim_of_a_page_and_of_rows_reads_no_row_behind_its_end() {
    let mut stream = Stream::new(1).await;
    stream.enqueue(0..64).await;
    stream.sequence().await;
    stream.sql("UPDATE queue_partition SET pages = FALSE").await;
    stream.enqueue(64..200).await;
    stream.sequence().await;
    let (stream, conn) = (stream.topic.id, &mut stream.conn);
    let stretch = |hi| Stretch { stream, partition: PartitionNo(0), lo: Offset(0), hi: Offset(hi) };
    // To read what was read is a read, too.
    let mut read = vec![rows_read(conn).await, rows_read(conn).await];
    for hi in [64, 100] {
        let found = log::headers(conn, stretch(hi)).await.unwrap();
        assert!(found.into_iter().map(|(at, _)| at.0).eq(0..hi));
        read.push(rows_read(conn).await);
    }
    let read: Vec<_> = read.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (page, page_and_rows) = (read[1] - read[0], read[2] - read[0]);
    assert!(page <= 3 && page_and_rows <= 36 + 3, "{read:?}");
}

#[tokio::test]
async fn a_failed_message_of_a_page_is_filed_with_all_that_it_had() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    let sent: Vec<_> = (0..6).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    stream.sequence().await;
    let worker = stream.worker().await;
    let found = claim_n(&worker, &group, 6).await;
    let again = Settlement::Retry { delay: Duration::ZERO, error: "no".to_owned() };
    settle(&worker, all(&found, &again)).await;
    crate::moves::promote(&mut stream.conn, 100).await;
    let retried = crate::scene::claim_n(&worker, group.id, 6).await;
    assert_alike(&retried, &sent);
    let expiries = |it: &[Delivery]| -> BTreeMap<_, _> {
        it.iter().map(|one| (one.msg_id, one.expires_at)).collect()
    };
    assert_eq!(expiries(&retried), expiries(&found));
}

impl Stream {
    /// Changes a bit of the page that ends at an offset, as a disk may.
    pub(super) async fn damage(&mut self, last: u64, column: &str) {
        let damage = format!(
            "UPDATE queue_log SET {column} = INSERT({column}, 30, 1, CHAR(ASCII(SUBSTRING({column}, 30, 1)) ^ 1)) \
             WHERE offset_no = {last}"
        );
        self.sql(&damage).await;
    }
}

#[tokio::test]
async fn a_damaged_page_becomes_a_dead_letter_with_all_its_bytes_and_stops_nothing() {
    for column in ["entries", "body"] {
        let mut stream = Stream::new(1).await;
        let group = stream.group("g", false).await;
        stream.enqueue(0..130).await;
        stream.sequence().await;
        stream.damage(127, column).await;
        let worker = stream.worker().await;
        let mut found: Vec<Delivery> = Vec::new();
        while found.last().is_none_or(|last| last.position.unwrap().offset < Offset(129)) {
            let claimed = worker.claim_range(group.group().unwrap(), 130).await.unwrap();
            assert_eq!(claimed.lost, 0, "{column}");
            found.extend(claimed.deliveries);
        }
        let (damaged, sound): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|it| it.headers.damaged_page().is_some());
        let numbers: Vec<_> = (0..64).chain(128..130).map(|n: usize| n.to_string()).collect();
        assert_eq!(bodies(&sound), numbers);
        worker.settle(all(&sound, &Settlement::Ack)).await.unwrap();
        let error = damaged[0].headers.damaged_page().unwrap().to_owned();
        let dead = Settlement::DeadLetter { cause: DeadCause::Decode, error };
        worker.settle(all(&damaged, &dead)).await.unwrap();
        worker.stop().await.unwrap();
        // A dead letter for each claim that met the page, and each is marked for who redrives it.
        let whole = "SELECT COUNT(*) FROM queue_dead d JOIN queue_log l ON l.offset_no = 127 \
             AND d.body = CONCAT(l.entries, l.body) AND d.headers LIKE '%queue-damaged-page%'";
        let n = i64::try_from(damaged.len()).unwrap();
        assert_eq!(stream.number(whole).await, n, "{column}");
        assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
    }
}

/// Its last message was acked before by a handler's transaction, and the worker died.
#[tokio::test]
async fn a_damaged_page_is_not_taken_for_a_message_that_was_acked() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..64).await;
    stream.sequence().await;
    let died = stream.worker().await;
    claim_n(&died, &group, 64).await;
    stream.sql("INSERT INTO queue_passed SELECT MAX(id), 63 FROM queue_range").await;
    stream.sql("UPDATE queue_range SET worker_id = 0, claim_no = 0, conn_id = 0").await;
    stream.damage(63, "body").await;
    let worker = stream.worker().await;
    // A first claim takes fewer, as it does not know yet how large the messages are.
    let mut found = Vec::new();
    for _ in 0..3 {
        let claimed = worker.claim_range(group.group().unwrap(), 64).await.unwrap();
        assert_eq!(claimed.lost, 0);
        found.extend(claimed.deliveries);
    }
    assert_eq!(offsets(&found).last(), Some(&62));
    assert!(found.iter().all(|it| it.headers.damaged_page().is_some()));
}

/// A worker crashed with it twice.
#[tokio::test]
async fn a_damaged_page_that_a_group_with_a_filter_claims_alone_is_not_lost() {
    let mut stream = Stream::new(1).await;
    let settings = wanting(&["wanted"]);
    let group = stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
    stream.enqueue(0..64).await;
    stream.sequence().await;
    stream.damage(63, "entries").await;
    claim_n(&stream.worker().await, &group, 1).await;
    let suspect = "suspicions = 2, worker_id = 0, claim_no = 0, conn_id = 0";
    stream.sql(&format!("UPDATE queue_range SET {suspect}")).await;
    let worker = stream.worker().await;
    let mut found = Vec::new();
    until("it is claimed", async || {
        let claimed = worker.claim_suspect_range(group.group().unwrap()).await.unwrap();
        assert_eq!(claimed.lost, 0);
        found = claimed.deliveries;
        !found.is_empty()
    })
    .await;
    assert_eq!(offsets(&found), [63]);
    assert!(found[0].headers.damaged_page().is_some());
    assert_eq!(stream.number("SELECT SUM(lost) FROM queue_cursor").await, 0);
}

/// The biz ids of its messages cannot be read any more when they are acked.
#[tokio::test]
async fn a_page_that_is_damaged_while_its_messages_are_handled_stops_no_ack() {
    let mut stream = Stream::new(1).await;
    let window = Some(Duration::from_secs(3600));
    let settings = TopicSettings { ledger_window: window, ..group_settings() };
    let group = stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
    let sent: Vec<_> = (0..6).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    stream.sequence().await;
    let worker = stream.worker().await;
    let found = claim_n(&worker, &group, 6).await;
    stream.damage(5, "entries").await;
    let ack = |it| Settled::in_topic(it, Settlement::Ack, &group.settings);
    settle(&worker, found.iter().map(ack).collect()).await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
}

#[tokio::test]
async fn a_broadcast_member_loses_nothing_to_a_damaged_page() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..128).await;
    stream.sequence().await;
    stream.damage(63, "body").await;
    let (worker, member) = (stream.worker().await, member(&group, Some("a")));
    let mut found = Vec::new();
    for _ in 0..4 {
        let read = worker.read(&member, 128).await.unwrap();
        assert_eq!(read.lost, 0);
        found.extend(read.deliveries);
    }
    let (damaged, sound): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|it| it.headers.damaged_page().is_some());
    assert!(offsets(&sound).into_iter().eq(64..128));
    assert_eq!(offsets(&damaged).last(), Some(&63));
}

/// The search reads 2000 offsets at once: the damaged page lies in two stretches.
#[tokio::test]
async fn a_search_names_the_damaged_page_that_may_hold_a_match_once() {
    let mut stream = Stream::new(1).await;
    let sent = stream.enqueue(0..2100).await;
    stream.sequence().await;
    stream.damage(127, "entries").await;
    let damaged = |searched: &[Searched]| {
        searched.iter().filter(|it| matches!(it, Searched::DamagedPage { .. })).count()
    };
    for (nth, found) in [(5, true), (100, false), (2050, true)] {
        let filter = Filter { msg_id: Some(sent[nth].msg_id), ..Filter::default() };
        let mut session = stream.db.session().await;
        let query = Query { filter, after: None, limit: 100, bodies: Bodies::Leave };
        let answer = find(&mut session, &stream.topic, &query).await.unwrap();
        let ids: Vec<_> = answer.found.iter().map(|it| it.msg_id).collect();
        assert_eq!(
            ids,
            sent[nth..nth + usize::from(found)].iter().map(|it| it.msg_id).collect::<Vec<_>>()
        );
        assert_eq!(damaged(&answer.searched), 1, "{nth}");
    }
}

/// A sender can write the log's own mark by SQL. The search reads 2000 offsets at once, and the
/// marked message is the first of them.
#[tokio::test]
async fn a_sender_that_marks_its_message_as_a_damaged_page_hides_no_other() {
    let mut stream = Stream::new(1).await;
    let settings = wanting(&["wanted"]);
    let group = stream.group_with("g", false, OffsetSpec::Earliest, &settings).await;
    let sent = stream.enqueue(0..2100).await;
    let forged = "{\"queue-damaged-page\":\"no\"}";
    stream.sql(&format!("UPDATE queue_message SET headers = '{forged}' WHERE body = '100'")).await;
    stream.sequence().await;
    let filter = Filter { msg_id: Some(sent[70].msg_id), ..Filter::default() };
    let after = Some(PageToken::Log(vec![at(2100)]));
    let mut session = stream.db.session().await;
    let query = Query { filter, after, limit: 100, bodies: Bodies::Leave };
    let answer = find(&mut session, &stream.topic, &query).await.unwrap();
    assert_eq!(answer.found.len(), 1);
    assert_eq!(answer.searched, [Searched::Log { rows: 2100, whole: true }]);
    let worker = stream.worker().await;
    let mut filtered = 0;
    until("everything is filtered", async || {
        let claimed = worker.claim_range(group.group().unwrap(), 1000).await.unwrap();
        assert_eq!((claimed.deliveries.len(), claimed.lost), (0, 0));
        filtered += claimed.filtered;
        filtered == 2100
    })
    .await;
}

/// It was stored twice, in the middle of two pages, and one of them is damaged.
#[tokio::test]
async fn an_erasure_names_the_damaged_pages_in_which_it_erased_nothing() {
    for column in ["entries", "body"] {
        let mut stream = Stream::new(1).await;
        let mut messages: Vec<_> = (0..64).map(full).collect();
        let secret = messages[31].msg_id;
        enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
        for (nth, message) in messages.iter_mut().enumerate().filter(|(nth, _)| *nth != 31) {
            *message = full(nth);
        }
        enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
        stream.sequence().await;
        stream.damage(127, column).await;
        let erasure = stream.erase(secret).await.unwrap();
        assert_eq!((&*erasure.positions, erasure.erased), (&[at(31)][..], 1), "{column}");
        let page = erasure.damaged[0].offset.0;
        assert!(erasure.damaged.len() == 1 && (64..128).contains(&page), "{erasure:?}");
    }
}

/// Otherwise the entries of a page could outgrow their column.
#[tokio::test]
async fn large_headers_do_not_share_a_page() {
    let mut stream = Stream::new(1).await;
    let header = "h".repeat(20 * 1024);
    let messages: Vec<_> = (0..4).map(|n| full(3 * n).with_header("a", &*header)).collect();
    let id = stream.topic.id;
    let append = async |conn: &mut _| stream::append(conn, id, &messages).await;
    assert!(transaction(&mut stream.conn, "test", append).await.unwrap().in_log);
    assert_eq!(stream.number("SELECT MAX(messages) FROM queue_log").await, 1);
    assert_alike(&stream.logged().await, &messages);
}

/// A page goes with its last message.
#[tokio::test]
async fn retention_removes_whole_pages() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..200).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 200).await;
    worker.settle(all(&got[..100], &Settlement::Ack)).await.unwrap();
    worker.stop().await.unwrap();
    stream.retain(Retention { handled: true, ..Retention::default() }).await;
    until("what is handled goes", async || stream.prune_log().await == 136).await;
    let rows = "SELECT GROUP_CONCAT(offset_no ORDER BY offset_no) FROM queue_log";
    assert_eq!(text(&mut stream.conn, rows).await, "127,191,199");
    let late = stream.group("late", false).await;
    let worker = stream.worker().await;
    assert!(offsets(&claim_n(&worker, &late, 136).await).into_iter().eq(64..200));
    assert!(offsets(&claim_n(&worker, &group, 100).await).into_iter().eq(100..200));
    let gone = Filter { position: Some(at(63)), ..Filter::default() };
    assert_eq!(find_in(&stream, gone).await, Vec::<String>::new());
    stream.retain(by_time(true)).await;
    stream.age(192).await;
    assert_eq!(stream.prune_log().await, 8);
    assert_eq!(text(&mut stream.conn, rows).await, "199");
}

fn at(offset: u64) -> Position {
    Position { partition: PartitionNo(0), offset: Offset(offset) }
}

/// Returns the bodies of what is found.
async fn find_in(stream: &Stream, filter: Filter) -> Vec<String> {
    let mut session = stream.db.session().await;
    let query = Query { filter, after: None, limit: 100, bodies: Bodies::Read };
    let answer = find(&mut session, &stream.topic, &query).await.unwrap();
    let body = |found: &Found| found.trace.clone().and_then(|trace| trace.body).unwrap();
    answer.found.iter().map(|found| String::from_utf8(body(found)).unwrap()).collect()
}

#[tokio::test]
async fn messages_of_a_page_are_found_by_all_that_they_have() {
    let mut stream = Stream::new(1).await;
    let sent: Vec<_> = (0..100).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    stream.sequence().await;
    let by_id = Filter { msg_id: Some(sent[70].msg_id), ..Filter::default() };
    assert_eq!(find_in(&stream, by_id).await, ["body 70"]);
    let by_place = Filter { position: Some(at(5)), ..Filter::default() };
    assert_eq!(find_in(&stream, by_place).await, ["body 5"]);
    let by_biz_id = Filter { biz_id: Some(b"71".to_vec()), ..Filter::default() };
    assert_eq!(find_in(&stream, by_biz_id).await, ["body 71"]);
    let header = Some(("a".to_owned(), "b".to_owned()));
    let by_key = Filter { key: Some("ключ".as_bytes().to_vec()), header, ..Filter::default() };
    assert_eq!(find_in(&stream, by_key).await.len(), 66);
}

#[tokio::test]
async fn a_message_is_erased_within_its_page_and_its_neighbours_stay() {
    let mut stream = Stream::new(1).await;
    let sent: Vec<_> = (0..100).map(full).collect();
    enqueue_all(&mut stream.conn, &stream.topic.name, &sent).await.unwrap();
    stream.sequence().await;
    let before = stream.logged().await;
    assert_eq!(stream.erase(sent[70].msg_id).await.unwrap().erased, 1);
    assert_eq!(stream.erase(sent[70].msg_id).await.unwrap().erased, 0, "it was erased before");
    let after = stream.logged().await;
    let empty = Delivery {
        body: Vec::new(),
        headers: Headers::default(),
        expires_at: Some(DateTime::UNIX_EPOCH),
        ..before[70].clone()
    };
    for (nth, (before, after)) in before.into_iter().zip(after).enumerate() {
        let expected = if nth == 70 { &empty } else { &before };
        let claimed_at = after.claimed_at;
        assert_eq!(after, Delivery { claimed_at, ..expected.clone() });
    }
    let left = "SELECT COUNT(*) FROM queue_log WHERE body LIKE '%body 70%'";
    assert_eq!(stream.number(left).await, 0);
}
