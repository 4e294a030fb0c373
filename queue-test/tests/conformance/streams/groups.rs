//! Groups: claims of ranges, acks, retries, dead letters, resets.

use std::collections::BTreeSet;
use std::time::Duration;

use rowmq_core::model::{DeadCause, Offset, OffsetSpec, Settlement};
use rowmq_core::store::stream::member::progress;
use rowmq_core::store::stream::progress::of_group;
use rowmq_core::store::stream::{cursor, range};
use rowmq_core::stream::group::{replay, reset_group};
use rowmq_core::worker::SettleOutcome;
use rowmq_test::until;

use super::broadcast::{member, read_n};
use super::{Stream, claim_n, offsets};
use crate::scene::{all, bodies, numbers, retry, start_worker, worker_options};

const HOUR: Duration = Duration::from_secs(3600);

const RANGES: &str = "SELECT COUNT(*) FROM queue_range";

#[tokio::test]
async fn each_group_gets_every_message_and_each_message_goes_to_one_member() {
    let mut stream = Stream::new(3).await;
    let groups = [stream.group("a", false).await, stream.group("b", false).await];
    stream.enqueue(0..300).await;
    for group in &groups {
        let (one, two) = (stream.worker().await, stream.worker().await);
        let mut got = Vec::new();
        while got.len() < 300 {
            for worker in [&one, &two] {
                let some = worker.claim_range(group.group().unwrap(), 20).await.unwrap().deliveries;
                worker.settle(all(&some, &Settlement::Ack)).await.unwrap();
                got.extend(some);
            }
        }
        let got: BTreeSet<String> = bodies(&got).into_iter().collect();
        assert_eq!(got, numbers(0..300).into_iter().collect());
        for worker in [one, two] {
            worker.stop().await.unwrap();
        }
        assert_eq!(stream.number(RANGES).await, 0);
        for work in cursor::group_work(&mut stream.conn, group.group().unwrap()).await.unwrap().work
        {
            assert_eq!((work.unclaimed, work.busy, work.free), (0, 0, 0));
        }
    }
    assert_eq!(stream.number("SELECT SUM(messages) FROM queue_log").await, 300);
}

#[tokio::test]
async fn the_lag_in_time_counts_from_the_offset_in_rows_and_in_pages() {
    for (in_pages, messages) in [(false, 2), (true, 1), (true, 2)] {
        let mut stream = if in_pages { Stream::new(1).await } else { Stream::in_rows(1).await };
        let group = stream.group("g", false).await;
        let to_all = stream.broadcast(OffsetSpec::Earliest).await;
        stream.enqueue(0..messages).await;
        stream.sequence().await;
        read_n(&stream.worker().await, &member(&to_all, Some("a")), messages).await;
        stream
            .sql(
                "UPDATE queue_log SET enqueued_at = enqueued_at - INTERVAL 2 HOUR, \
                 sequenced_at = sequenced_at - INTERVAL 1 HOUR",
            )
            .await;
        let of_group = of_group(&mut stream.conn, group.group().unwrap()).await.unwrap();
        let of_member = progress(&mut stream.conn, to_all.broadcast().unwrap()).await.unwrap();
        for age in [of_group[0].age(), of_member[0].age()] {
            assert!(age.is_some_and(|age| (HOUR..HOUR * 3 / 2).contains(&age)), "{age:?}");
        }
    }
}

#[tokio::test]
async fn what_is_not_settled_when_a_worker_stops_is_claimed_again_and_nothing_else_is() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..10).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 10).await;
    let done: Vec<_> = [0, 1, 4, 5, 8].map(|n| got[n].clone()).into();
    worker.settle(all(&done, &Settlement::Ack)).await.unwrap();
    worker.stop().await.unwrap();
    let worker = stream.worker().await;
    let again = claim_n(&worker, &group, 5).await;
    assert_eq!(offsets(&again), [2, 3, 6, 7, 9]);
    assert!(again.iter().all(|one| one.delivery_no.0 == 2));
    worker.settle(all(&again, &Settlement::Ack)).await.unwrap();
    worker.stop().await.unwrap();
    assert_eq!(stream.number(RANGES).await, 0);
}

