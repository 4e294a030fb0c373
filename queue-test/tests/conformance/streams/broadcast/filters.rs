//! Broadcast groups that want only some messages of their stream.

use std::time::Duration;

use rowmq_core::model::{HeaderFilter, Offset, OffsetSpec, TopicSettings};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::worker::{Member, Worker};
use rowmq_core::{Delivery, NewMessage, Topic, TopicName, enqueue_all, store};

use super::{ack, member};
use crate::scene::{all, retry};
use crate::streams::{Stream, offsets};

fn wanting(condition: &str) -> TopicSettings {
    let filter = HeaderFilter::from(vec![condition.parse().unwrap()]);
    TopicSettings { filter, ..broadcast_settings() }
}

impl Stream {
    async fn broadcast_wanting(&mut self, condition: &str) -> Topic {
        let name = TopicName::of_group(&self.topic.name, "some").unwrap();
        let settings = wanting(condition);
        create_broadcast(&mut self.conn, &name, OffsetSpec::Earliest, &settings).await.unwrap();
        store::topic::existing(&mut self.conn, &name).await.unwrap()
    }

    /// Enqueues messages; every `nth` is of the type `a`, the others of `b`.
    async fn typed(&mut self, n: usize, nth: usize) {
        let message = |i: usize| {
            let kind = if i.is_multiple_of(nth) { "a" } else { "b" };
            NewMessage::new(i.to_string()).with_header("type", kind)
        };
        let messages: Vec<_> = (0..n).map(message).collect();
        enqueue_all(&mut self.conn, &self.topic.name, &messages).await.unwrap();
        while self.sequence().await > 0 {}
    }
}

/// Reads until nothing more comes; returns what came, and how many messages were passed.
async fn read_all(worker: &Worker, group: &Topic, member: &Member) -> (Vec<Delivery>, u64) {
    let (mut got, mut filtered) = (Vec::new(), 0);
    loop {
        let read = worker.claim_of(group, Some(member), 7).await.unwrap();
        if read.deliveries.is_empty() && read.filtered == 0 {
            return (got, filtered);
        }
        filtered += read.filtered;
        assert_eq!(read.lost, 0);
        ack(worker, &read.deliveries).await;
        got.extend(read.deliveries);
    }
}

#[tokio::test]
async fn each_member_gets_what_the_group_wants_and_the_rest_counts_as_passed() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast_wanting("type=a").await;
    stream.typed(3000, 100).await;
    let wanted: Vec<u64> = (0..30).map(|n| n * 100).collect();
    for named in [None, Some("m")] {
        let (worker, member) = (stream.worker().await, member(&group, named));
        let (got, filtered) = read_all(&worker, &group, &member).await;
        assert_eq!((offsets(&got), filtered), (wanted.clone(), 2970), "{named:?}");
        if named.is_some() {
            // The server also gets the position behind the messages passed at the end.
            stream.until_at(3000).await;
        }
    }
}

#[tokio::test]
async fn a_retry_of_what_is_not_wanted_any_more_is_passed() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast_wanting("type=a").await;
    stream.typed(10, 5).await;
    let (worker, member) = (stream.worker().await, member(&group, Some("m")));
    let read = worker.claim_of(&group, Some(&member), 100).await.unwrap();
    assert_eq!((offsets(&read.deliveries), read.filtered), (vec![0, 5], 8));
    worker.settle(all(&read.deliveries, &retry(Duration::ZERO))).await.unwrap();
    store::topic::set(&mut stream.conn, &group.name, &wanting("type=b")).await.unwrap();
    let changed = store::topic::existing(&mut stream.conn, &group.name).await.unwrap();
    let (got, filtered) = read_all(&worker, &changed, &member).await;
    assert_eq!((offsets(&got), filtered), (Vec::new(), 2));
    stream.until_at(10).await;
}

#[tokio::test]
async fn what_retention_has_removed_is_lost_and_not_passed() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.broadcast_wanting("type=a").await;
    stream.typed(20, 4).await;
    stream.sql("DELETE FROM queue_log WHERE offset_no IN (4, 5)").await;
    let (worker, member) = (stream.worker().await, member(&group, None));
    let read = worker.claim_of(&group, Some(&member), 100).await.unwrap();
    assert_eq!(offsets(&read.deliveries), [0, 8, 12, 16]);
    assert_eq!((read.filtered, read.lost), (14, 2));
    assert_eq!(read.deliveries[0].position.unwrap().offset, Offset(0));
}
