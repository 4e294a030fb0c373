//! The sequencer: committed messages get offsets, dense and in the order of commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::{Offset, PartitionNo};
use rowmq_core::store::stream::{cursor, inbox, partition};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{NewMessage, TopicName, enqueue};
use rowmq_test::until;

use super::{Stream, offsets};
use crate::scene::bodies;

#[tokio::test]
async fn offsets_are_dense_and_follow_the_order_of_commits_not_of_inserts() {
    let mut stream = Stream::new(1).await;
    let mut late = stream.db.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    enqueue(&mut late, &stream.topic.name, &NewMessage::new("late")).await.unwrap();
    stream.enqueue(0..3).await;
    assert_eq!(stream.sequence().await, 3);
    assert_eq!(stream.sequence().await, 0, "what is not committed is not seen");
    late.batch_execute("COMMIT").await.unwrap();
    assert!(!inbox::is_empty(&mut stream.conn, stream.topic.id).await.unwrap());
    assert_eq!(stream.sequence().await, 1);
    assert!(inbox::is_empty(&mut stream.conn, stream.topic.id).await.unwrap());
    assert_eq!(bodies(&stream.logged().await), ["0", "1", "2", "late"]);
    let ends = partition::all(&mut stream.conn, stream.topic.id).await.unwrap();
    assert_eq!((ends[0].first, ends[0].next), (Offset(0), Offset(4)));
}

#[tokio::test]
async fn a_key_has_one_partition_and_messages_without_one_spread() {
    let mut stream = Stream::new(4).await;
    for n in 0..200 {
        let message = NewMessage::new(n.to_string()).with_key(format!("k{}", n % 10));
        enqueue(&mut stream.conn, &stream.topic.name, &message).await.unwrap();
    }
    stream.enqueue(0..100).await;
    assert_eq!(stream.sequence().await, 300);
    let logged = stream.logged().await;
    let mut of_key: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    let mut unkeyed = [0; 4];
    for one in &logged {
        let no = one.position.unwrap().partition;
        let body = String::from_utf8_lossy(&one.body).parse().unwrap();
        match &one.key {
            Some(key) => of_key.entry((key.clone(), no)).or_default().push(body),
            None => unkeyed[no.0 as usize] += 1,
        }
    }
    assert_eq!((of_key.len(), unkeyed), (10, [25; 4]));
    assert!(of_key.values().all(|bodies| bodies.is_sorted()));
    stream.assert_dense(&logged).await;
}

/// History H14, and the losses of seed 001 (S12, S13): with cursors over auto-increment ids 10 to
/// 55 % of these messages are never read.
#[tokio::test]
async fn nothing_is_lost_and_producers_keep_their_order_whatever_commits_late() {
    const PRODUCERS: usize = 16;
    const EACH: usize = 40;
    let mut stream = Stream::new(1).await;
    let done = AtomicBool::new(false);
    let produce_all = async {
        let mut producers = Vec::new();
        for producer in 0..PRODUCERS {
            let (mut conn, name) = (stream.db.connect().await, stream.topic.name.clone());
            producers.push(tokio::spawn(async move { produce(&mut conn, &name, producer).await }));
        }
        let mut committed = BTreeSet::new();
        for producer in producers {
            committed.extend(producer.await.unwrap());
        }
        done.store(true, Ordering::SeqCst);
        committed
    };
    let (committed, (), ()) =
        tokio::join!(produce_all, keep_sequencing(&stream, &done), keep_sequencing(&stream, &done));
    stream.sequence().await;
    let logged = stream.logged().await;
    assert!(offsets(&logged).into_iter().eq(0..logged.len() as u64), "dense");
    let read = bodies(&logged);
    assert_eq!(read.len(), committed.len());
    assert_eq!(read.iter().cloned().collect::<BTreeSet<_>>(), committed);
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    for body in read {
        let (producer, n) = body.split_once(' ').unwrap();
        let n: usize = n.parse().unwrap();
        if let Some(before) = last.insert(producer.to_owned(), n) {
            assert!(before < n, "producer {producer}: {n} after {before}");
        }
    }

    async fn produce(
        conn: &mut rowmq_core::AsyncMysqlConnection,
        topic: &TopicName,
        producer: usize,
    ) -> Vec<String> {
        let mut committed = Vec::new();
        for n in 0..EACH {
            let body = format!("{producer} {n}");
            conn.batch_execute("BEGIN").await.unwrap();
            enqueue(conn, topic, &NewMessage::new(body.clone())).await.unwrap();
            let think = Duration::from_millis(((producer * 7 + n * 13) % 20) as u64);
            tokio::time::sleep(think).await;
            if n % 20 == 7 {
                conn.batch_execute("ROLLBACK").await.unwrap();
            } else {
                conn.batch_execute("COMMIT").await.unwrap();
                committed.push(body);
            }
        }
        committed
    }
}

#[tokio::test]
async fn a_sequencer_leaves_a_stream_to_the_one_that_is_at_it() {
    let mut stream = Stream::new(2).await;
    stream.enqueue(0..5).await;
    let mut other = stream.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    partition::lock(&mut other, stream.topic.id).await.unwrap();
    let id = stream.topic.id;
    let turn = sequence(&mut stream.conn, id, 10, Contention::Leave).await.unwrap();
    assert_eq!((turn.messages, turn.more), (0, false));
    other.batch_execute("ROLLBACK").await.unwrap();
    until("the lock is free", async || stream.sequence().await == 5).await;
}

/// Readers of a stream never delay its producers, however long they take.
#[tokio::test]
async fn producers_wait_for_no_sequencer_and_for_no_group() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..10).await;
    let mut reader = stream.db.connect().await;
    reader.batch_execute("BEGIN").await.unwrap();
    let moved = sequence(&mut reader, stream.topic.id, 1000, Contention::Wait).await.unwrap();
    assert_eq!(moved.messages, 10);
    for no in 0..2 {
        cursor::lock(&mut reader, group.id, PartitionNo(no)).await.unwrap().unwrap();
    }
    // Its locks are held for ever, so a session that needs one of them fails after a second.
    stream.sql("SET innodb_lock_wait_timeout = 1").await;
    stream.enqueue(10..20).await;
    stream.sql("BEGIN").await;
    stream.enqueue(20..30).await;
    stream.sql("COMMIT").await;
    reader.batch_execute("COMMIT").await.unwrap();
    assert_eq!(stream.sequence().await, 20);
}

/// Sequences until `done`, and until then nothing is left.
pub(super) async fn keep_sequencing(stream: &Stream, done: &AtomicBool) {
    let (mut conn, id) = (stream.db.connect().await, stream.topic.id);
    loop {
        let last = done.load(Ordering::SeqCst);
        let turn = transaction(&mut conn, "test", async |conn| {
            sequence(conn, id, 100, Contention::Leave).await
        });
        if turn.await.unwrap().messages == 0 && last {
            return;
        }
        tokio::task::yield_now().await;
    }
}
