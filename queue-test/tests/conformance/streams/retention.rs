//! What retention removes, and what a group behind it gets.

use rowmq_core::TopicName;
use rowmq_core::connection::{Connection, transaction};
use rowmq_core::model::{Offset, OffsetSpec, Retention, Settlement, TopicSettings};
use rowmq_core::store::stream::log::Stretch;
use rowmq_core::store::stream::progress;
use rowmq_core::store::topic;
use rowmq_core::stream::group::{create_group, replay, reset_group};
use rowmq_core::stream::retention::{Excess, Removed, excess, remove_excess};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use super::broadcast::member;
use super::{Stream, claim_n, offsets};
use crate::scene::{all, retry, wait_for_locks, worker_at};

impl Stream {
    pub(super) async fn retain(&mut self, retention: Retention) {
        let settings = TopicSettings { retention, ..TopicSettings::default() };
        topic::set(&mut self.conn, &self.topic.name, &settings).await.unwrap();
        self.topic = topic::existing(&mut self.conn, &self.topic.name).await.unwrap();
    }

    async fn excess(&mut self) -> Vec<Excess> {
        excess(&mut self.conn, &self.topic).await.unwrap()
    }

    async fn remove(&mut self, excess: Excess) -> Removed {
        transaction(&mut self.conn, "test", async |conn| remove_excess(conn, excess).await)
            .await
            .unwrap()
    }

    /// Runs the retention; returns how many messages of a stream in rows are left.
    pub(super) async fn prune(&mut self) -> i64 {
        let kept = self.prune_log().await;
        assert_eq!(self.number("SELECT COUNT(*) FROM queue_log").await, kept);
        kept
    }

    /// Runs the retention; returns how many messages are left.
    pub(super) async fn prune_log(&mut self) -> i64 {
        for excess in self.excess().await {
            let mut left = Some(excess);
            while let Some(excess) = left {
                left = self.remove(excess).await.left;
            }
        }
        self.number("SELECT SUM(next_offset - first_offset) FROM queue_partition").await
    }

    /// Makes the first `n` messages an hour old.
    pub(super) async fn age(&mut self, n: u64) {
        let sql = format!(
            "UPDATE queue_log SET sequenced_at = sequenced_at - INTERVAL 1 HOUR \
             WHERE offset_no < {n}"
        );
        self.conn.batch(&sql).await.unwrap();
    }
}

const HALF_AN_HOUR: std::time::Duration = std::time::Duration::from_secs(1800);

pub(super) fn by_time(hard: bool) -> Retention {
    Retention { time: Some(HALF_AN_HOUR), hard, ..Retention::default() }
}

#[tokio::test]
async fn a_stream_keeps_everything_unless_it_is_told_otherwise() {
    let mut stream = Stream::in_rows(1).await;
    stream.enqueue(0..100).await;
    stream.sequence().await;
    stream.age(100).await;
    assert_eq!(stream.prune().await, 100);
    stream.retain(by_time(false)).await;
    assert_eq!(stream.prune().await, 0, "no group needs it");
}

/// History H17.
#[tokio::test]
async fn old_messages_wait_for_the_slowest_group_unless_retention_is_hard() {
    let mut stream = Stream::in_rows(1).await;
    let (fast, slow) = (stream.group("fast", false).await, stream.group("slow", false).await);
    stream.enqueue(0..100).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &fast, 100).await;
    worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    let some = claim_n(&worker, &slow, 40).await;
    worker.settle(all(&some[..10], &Settlement::Ack)).await.unwrap();
    stream.age(70).await;
    stream.retain(by_time(false)).await;
    until("the mark of the slow group is pruned up to", async || stream.prune().await == 90).await;
    stream.retain(by_time(true)).await;
    assert_eq!(stream.prune().await, 30);
    // The group continues where the log now begins, and its lost messages are counted.
    worker.stop().await.unwrap();
    let worker = stream.worker().await;
    let (mut lost, mut got) = (0, Vec::new());
    while got.len() < 30 {
        let claimed = worker.claim_range(slow.group().unwrap(), 100).await.unwrap();
        lost += claimed.lost;
        got.extend(claimed.deliveries);
    }
    assert_eq!((offsets(&got), lost), ((70..100).collect::<Vec<_>>(), 60));
    worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    worker.stop().await.unwrap();
    let progress = progress::of_group(&mut stream.conn, slow.group().unwrap()).await.unwrap();
    assert_eq!((progress[0].lag, progress[0].lost), (0, 60));
}

