//! Ranges whose worker is gone.

use rowmq_core::connection::{Connection, transaction};
use rowmq_core::model::{OffsetSpec, PartitionNo, RangeId, Settlement};
use rowmq_core::rescue::{TakenBack, Why, rows_held, take_range_back};
use rowmq_core::store::stream::range::{
    self, Zombie, held_back, left_of, messages_of, orphans, zombies,
};
use rowmq_core::stream::group::reset_group;
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{AsyncMysqlConnection, Delivery, Topic};

use super::{Stream, claim_n, offsets};
use crate::scene::{all, retry};

impl Stream {
    async fn declare_all_dead(&mut self) {
        let dead = "UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6)";
        self.conn.batch(dead).await.unwrap();
    }

    async fn zombies(&mut self) -> Vec<Zombie> {
        zombies(&mut self.conn, RangeId(0), 100).await.unwrap()
    }

    /// Takes back every range of a dead worker.
    async fn rescue(&mut self, why: Why) -> TakenBack {
        let mut taken = TakenBack::default();
        for zombie in self.zombies().await {
            let one = take_range_back(&mut self.conn, &zombie.range, why).await.unwrap();
            taken.freed += one.freed;
            taken.dead_lettered += one.dead_lettered;
            taken.left += one.left;
        }
        taken
    }
}

/// Creates a worker that holds only the message at the mark, and lets it crash.
async fn die_alone(stream: &mut Stream, group: &Topic) -> Delivery {
    let worker = stream.worker().await;
    let claimed = worker.claim_suspect_range(group.group().unwrap()).await.unwrap().deliveries;
    assert_eq!(claimed.len(), 1);
    stream.declare_all_dead().await;
    claimed.into_iter().next().unwrap()
}

const CRASHED: Why = Why::Crashed { rows_held: 10 };
const ALONE: Why = Why::Crashed { rows_held: 1 };

#[tokio::test]
async fn the_ranges_of_a_dead_worker_are_claimed_again_from_their_marks() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..20).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 20).await;
    worker.settle(all(&got[..5], &retry(std::time::Duration::from_secs(60)))).await.unwrap();
    assert_eq!(messages_of(&mut stream.conn, worker.id()).await.unwrap(), 15);
    assert_eq!(stream.zombies().await, []);
    stream.declare_all_dead().await;
    assert!(stream.zombies().await.iter().all(|zombie| zombie.crashed));
    assert_eq!(stream.rescue(CRASHED).await, TakenBack { freed: 15, ..Default::default() });
    // A worker that was taken for dead is fenced, and files nothing.
    let late = worker.settle(all(&got[5..], &retry(std::time::Duration::ZERO))).await;
    assert!(late.is_err() || late.unwrap().iter().all(|it| *it == SettleOutcome::Fenced));
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_scheduled").await, 5);
    let next = stream.worker().await;
    assert_eq!(offsets(&claim_n(&next, &group, 15).await), (5..20).collect::<Vec<_>>());
}

/// A hanging transaction of a handler keeps its own range, and no other worker's.
#[tokio::test]
async fn a_range_that_is_locked_is_left_for_the_next_sweep_and_the_others_are_not() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..10).await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 4).await;
    claim_n(&worker, &group, 6).await;
    stream.declare_all_dead().await;
    let mut frozen = stream.db.connect().await;
    frozen.batch("BEGIN").await.unwrap();
    frozen.batch("UPDATE queue_range SET hi = hi WHERE mark = 0").await.unwrap();
    let floors = "SELECT COALESCE(SUM(seq), 0) FROM queue_floor";
    let some = TakenBack { freed: 6, left: 4, ..Default::default() };
    assert_eq!(stream.rescue(CRASHED).await, some);
    assert_eq!(stream.number(floors).await, 1, "the members are told");
    let left = stream.zombies().await[0].range;
    assert_eq!(left_of(&mut stream.conn, &left).await.unwrap(), 4);
    frozen.batch("ROLLBACK").await.unwrap();
    assert_eq!(stream.rescue(CRASHED).await, TakenBack { freed: 4, ..Default::default() });
    assert_eq!(stream.number(floors).await, 2);
    assert_eq!(left_of(&mut stream.conn, &left).await.unwrap(), 0);
}