#[tokio::test]
async fn a_failed_message_is_tried_again_by_its_group_alone_and_dead_with_its_body() {
    let mut stream = Stream::new(1).await;
    let (group, other) = (stream.group("g", false).await, stream.group("o", false).await);
    stream.enqueue(0..4).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 4).await;
    worker.settle(all(&got[..1], &retry(Duration::from_secs(60)))).await.unwrap();
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    worker.settle(all(&got[1..2], &dead)).await.unwrap();
    let discard = Settlement::Discard { reason: "old".to_owned() };
    worker.settle(all(&got[2..3], &discard)).await.unwrap();
    worker.settle(all(&got[3..], &Settlement::Ack)).await.unwrap();
    until("the range is over", async || stream.number(RANGES).await == 0).await;
    let id = group.id.0;
    for (table, body) in [("queue_scheduled", 0), ("queue_dead", 1), ("queue_archive", 2)] {
        let query = format!(
            "SELECT COUNT(*) FROM {table} WHERE topic_id = {id} AND body = '{body}' AND delivery_no = 1"
        );
        assert_eq!(stream.number(&query).await, 1, "{table}");
        assert_eq!(stream.number(&format!("SELECT COUNT(*) FROM {table}")).await, 1, "{table}");
    }
    let failed = "SELECT COUNT(*) FROM queue_scheduled WHERE failures = 1 AND last_error = 'not yet' \
         AND history LIKE '%\"error\":\"not yet\"%'";
    assert_eq!(stream.number(failed).await, 1);
    assert_eq!(claim_n(&worker, &other, 4).await.len(), 4, "the other group has lost nothing");
}

#[tokio::test]
async fn acks_alone_are_said_a_little_later_and_are_said() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..10).await;
    let worker = stream.worker().await;
    let got = claim_n(&worker, &group, 10).await;
    let outcomes = worker.settle(all(&got[..5], &Settlement::Ack)).await.unwrap();
    // On a busy machine they may be due at once.
    let deferred = outcomes == [SettleOutcome::Deferred; 5];
    assert!(deferred || outcomes == [SettleOutcome::Settled; 5], "{outcomes:?}");
    let mark = "SELECT COUNT(*) FROM queue_range WHERE mark = 5";
    until("the mark is at 5", async || stream.number(mark).await == 1).await;
}

/// History H16.
#[tokio::test]
async fn a_reset_fences_what_is_claimed_and_nothing_comes_twice() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..100).await;
    let before = stream.worker().await;
    let old = claim_n(&before, &group, 60).await;
    reset_group(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap();
    assert_eq!(stream.number(RANGES).await, 0);
    let outcomes = before.settle(all(&old, &retry(Duration::ZERO))).await.unwrap();
    assert!(outcomes.iter().all(|outcome| *outcome == SettleOutcome::Fenced), "{outcomes:?}");
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_scheduled").await, 0);
    let after = stream.worker().await;
    let new = claim_n(&after, &group, 100).await;
    after.settle(all(&new, &Settlement::Ack)).await.unwrap();
    before.stop().await.unwrap();
    assert_eq!(after.claim_range(group.group().unwrap(), 10).await.unwrap().deliveries, []);
    let mut got = bodies(&new);
    got.sort_by_key(|body| body.parse::<usize>().unwrap());
    assert_eq!(got, numbers(0..100));
}

