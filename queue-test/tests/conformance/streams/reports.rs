//! A worker's reports on its ranges, whatever happens to commits, connections and messages.

use std::time::Duration;

use rowmq_core::connection::{Connection, transaction};
use rowmq_core::model::{Offset, OffsetSpec, RangeId, Settlement};
use rowmq_core::store::stream::passed;
use rowmq_core::store::stream::range::{self, Lock};
use rowmq_core::stream::group::{leave, reset_group};
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{AsyncMysqlConnection, Delivery, Topic};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;

use super::{Stream, claim_n, offsets};
use crate::scene::{all, retry, threads, wait_for_locks, worker_at};

const RANGES: &str = "SELECT COUNT(*) FROM queue_range";
const PASSED: &str = "SELECT COUNT(*) FROM queue_passed";
const TRIED_AGAIN: &str = "SELECT COUNT(*) FROM queue_scheduled";

/// Acks a message as a handler's transaction does: under the lock of its range.
async fn ack_in_transaction(conn: &mut AsyncMysqlConnection, worker: &Worker, one: &Delivery) {
    let range = lock_in_transaction(conn, worker, one).await;
    passed::insert(conn, range, one.position.unwrap().offset).await.unwrap();
}

/// Locks the range as a handler's transaction does before it acks.
async fn lock_in_transaction(
    conn: &mut AsyncMysqlConnection,
    worker: &Worker,
    one: &Delivery,
) -> RangeId {
    conn.batch("BEGIN").await.unwrap();
    let claims = [one.claim_no];
    range::of_claims(conn, worker.id(), &claims, Lock::Shared).await.unwrap()[0].id
}

impl Stream {
    async fn one_group(n: usize, ordered: bool) -> (Self, Topic) {
        let mut stream = Self::new(1).await;
        let group = stream.group("g", ordered).await;
        stream.enqueue(0..n).await;
        stream.sequence().await;
        (stream, group)
    }

    async fn worker_through(&self, proxy: &FaultProxy) -> Worker {
        worker_at(&proxy.url(self.db.url())).await
    }

    async fn until_over(&mut self) {
        until("no range is left", async || self.number(RANGES).await == 0).await;
        assert_eq!(self.number(PASSED).await, 0);
    }
}

async fn ack(worker: &Worker, deliveries: &[Delivery]) {
    worker.settle(all(deliveries, &Settlement::Ack)).await.unwrap();
}

async fn release(worker: &Worker, deliveries: &[Delivery]) {
    worker.settle(deliveries.iter().map(Settled::release).collect()).await.unwrap();
}

/// A handler is interrupted, or out of time, while its transaction's commit is in flight.
#[tokio::test]
async fn what_a_commit_under_way_has_acked_is_neither_released_nor_tried_again() {
    for (ordered, failed) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut stream, group) = Stream::one_group(5, ordered).await;
        let worker = stream.worker().await;
        let got = claim_n(&worker, &group, 5).await;
        let mut handler = stream.db.connect().await;
        ack_in_transaction(&mut handler, &worker, &got[0]).await;
        let settle = async {
            if failed {
                worker.settle(all(&got[..1], &retry(Duration::ZERO))).await.unwrap();
            } else {
                release(&worker, &got[..1]).await;
            }
            ack(&worker, &got[1..]).await;
        };
        let commit = async {
            until("somebody waits", async || stream.lock_waits().await > 0).await;
            handler.batch("COMMIT").await.unwrap();
        };
        tokio::join!(settle, commit);
        stream.until_over().await;
        assert_eq!(stream.number(TRIED_AGAIN).await, 0, "ordered {ordered}, failed {failed}");
    }
}

#[tokio::test]
async fn an_ack_in_doubt_that_nobody_could_look_for_is_found_when_its_range_is_told_of() {
    for acked in [true, false] {
        let (mut stream, group) = Stream::one_group(3, false).await;
        let proxy = FaultProxy::start(stream.db.url()).await;
        let worker = stream.worker_through(&proxy).await;
        let got = claim_n(&worker, &group, 3).await;
        if acked {
            let mut handler = stream.db.connect().await;
            ack_in_transaction(&mut handler, &worker, &got[1]).await;
            handler.batch("COMMIT").await.unwrap();
        }
        proxy.cut_before("SELECT queue_passed.offset_no");
        let in_doubt = vec![Settled::release(&got[1])];
        worker.release_in_doubt(in_doubt).await.unwrap();
        proxy.sprung().await;
        ack(&worker, &got[..1]).await;
        ack(&worker, &got[2..]).await;
        if !acked {
            let again = claim_n(&worker, &group, 1).await;
            assert_eq!(offsets(&again), [1]);
            ack(&worker, &again).await;
        }
        stream.until_over().await;
    }
}