#[tokio::test]
async fn ranges_of_workers_without_a_row_are_found_and_nobody_is_blamed() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 3).await;
    assert_eq!(orphans(&mut stream.conn, RangeId(0), 10).await.unwrap(), []);
    stream.conn.batch("DELETE FROM queue_worker").await.unwrap();
    let found = orphans(&mut stream.conn, RangeId(0), 10).await.unwrap();
    assert_eq!((found.len(), found[0].crashed), (1, false));
    let taken = take_range_back(&mut stream.conn, &found[0].range, Why::NotNeeded).await.unwrap();
    assert_eq!(taken.freed, 3);
    let ranges = range::of_partition(&mut stream.conn, group.id, PartitionNo(0)).await.unwrap();
    assert_eq!((ranges[0].suspicions, ranges[0].crashes), (0, 0));
}

/// H22 in a stream: only the message that crashes its worker alone is dead-lettered.
#[tokio::test]
async fn messages_that_shared_crashes_are_claimed_alone_and_only_lone_crashes_count() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..5).await;
    for _ in 0..2 {
        let worker = stream.worker().await;
        assert_eq!(claim_n(&worker, &group, 5).await.len(), 5);
        stream.declare_all_dead().await;
        assert_eq!(stream.rescue(CRASHED).await.freed, 5);
    }
    let worker = stream.worker().await;
    let shared = worker.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert_eq!((shared.deliveries.len(), shared.suspect_waits), (0, true));
    for crash in 0..3 {
        let delivery = die_alone(&mut stream, &group).await;
        assert_eq!((delivery.crashes, delivery.position.unwrap().offset.0), (crash, 0));
        let taken = stream.rescue(ALONE).await;
        assert_eq!((taken.freed, taken.dead_lettered), if crash < 2 { (1, 0) } else { (0, 1) });
    }
    let dead = "SELECT COUNT(*) FROM queue_dead WHERE body = '0' AND cause = 'crashes' \
         AND crashes = 3";
    assert_eq!(stream.number(dead).await, 1);
    // The innocent messages are handled one by one.
    let worker = stream.worker().await;
    for offset in 1..5 {
        let claimed = worker.claim_suspect_range(group.group().unwrap()).await.unwrap().deliveries;
        assert_eq!(offsets(&claimed), [offset]);
        worker.settle(all(&claimed, &Settlement::Ack)).await.unwrap();
    }
    worker.stop().await.unwrap();
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
}

#[tokio::test]
async fn a_message_that_a_transaction_has_acked_is_not_what_its_worker_died_of() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..1).await;
    let worker = stream.worker().await;
    claim_n(&worker, &group, 1).await;
    stream.conn.batch("UPDATE queue_range SET crashes = 2").await.unwrap();
    stream.conn.batch("INSERT INTO queue_passed SELECT id, 0 FROM queue_range").await.unwrap();
    stream.declare_all_dead().await;
    assert_eq!(stream.rescue(ALONE).await, TakenBack { freed: 1, ..Default::default() });
    let next = stream.worker().await;
    let none = next.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert_eq!(none.deliveries, []);
    next.stop().await.unwrap();
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_passed").await, 0);
}

/// A handler of a range that a reset has taken away may still run: if its worker then crashes, the
/// one message that the worker holds need not be the cause.
#[tokio::test]
async fn a_crash_after_a_reset_is_not_lone() {
    let mut stream = Stream::new(1).await;
    let (one, other) = (stream.group("g", false).await, stream.group("h", false).await);
    stream.enqueue(0..1).await;
    let worker = stream.worker().await;
    claim_n(&worker, &one, 1).await;
    claim_n(&worker, &other, 1).await;
    let reset =
        async |conn: &mut AsyncMysqlConnection| reset_group(conn, &one, OffsetSpec::Earliest).await;
    transaction(&mut stream.conn, "reset", reset).await.unwrap();
    assert_eq!(range::timed(&mut stream.conn, RangeId(0), 10).await.unwrap(), []);
    assert_eq!(messages_of(&mut stream.conn, worker.id()).await.unwrap(), 1);
    assert!(rows_held(&mut stream.conn, worker.id()).await.unwrap() > 1);
    let neighbour = stream.worker().await;
    claim_n(&neighbour, &one, 1).await;
    assert_eq!(rows_held(&mut stream.conn, neighbour.id()).await.unwrap(), 1);
}

#[tokio::test]
async fn what_holds_an_ordered_group_back_is_shown_with_its_error() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", true).await;
    let sent = stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 3).await;
    worker.settle(all(&got[..1], &Settlement::Ack)).await.unwrap();
    worker.settle(all(&got[1..2], &retry(std::time::Duration::from_secs(60)))).await.unwrap();
    let held = held_back(&mut stream.conn, group.group().unwrap()).await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].offset.0, held[0].msg_id), (1, Some(sent[1].msg_id)));
    assert_eq!((held[0].failures, held[0].last_error.as_deref()), (1, Some("not yet")));
}