#[tokio::test]
async fn what_every_group_has_handled_goes_at_once_if_it_may() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..50).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 50).await;
    stream.retain(Retention { handled: true, ..Retention::default() }).await;
    assert_eq!(stream.prune().await, 50);
    worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    assert_eq!(stream.prune().await, 0);
    reset_group(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap();
    assert_eq!(worker.claim_range(group.group().unwrap(), 9).await.unwrap().deliveries, []);
}

#[tokio::test]
async fn a_thousand_rows_are_removed_in_one_transaction() {
    let mut stream = Stream::in_rows(1).await;
    stream.enqueue(0..1100).await;
    stream.sequence().await;
    stream.age(1100).await;
    stream.retain(by_time(false)).await;
    let excess = stream.excess().await.pop().unwrap();
    let removed = stream.remove(excess).await;
    assert_eq!((removed.offsets, removed.left.is_some()), (1000, true));
    let removed = stream.remove(removed.left.unwrap()).await;
    assert_eq!(removed, Removed { offsets: 100, left: None });
}

/// A reset during retention finds the messages it goes back to: retention removes none of them.
#[tokio::test]
async fn what_a_group_is_put_back_to_while_retention_is_at_work_stays() {
    for retention in [by_time(false), Retention { handled: true, ..by_time(true) }] {
        let mut stream = Stream::in_rows(1).await;
        let group = stream.group("g", false).await;
        stream.enqueue(0..100).await;
        stream.sequence().await;
        stream.age(if retention.hard { 10 } else { 100 }).await;
        reset_group(&mut stream.conn, &group, OffsetSpec::Latest).await.unwrap();
        stream.retain(retention).await;
        let found = stream.excess().await;
        assert_eq!(found.last().unwrap().stretch.hi, Offset(100));
        reset_group(&mut stream.conn, &group, OffsetSpec::Offset(Offset(30))).await.unwrap();
        for excess in &found {
            assert_eq!(stream.remove(*excess).await.left, None);
        }
        assert_eq!(stream.number("SELECT MIN(offset_no) FROM queue_log").await, 30);
        let none = Removed { offsets: 0, left: None };
        let needed = Stretch { lo: Offset(30), ..found[0].stretch };
        assert_eq!(stream.remove(Excess { stretch: needed, if_handled: true }).await, none);
    }
}

/// A group that is put back while retention removes messages goes back to those that are kept then,
/// and the others do not count as lost.
#[tokio::test]
async fn a_reset_and_a_replay_wait_for_a_retention_under_way() {
    for replays in [false, true] {
        let mut stream = Stream::in_rows(1).await;
        let group = stream.group("g", false).await;
        stream.enqueue(0..10).await;
        stream.sequence().await;
        stream.age(6).await;
        reset_group(&mut stream.conn, &group, OffsetSpec::Latest).await.unwrap();
        stream.retain(by_time(false)).await;
        let excess = stream.excess().await[0];
        let mut janitor = stream.db.connect().await;
        janitor.batch("BEGIN").await.unwrap();
        assert_eq!(remove_excess(&mut janitor, excess).await.unwrap().offsets, 6);
        let mut operator = stream.db.connect().await;
        wait_for_locks(&mut operator).await;
        let put_back = transaction(&mut operator, "test", async |conn| match replays {
            true => replay(conn, &group, OffsetSpec::Earliest, OffsetSpec::Latest).await.map(drop),
            false => reset_group(conn, &group, OffsetSpec::Earliest).await,
        });
        let commit = async {
            until("the operator waits", async || stream.lock_waits().await > 0).await;
            janitor.batch("COMMIT").await.unwrap();
        };
        let (done, ()) = tokio::join!(put_back, commit);
        done.unwrap();
        let again = claim_n(&stream.worker().await, &group, 4).await;
        assert_eq!(offsets(&again), [6, 7, 8, 9], "replays {replays}");
        let progress = progress::of_group(&mut stream.conn, group.group().unwrap()).await.unwrap();
        assert_eq!((progress[0].lag, progress[0].lost), (4, 0), "replays {replays}");
    }
}