/// Found by the simulation: such an ack was reported as a release that the database had accepted.
#[tokio::test]
async fn an_ack_in_doubt_that_a_report_has_found_is_no_release() {
    let (mut stream, group) = Stream::one_group(3, false).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 3).await;
    let mut handler = stream.db.connect().await;
    ack_in_transaction(&mut handler, &worker, &got[1]).await;
    handler.batch("COMMIT").await.unwrap();
    // A report of more than acks takes the lock of the range, and looks for such acks.
    let discard = Settlement::Discard { reason: "of no use".to_owned() };
    worker.settle(all(&got[..1], &discard)).await.unwrap();
    let mark = "SELECT CAST(mark AS SIGNED) FROM queue_range";
    until("a report has found it", async || stream.number(mark).await == 2).await;
    let in_doubt = vec![Settled::release(&got[1])];
    let outcomes = worker.release_in_doubt(in_doubt).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Unknown]);
    ack(&worker, &got[2..]).await;
    stream.until_over().await;
}

#[tokio::test]
async fn an_ack_that_the_server_has_lost_is_handled_again() {
    let (mut stream, group) = Stream::one_group(5, false).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 5).await;
    // The worker got the reply to the handler's commit, and a failover has undone the commit.
    worker.forget(vec![(got[2].claim_no, got[2].row)]).await.unwrap();
    for one in [0, 1, 3, 4] {
        ack(&worker, &got[one..=one]).await;
    }
    let again = claim_n(&worker, &group, 1).await;
    assert_eq!((offsets(&again), again[0].delivery_no.0), (vec![2], 2));
    ack(&worker, &again).await;
    stream.until_over().await;
}

#[tokio::test]
async fn what_is_handled_again_after_a_failover_leaves_out_what_transactions_had_acked() {
    let (mut stream, group) = Stream::one_group(6, false).await;
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = stream.worker_through(&proxy).await;
    let got = claim_n(&worker, &group, 6).await;
    ack(&worker, &got[..3]).await;
    let mark = "SELECT COUNT(*) FROM queue_range WHERE mark = 3";
    until("the mark is at 3", async || stream.number(mark).await == 1).await;
    // As on a server that has lost the mark, but not an earlier transaction.
    stream.sql("INSERT INTO queue_passed SELECT id, 1 FROM queue_range").await;
    stream.sql("INSERT INTO queue_passed SELECT id, 4 FROM queue_range").await;
    stream.sql("UPDATE queue_range SET mark = 0").await;
    proxy.reset();
    let other = stream.worker().await;
    let again = claim_n(&other, &group, 2).await;
    assert_eq!(offsets(&again), [0, 2]);
    ack(&other, &again).await;
    release(&worker, &got[3..]).await;
    let rest = claim_n(&other, &group, 2).await;
    assert_eq!(offsets(&rest), [3, 5]);
    ack(&other, &rest).await;
    stream.until_over().await;
}

#[tokio::test]
async fn what_is_acked_while_a_reply_is_lost_is_said_without_another_settle() {
    let (mut stream, group) = Stream::one_group(10, false).await;
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = stream.worker_through(&proxy).await;
    let got = claim_n(&worker, &group, 10).await;
    proxy.drop_reply_after("UPDATE queue_range SET mark");
    ack(&worker, &got[..3]).await;
    proxy.sprung().await;
    ack(&worker, &got[3..9]).await;
    // Another call reconnects, and finds that the lost reply was a yes.
    until("the worker has reconnected", async || {
        let Ok(none) = worker.claim_range(group.group().unwrap(), 1).await else { return false };
        assert_eq!(none.deliveries, []);
        true
    })
    .await;
    let mark = "SELECT COUNT(*) FROM queue_range WHERE mark = 9";
    until("the mark is at 9", async || stream.number(mark).await == 1).await;
}

/// To a session that has not compared its ranges yet, this may look like the loss of the range.
#[tokio::test]
async fn a_reconnect_that_fails_half_way_fences_nothing() {
    let (mut stream, group) = Stream::one_group(10, false).await;
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = stream.worker_through(&proxy).await;
    let got = claim_n(&worker, &group, 10).await;
    let session = "SELECT CAST(conn_id AS SIGNED) FROM queue_worker";
    let before = stream.number(session).await;
    proxy.drop_reply_after("UPDATE queue_range SET mark");
    ack(&worker, &got[..3]).await;
    proxy.sprung().await;
    // The comparison fails, but its connection stays open.
    stream.sql("RENAME TABLE queue_claim TO away").await;
    until("the worker has reconnected", async || stream.number(session).await != before).await;
    ack(&worker, &got[3..5]).await;
    stream.sql("RENAME TABLE away TO queue_claim").await;
    ack(&worker, &got[5..9]).await;
    let mark = "SELECT COUNT(*) FROM queue_range WHERE mark = 9 AND worker_id <> 0";
    until("the mark is at 9", async || stream.number(mark).await == 1).await;
}

#[tokio::test]
async fn a_range_that_cannot_be_told_of_holds_up_no_other() {
    let (mut stream, group) = Stream::one_group(4, false).await;
    let worker = stream.worker().await;
    let first = claim_n(&worker, &group, 2).await;
    let second = claim_n(&worker, &group, 2).await;
    let mut stranger = stream.db.connect().await;
    stranger
        .batch("BEGIN; SELECT id FROM queue_range ORDER BY id LIMIT 1 FOR UPDATE")
        .await
        .unwrap();
    let of_both = [first, second].concat();
    ack(&worker, &of_both).await;
    until("the other is over", async || stream.number(RANGES).await == 1).await;
    stranger.batch("ROLLBACK").await.unwrap();
    stream.until_over().await;
}