/// Without a special report: the worker compares its ranges with every beat anyway.
#[tokio::test]
async fn a_worker_finds_with_a_beat_which_ranges_it_has_lost_to_a_reset() {
    let mut stream = Stream::new(1).await;
    let (group, other) = (stream.group("g", true).await, stream.group("o", true).await);
    stream.enqueue(0..10).await;
    let mut options = worker_options(stream.db.url());
    options.beat = Duration::from_millis(100);
    let worker = start_worker(options).await;
    let (lost, kept) = (claim_n(&worker, &group, 10).await, claim_n(&worker, &other, 10).await);
    assert!(!worker.has_lost(lost[0].claim_no) && worker.losses() == 0);
    reset_group(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap();
    until("it has found out", async || worker.has_lost(lost[0].claim_no)).await;
    assert!(!worker.has_lost(kept[0].claim_no) && worker.losses() == 1);
    // Messages that have ended are not lost.
    worker.settle(all(&kept, &Settlement::Ack)).await.unwrap();
    until("it is told", async || stream.number(RANGES).await == 0).await;
    let again = claim_n(&worker, &group, 10).await;
    assert_eq!(offsets(&again), (0..10).collect::<Vec<_>>());
    assert!(!worker.has_lost(kept[0].claim_no) && !worker.has_lost(again[0].claim_no));
}

#[tokio::test]
async fn a_group_goes_to_an_offset_or_a_time_and_replays_a_stretch_without_moving() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..50).await;
    stream.sequence().await;
    let now = rowmq_core::store::topic::server_time(&mut stream.conn).await.unwrap().and_utc();
    stream.enqueue(50..100).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    for (place, first) in [
        (OffsetSpec::Offset(Offset(30)), 30),
        (OffsetSpec::Time(now), 50),
        (OffsetSpec::Earliest, 0),
        (OffsetSpec::Latest, 100),
    ] {
        reset_group(&mut stream.conn, &group, place).await.unwrap();
        let got = worker.claim_range(group.group().unwrap(), 200).await.unwrap().deliveries;
        assert_eq!(offsets(&got).first().copied().unwrap_or(100), first, "{place:?}");
        worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    }
    let beyond = reset_group(&mut stream.conn, &group, OffsetSpec::Offset(Offset(101))).await;
    assert!(beyond.unwrap_err().to_string().contains("beyond the end"));
    let (from, to) = (OffsetSpec::Offset(Offset(10)), OffsetSpec::Offset(Offset(20)));
    assert_eq!(replay(&mut stream.conn, &group, from, to).await.unwrap(), 10);
    let again = claim_n(&worker, &group, 10).await;
    assert_eq!(offsets(&again), (10..20).collect::<Vec<_>>());
    worker.settle(all(&again, &Settlement::Ack)).await.unwrap();
    assert_eq!(worker.claim_range(group.group().unwrap(), 10).await.unwrap().deliveries, []);
}

#[tokio::test]
async fn an_ordered_group_has_one_range_a_partition_and_waits_for_a_failed_head() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", true).await;
    stream.enqueue(0..10).await;
    let (one, two) = (stream.worker().await, stream.worker().await);
    let got = claim_n(&one, &group, 5).await;
    let none = two.claim_range(group.group().unwrap(), 5).await.unwrap();
    assert_eq!(none.deliveries, []);
    one.settle(all(&got[..2], &Settlement::Ack)).await.unwrap();
    one.settle(all(&got[2..3], &retry(Duration::from_secs(3600)))).await.unwrap();
    assert_eq!(two.claim_range(group.group().unwrap(), 5).await.unwrap().deliveries, []);
    let held = range::of_partition(&mut stream.conn, group.id, rowmq_core::model::PartitionNo(0))
        .await
        .unwrap();
    assert_eq!((held.len(), held[0].mark, held[0].failures), (1, Offset(2), 1));
    rowmq_core::connection::Connection::batch(
        &mut stream.conn,
        "UPDATE queue_range SET ready_at = UTC_TIMESTAMP(6)",
    )
    .await
    .unwrap();
    let again = claim_n(&two, &group, 3).await;
    assert_eq!(offsets(&again), [2, 3, 4]);
    assert_eq!((again[0].failures, again[0].delivery_no.0, again[1].failures), (1, 2, 0));
    // Died of it: the dead letter records both runs, and the partition continues.
    let dead = Settlement::DeadLetter { cause: DeadCause::Attempts, error: "worse".to_owned() };
    two.settle(all(&again[..1], &dead)).await.unwrap();
    two.settle(all(&again[1..], &Settlement::Ack)).await.unwrap();
    let told = "SELECT COUNT(*) FROM queue_dead WHERE body = '2' AND failures = 2 \
         AND history LIKE '%not yet%worse%'";
    assert_eq!(stream.number(told).await, 1);
    assert_eq!(offsets(&claim_n(&one, &group, 5).await), [5, 6, 7, 8, 9]);
}
