//! How a worker reaches every partition, and what it reports when it finds nothing.

use std::collections::BTreeSet;

use rowmq_core::NewMessage;
use rowmq_core::connection::Connection;
use rowmq_core::model::{OffsetSpec, PartitionNo, Retention, Settlement, TopicSettings};
use rowmq_core::store::stream::cursor;
use rowmq_core::store::{enqueue, topic};
use rowmq_core::stream::group::{replay, reset_group};
use rowmq_core::stream::retention::{excess, remove_some};

use super::{Stream, claim_n, offsets};
use crate::scene::all;

const FLOORS: &str = "SELECT COALESCE(SUM(seq), 0) FROM queue_floor";

/// A partition that retention has emptied looks like work until the cursor has passed it.
#[tokio::test]
async fn a_partition_that_has_nothing_left_hides_no_other() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..40).await;
    stream.sequence().await;
    let age = "UPDATE queue_log SET sequenced_at = sequenced_at - INTERVAL 1 HOUR \
         WHERE partition_no = 1";
    stream.conn.batch(age).await.unwrap();
    let time = Some(std::time::Duration::from_secs(1800));
    let retention = Retention { time, hard: true, ..Retention::default() };
    let settings = TopicSettings { retention, ..TopicSettings::default() };
    topic::set(&mut stream.conn, &stream.topic.name, &settings).await.unwrap();
    stream.topic = topic::existing(&mut stream.conn, &stream.topic.name).await.unwrap();
    for old in excess(&mut stream.conn, &stream.topic).await.unwrap() {
        assert_eq!(remove_some(&mut stream.conn, old.stretch).await.unwrap(), None);
    }
    let worker = stream.worker().await;
    let mut lost = 0;
    for _ in 0..4 {
        let claimed = worker.claim_range(group.group().unwrap(), 5).await.unwrap();
        assert_eq!(claimed.deliveries.len(), 5);
        lost += claimed.lost;
    }
    let nothing = worker.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert_eq!((nothing.deliveries.len(), lost + nothing.lost), (0, 20));
    for work in cursor::group_work(&mut stream.conn, group.group().unwrap()).await.unwrap().work {
        assert_eq!(work.unclaimed, 0, "{work:?}");
    }
    assert_eq!(stream.number("SELECT SUM(lost) FROM queue_cursor").await, 20);
}

#[tokio::test]
async fn a_worker_comes_to_every_partition_whatever_else_it_claims() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..40).await;
    let worker = stream.worker().await;
    let mut seen = BTreeSet::new();
    for _ in 0..4 {
        seen.extend(claim_n(&worker, &group, 1).await[0].position.map(|at| at.partition));
        worker.claim_suspect(group.id).await.unwrap();
    }
    assert_eq!(seen, BTreeSet::from([PartitionNo(0), PartitionNo(1)]));
}

#[tokio::test]
async fn a_claim_that_finds_nothing_tells_whether_others_have_something() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", true).await;
    let (one, two) = (stream.worker().await, stream.worker().await);
    let none = two.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert!(!none.more_later, "nobody has anything");
    stream.enqueue(0..10).await;
    let got = claim_n(&one, &group, 5).await;
    let later = two.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert!(later.deliveries.is_empty() && later.more_later);
    one.settle(all(&got, &Settlement::Ack)).await.unwrap();
    let rest = claim_n(&two, &group, 5).await;
    assert_eq!(offsets(&rest), [5, 6, 7, 8, 9]);
    two.settle(all(&rest, &Settlement::Ack)).await.unwrap();
    let none = one.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert!(none.deliveries.is_empty() && !none.more_later);
}

/// A member that polls rarely, because its doorbell rings, learns of floors.
#[tokio::test]
async fn members_are_told_of_a_reset_and_a_replay() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..5).await;
    stream.sequence().await;
    reset_group(&mut stream.conn, &group, OffsetSpec::Latest).await.unwrap();
    assert_eq!(stream.number(FLOORS).await, 1);
    replay(&mut stream.conn, &group, OffsetSpec::Earliest, OffsetSpec::Latest).await.unwrap();
    assert_eq!(stream.number(FLOORS).await, 2);
}

/// Found by seed 92 of the simulation: they had been claimed, and stayed unhandled while their
/// worker lived.
#[tokio::test]
async fn what_a_group_tries_again_is_handled_though_its_stream_cannot_be_claimed_from() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..3).await;
    stream.sequence().await;
    let again = [NewMessage::new("again")];
    enqueue::insert(&mut stream.conn, group.id, &again).await.unwrap();
    let mut stranger = stream.db.connect().await;
    let lock = "SELECT next_offset FROM queue_cursor FOR UPDATE";
    stranger.batch("BEGIN").await.unwrap();
    stranger.batch(lock).await.unwrap();
    let worker = stream.worker().await;
    let claimed = worker.claim_of(&group, None, 5).await.unwrap();
    let ids: Vec<_> = claimed.deliveries.iter().map(|delivery| delivery.msg_id).collect();
    assert_eq!(ids, [again[0].msg_id]);
    stranger.batch("ROLLBACK").await.unwrap();
    let rest = worker.claim_of(&group, None, 5).await.unwrap();
    assert_eq!(rest.deliveries.len(), 3);
}
