//! Batches appended to the log, past the inbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::Offset;
use rowmq_core::store::stream::{inbox, partition};
use rowmq_core::stream::{self, Appended, Contention, sequence};
use rowmq_core::{Delivery, NewMessage, enqueue, enqueue_all};

use super::Stream;
use super::sequencing::keep_sequencing;
use crate::scene::bodies;

impl Stream {
    async fn append(&mut self, messages: &[NewMessage]) -> Appended {
        let id = self.topic.id;
        let append = async |conn: &mut _| stream::append(conn, id, messages).await;
        transaction(&mut self.conn, "test", append).await.unwrap()
    }
}

fn messages(bodies: &[&str]) -> Vec<NewMessage> {
    bodies.iter().map(|body| NewMessage::new(*body)).collect()
}

/// History H15: a message that a producer enqueued in a transaction comes before those that it
/// appends afterwards.
#[tokio::test]
async fn what_was_committed_before_comes_before() {
    let mut stream = Stream::new(1).await;
    stream.enqueue(0..2).await;
    let appended = stream.append(&messages(&["a", "b"])).await;
    assert_eq!(appended, Appended { in_log: true, sequenced: 4 });
    stream.enqueue(2..3).await;
    let appended = stream.append(&messages(&["c"])).await;
    assert_eq!(appended, Appended { in_log: true, sequenced: 2 });
    assert_eq!(bodies(&stream.logged().await), ["0", "1", "a", "b", "2", "c"]);
    assert!(inbox::is_empty(&mut stream.conn, stream.topic.id).await.unwrap());
    let ends = partition::all(&mut stream.conn, stream.topic.id).await.unwrap();
    assert_eq!((ends[0].first, ends[0].next), (Offset(0), Offset(6)));
}

#[tokio::test]
async fn what_is_not_committed_leaves_no_gap() {
    let mut stream = Stream::new(1).await;
    let mut late = stream.db.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    enqueue(&mut late, &stream.topic.name, &NewMessage::new("late")).await.unwrap();
    stream.sql("BEGIN").await;
    let undone = stream::append(&mut stream.conn, stream.topic.id, &messages(&["undone"])).await;
    assert_eq!(undone.unwrap(), Appended { in_log: true, sequenced: 1 });
    stream.sql("ROLLBACK").await;
    stream.append(&messages(&["a"])).await;
    late.batch_execute("COMMIT").await.unwrap();
    stream.append(&messages(&["b"])).await;
    assert_eq!(bodies(&stream.logged().await), ["a", "late", "b"]);
    assert_eq!(stream.number("SELECT MAX(offset_no) FROM queue_log").await, 2);
}

#[tokio::test]
async fn nobody_waits_for_a_sequencer_and_nobody_empties_a_full_inbox() {
    let mut stream = Stream::new(2).await;
    let mut other = stream.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(partition::lock(&mut other, stream.topic.id).await.unwrap().len(), 2);
    assert_eq!(stream.append(&messages(&["a"])).await, Appended::default());
    other.batch_execute("ROLLBACK").await.unwrap();
    stream.enqueue(0..2500).await;
    let appended = stream.append(&messages(&["a"])).await;
    assert_eq!(appended, Appended { in_log: false, sequenced: 1000 }, "of one partition");
    assert_eq!(stream.number("SELECT SUM(messages) FROM queue_log").await, 1000);
}

#[tokio::test]
async fn batches_without_keys_are_appended_at_once_to_different_partitions() {
    let mut stream = Stream::new(3).await;
    let mut others = Vec::new();
    for n in 0..2 {
        let mut other = stream.db.connect().await;
        other.batch_execute("BEGIN").await.unwrap();
        let batch = messages(&["a"; 5][n..]);
        assert!(stream::append(&mut other, stream.topic.id, &batch).await.unwrap().in_log);
        others.push(other);
    }
    assert!(stream.append(&messages(&["b"])).await.in_log);
    assert_eq!(stream.append(&messages(&["c"; 9])).await.sequenced, 9, "the same one again");
    let mut other = stream.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    assert!(stream::append(&mut other, stream.topic.id, &messages(&["d"])).await.unwrap().in_log);
    assert_eq!(stream.append(&messages(&["e"])).await, Appended::default(), "none is free");
    for mut other in others.into_iter().chain([other]) {
        other.batch_execute("COMMIT").await.unwrap();
    }
    assert!(stream.append(&messages(&["f"])).await.in_log);
    let ends = partition::all(&mut stream.conn, stream.topic.id).await.unwrap();
    let ends = ends.iter().map(|partition| partition.next.0);
    assert!(ends.eq([5, 5, 11]), "the emptiest gets the next batch");
    assert_eq!(stream.logged().await.len(), 21);
}