#[tokio::test]
async fn a_worker_that_stops_says_what_it_could_not_say_before() {
    let (mut stream, group) = Stream::one_group(10, false).await;
    let proxy = FaultProxy::start(stream.db.url()).await;
    let worker = stream.worker_through(&proxy).await;
    let got = claim_n(&worker, &group, 10).await;
    let session = stream.number("SELECT CAST(conn_id AS SIGNED) FROM queue_worker").await;
    proxy.cut_before("UPDATE queue_range SET mark");
    ack(&worker, &got[..5]).await;
    proxy.sprung().await;
    // Until then a new session may find the name lock taken, and a stop does not try for ever.
    until("the server has ended the session", async || {
        threads(&mut stream.conn).await.iter().all(|thread| thread.id != session.unsigned_abs())
    })
    .await;
    worker.stop().await.unwrap();
    let next = stream.worker().await;
    assert_eq!(offsets(&claim_n(&next, &group, 5).await), [5, 6, 7, 8, 9]);
}

#[tokio::test]
async fn a_worker_that_stops_leaves_the_message_at_the_mark_what_it_has_been_through() {
    let (mut stream, group) = Stream::one_group(6, true).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 6).await;
    worker.settle(all(&got[..1], &retry(Duration::ZERO))).await.unwrap();
    let again = claim_n(&worker, &group, 6).await;
    assert_eq!(again[0].failures, 1);
    ack(&worker, &again[4..5]).await;
    worker.stop().await.unwrap();
    let told = "SELECT COUNT(*) FROM queue_range WHERE mark = 0 AND hi = 4 AND failures = 1 \
         AND history LIKE '%not yet%'";
    assert_eq!(stream.number(told).await, 1);
    let next = stream.worker().await;
    let again = claim_n(&next, &group, 4).await;
    assert_eq!((offsets(&again), again[0].failures), (vec![0, 1, 2, 3], 1));
    ack(&next, &again).await;
    let rest = claim_n(&next, &group, 1).await;
    assert_eq!((offsets(&rest), rest[0].failures), (vec![5], 0));
}

#[tokio::test]
async fn forgetting_what_was_acked_waits_for_no_other_range() {
    let mut stream = Stream::new(1).await;
    stream.sql("INSERT INTO queue_passed VALUES (1, 0), (1, 1), (1, 7)").await;
    let mut other = stream.db.connect().await;
    other.batch("BEGIN; INSERT INTO queue_passed VALUES (2, 0), (1, 9)").await.unwrap();
    stream.sql("SET innodb_lock_wait_timeout = 1").await;
    let conn = &mut stream.conn;
    let (one, three) = (RangeId(1), RangeId(3));
    assert_eq!(passed::delete(conn, one, &[Offset(0)]).await.unwrap(), 1);
    let stretch = (Offset(1), Offset(2));
    assert_eq!(passed::hand_on(conn, one, three, stretch).await.unwrap(), 1);
    assert_eq!(passed::of_range(conn, three).await.unwrap(), [Offset(1)]);
    assert_eq!(passed::forget(conn, one, Offset(8)).await.unwrap(), 1);
    assert_eq!(passed::forget(conn, one, Offset(8)).await.unwrap(), 0);
    other.batch("ROLLBACK").await.unwrap();
}

/// H16, and seed 567 of the simulation: an ack that is in flight when its group is reset leaves
/// nothing behind, and does not count for one of the ranges that come next.
#[tokio::test]
async fn a_reset_and_an_end_of_a_group_wait_for_an_ack_under_way_and_forget_it() {
    for (ordered, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let (mut stream, group) = Stream::one_group(5, ordered).await;
        let worker = stream.worker().await;
        let got = claim_n(&worker, &group, 5).await;
        let mut handler = stream.db.connect().await;
        let range = lock_in_transaction(&mut handler, &worker, &got[0]).await;
        let mut operator = stream.db.connect().await;
        wait_for_locks(&mut operator).await;
        let put_elsewhere = transaction(&mut operator, "test", async |conn| match ends {
            true => leave(conn, &group).await,
            false => reset_group(conn, &group, OffsetSpec::Earliest).await,
        });
        let ack = async {
            until("somebody waits", async || stream.lock_waits().await > 0).await;
            passed::insert(&mut handler, range, got[0].position.unwrap().offset).await.unwrap();
            handler.batch("COMMIT").await.unwrap();
        };
        let (done, ()) = tokio::join!(put_elsewhere, ack);
        done.unwrap();
        let left = (stream.number(RANGES).await, stream.number(PASSED).await);
        assert_eq!(left, (0, 0), "ordered {ordered}, ends {ends}");
        let outcomes = worker.settle(all(&got[..1], &retry(Duration::ZERO))).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Fenced], "ordered {ordered}, ends {ends}");
        if !ends {
            let again = claim_n(&stream.worker().await, &group, 5).await;
            assert_eq!(offsets(&again), [0, 1, 2, 3, 4], "all of it comes again");
        }
    }
}