/// A group or a named member that begins while retention removes messages begins with those that
/// are kept, and the others do not count as lost.
#[tokio::test]
async fn a_new_group_and_a_new_member_wait_for_a_retention_under_way() {
    let mut stream = Stream::in_rows(1).await;
    let broadcast = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..10).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    let member = member(&broadcast, Some("a"));
    stream.age(6).await;
    stream.retain(by_time(false)).await;
    let excess = stream.excess().await[0];
    let mut janitor = stream.db.connect().await;
    janitor.batch("BEGIN").await.unwrap();
    assert_eq!(remove_excess(&mut janitor, excess).await.unwrap().offsets, 6);
    let mut operator = stream.db.connect().await;
    wait_for_locks(&mut operator).await;
    let name = TopicName::of_group(&stream.topic.name, "new").unwrap();
    let created = transaction(&mut operator, "test", async |conn| {
        let (start, settings) = (OffsetSpec::Earliest, TopicSettings::default());
        create_group(conn, &name, false, start, &settings).await
    });
    let reading = async {
        loop {
            match worker.read(&member, 10).await {
                // It waits twice for a second.
                Err(error) if error.fault().is_conflict() => {}
                read => break read,
            }
        }
    };
    let commit = async {
        until("both wait", async || stream.lock_waits().await > 1).await;
        janitor.batch("COMMIT").await.unwrap();
    };
    let (created, read, ()) = tokio::join!(created, reading, commit);
    created.unwrap();
    assert_eq!(offsets(&read.unwrap().deliveries), [6, 7, 8, 9]);
    let new = topic::existing(&mut stream.conn, &name).await.unwrap();
    let progress = progress::of_group(&mut stream.conn, new.group().unwrap()).await.unwrap();
    assert_eq!((progress[0].lag, progress[0].lost), (4, 0));
    let lost = "SELECT CAST(SUM(lost) AS SIGNED) FROM queue_member";
    assert_eq!(stream.number(lost).await, 0);
}

#[tokio::test]
async fn a_stream_keeps_about_as_many_bytes_as_it_may() {
    let mut stream = Stream::in_rows(1).await;
    for n in 0..10 {
        let body = |n: usize| rowmq_core::NewMessage::new(vec![b'x'; 1000 + n % 2]);
        let messages: Vec<_> = (n * 100..n * 100 + 100).map(body).collect();
        rowmq_core::enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
    }
    stream.sequence().await;
    stream.retain(Retention { bytes: Some(100_000), ..Retention::default() }).await;
    let kept = stream.prune().await;
    assert!((95..=100).contains(&kept), "{kept}");
}

#[tokio::test]
async fn a_failed_message_that_retention_has_removed_is_lost_and_holds_nothing_up() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..6).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 6).await;
    stream.age(3).await;
    stream.retain(by_time(true)).await;
    assert_eq!(stream.prune().await, 3);
    worker.settle(all(&got[1..4], &retry(HALF_AN_HOUR))).await.unwrap();
    worker.settle(all(&got[..1], &Settlement::Ack)).await.unwrap();
    worker.settle(all(&got[4..], &Settlement::Ack)).await.unwrap();
    until("the range is over", async || {
        stream.number("SELECT COUNT(*) FROM queue_range").await == 0
    })
    .await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_scheduled").await, 1);
    let progress = progress::of_group(&mut stream.conn, group.group().unwrap()).await.unwrap();
    assert_eq!(progress[0].lost, 2);
}

#[tokio::test]
async fn messages_are_handled_also_if_those_that_are_lost_beside_them_cannot_be_counted() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..6).await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 6).await;
    worker.stop().await.unwrap();
    stream.age(3).await;
    stream.retain(by_time(true)).await;
    assert_eq!(stream.prune().await, 3);
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = worker_at(&proxy.url(stream.db.url())).await;
    proxy.cut_before("UPDATE queue_cursor SET lost");
    let got = claim_n(&worker, &group, 3).await;
    proxy.sprung().await;
    assert_eq!(offsets(&got), [3, 4, 5]);
    worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    worker.stop().await.unwrap();
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
}