#[tokio::test]
async fn a_sequencer_and_a_batch_with_keys_leave_the_partitions_of_others_alone() {
    let mut stream = Stream::new(2).await;
    stream.enqueue(0..10).await;
    let mut other = stream.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    let before = stream::append(&mut other, stream.topic.id, &messages(&["a"])).await.unwrap();
    assert_eq!(before, Appended { in_log: true, sequenced: 6 }, "its partition's, and its own");
    let id = stream.topic.id;
    let first = sequence(&mut stream.conn, id, 5, Contention::Leave).await.unwrap();
    assert!(matches!(first.messages, 2 | 3) && first.more, "of five, the other partition's");
    let turn = sequence(&mut stream.conn, id, 100, Contention::Leave).await.unwrap();
    assert_eq!((first.messages + turn.messages, turn.more), (5, false));
    let turn = sequence(&mut stream.conn, id, 5, Contention::Leave).await.unwrap();
    assert_eq!((turn.messages, turn.more), (0, false), "the rest is the other session's");
    let keyed: Vec<_> = (0..9).map(|n| NewMessage::new("k").with_key(format!("{n}"))).collect();
    assert_eq!(stream.append(&keyed).await, Appended::default());
    other.batch_execute("COMMIT").await.unwrap();
    assert!(stream.append(&keyed).await.in_log);
    let logged = stream.logged().await;
    assert_eq!(logged.len(), 20);
    let with_key = logged.iter().filter(|one| one.key.is_some());
    let partitions = with_key.filter_map(|one| one.position).map(|at| at.partition);
    assert_eq!(partitions.collect::<BTreeSet<_>>().len(), 2, "the keys need both");
}

/// Histories H14 and H15, with sessions at work on different partitions at once.
#[tokio::test]
async fn sessions_on_different_partitions_lose_nothing_and_keep_each_order() {
    const PRODUCERS: usize = 8;
    const EACH: usize = 60;
    let mut stream = Stream::new(3).await;
    let done = AtomicBool::new(false);
    let produce_all = async {
        join_all((0..PRODUCERS).map(|producer| produce(&stream, producer))).await;
        done.store(true, Ordering::SeqCst);
    };
    tokio::join!(produce_all, keep_sequencing(&stream, &done), keep_sequencing(&stream, &done));
    stream.sequence().await;
    let logged = stream.logged().await;
    let mut last = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for (body, one) in bodies(&logged).iter().zip(&logged) {
        let numbers: Vec<usize> = body.split(' ').map(|part| part.parse().unwrap()).collect();
        let at = one.position.unwrap();
        let before = last.insert((numbers[0], at.partition), numbers.clone());
        assert!(before.is_none_or(|before| before < numbers), "{body} in {:?}", at.partition);
        assert!(seen.insert(numbers), "{body} is there twice");
    }
    assert_eq!(seen.len(), PRODUCERS * EACH * 5 / 3);
    stream.assert_dense(&logged).await;

    async fn produce(stream: &Stream, producer: usize) {
        let (mut conn, topic) = (stream.db.connect().await, &stream.topic);
        for n in 0..EACH {
            let of = |at: usize| NewMessage::new(format!("{producer} {n} {at}"));
            let batch: Vec<NewMessage> = match n % 3 {
                0 => (0..3).map(of).collect(),
                1 => vec![of(0)],
                _ => vec![of(0).with_key(format!("{}", producer % 3))],
            };
            let goes_direct = n % 3 == 0 || n % 2 == 0;
            let stored = transaction(&mut conn, "test", async |conn| {
                if !goes_direct || !stream::append(conn, topic.id, &batch).await?.in_log {
                    enqueue_all(conn, &topic.name, &batch).await?;
                }
                Ok(())
            });
            stored.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_message_has_all_that_it_had_and_its_key_the_same_partition() {
    let mut stream = Stream::new(7).await;
    let full = |n: usize| {
        let message = NewMessage::new(n.to_string()).with_key(format!("ключ {n}"));
        let message = message.with_biz_id("4711").with_header("a", "b");
        message.with_expiry(std::time::Duration::from_secs(3600))
    };
    let sent: Vec<_> = (0..50).map(full).collect();
    for message in &sent {
        enqueue(&mut stream.conn, &stream.topic.name, message).await.unwrap();
    }
    stream.sequence().await;
    let again: Vec<_> = (0..50).map(full).collect();
    assert!(stream.append(&again).await.in_log);
    let logged = stream.logged().await;
    for (old, new) in sent.iter().zip(&again) {
        let [old, new] = [old, new].map(|message| {
            logged.iter().find(|delivery| delivery.msg_id == message.msg_id).unwrap()
        });
        let has = |it: &Delivery| (it.key.clone(), it.biz_id.clone(), it.headers.clone());
        assert_eq!((has(old), &old.body), (has(new), &new.body));
        let ([from, to], life) = ([old, new].map(|it| it.position.unwrap()), new.expires_at);
        assert!(from.partition == to.partition && from.offset < to.offset);
        assert!((life.unwrap() - old.expires_at.unwrap()).num_seconds().abs() < 600);
        assert!(new.enqueued_at >= old.enqueued_at);
    }
    let group = stream.group("g", false).await;
    let worker = stream.worker().await;
    let mut ids: Vec<_> = sent.iter().chain(&again).map(|message| message.msg_id).collect();
    let claimed = super::claim_n(&worker, &group, 100).await;
    let mut found: Vec<_> = claimed.iter().map(|delivery| delivery.msg_id).collect();
    ids.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, ids);
}
