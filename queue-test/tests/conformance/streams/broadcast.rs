//! Broadcast groups: every member reads everything, from a position in memory or under its name.

use std::time::{Duration, Instant};

use rowmq_core::model::{Access, DeadCause, MemberName, Offset, OffsetSpec, RowId, Settlement};
use rowmq_core::stream::broadcast::{
    broadcast_settings, create_broadcast, forget_member, reset_members,
};
use rowmq_core::worker::{Member, Settled, Worker};
use rowmq_core::{Delivery, Error, Topic, TopicName, store};
use rowmq_test::{PATIENCE, until};

use super::{Stream, offsets};
use crate::rescue::declare_dead;
use crate::scene::{all, bodies, numbers, retry};

mod filters;
mod loss;

pub(super) fn name(name: &str) -> MemberName {
    MemberName::new(name).unwrap()
}

pub(super) fn member(group: &Topic, with: Option<&str>) -> Member {
    Member::new(group, with.map(name)).unwrap()
}

impl Stream {
    pub(super) async fn broadcast(&mut self, start: OffsetSpec) -> Topic {
        let name = TopicName::of_group(&self.topic.name, "all").unwrap();
        create_broadcast(&mut self.conn, &name, start, &broadcast_settings()).await.unwrap();
        store::topic::existing(&mut self.conn, &name).await.unwrap()
    }

    /// Returns the position in the members' rows, in the only partition.
    pub(super) async fn place(&mut self) -> i64 {
        self.number("SELECT CAST(COALESCE(MIN(next_offset), -1) AS SIGNED) FROM queue_member").await
    }

    pub(super) async fn until_at(&mut self, place: i64) {
        until("the member has told", async || self.place().await == place).await;
    }
}

/// Reads until `n` messages have come.
pub(super) async fn read_n(worker: &Worker, member: &Member, n: usize) -> Vec<Delivery> {
    let start = Instant::now();
    let mut deliveries = Vec::new();
    while deliveries.len() < n {
        let limit = u32::try_from(n - deliveries.len()).unwrap();
        let read = match worker.read(member, limit).await {
            // Another session has held a lock for longer than a read waits.
            Err(error) if error.fault().is_conflict() => Vec::new(),
            read => read.unwrap().deliveries,
        };
        if read.is_empty() {
            assert!(start.elapsed() < PATIENCE, "{} messages instead of {n}", deliveries.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        deliveries.extend(read);
    }
    deliveries
}

pub(super) async fn nothing_more(worker: &Worker, member: &Member) {
    until("it can read", async || {
        // A session that was lost may not be reopened at the first try.
        let Ok(read) = worker.read(member, 100).await else { return false };
        assert_eq!(read.deliveries, []);
        true
    })
    .await;
}

pub(super) async fn ack(worker: &Worker, deliveries: &[Delivery]) {
    worker.settle(all(deliveries, &Settlement::Ack)).await.unwrap();
}

fn dead(error: &str) -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: error.to_owned() }
}

#[tokio::test]
async fn each_of_five_members_sees_every_message_once_from_when_it_began() {
    let mut stream = Stream::new(3).await;
    let group = stream.broadcast(OffsetSpec::Latest).await;
    stream.enqueue(0..50).await;
    stream.sequence().await;
    let mut members = Vec::new();
    for _ in 0..5 {
        let (worker, member) = (stream.worker().await, member(&group, None));
        nothing_more(&worker, &member).await;
        members.push((worker, member));
    }
    stream.enqueue(50..350).await;
    for (worker, member) in &members {
        let mut got = Vec::new();
        while got.len() < 300 {
            let some = read_n(worker, member, (300 - got.len()).min(70)).await;
            ack(worker, &some).await;
            got.extend(some);
        }
        nothing_more(worker, member).await;
        for partition in 0..3 {
            let of = got.iter().filter(|one| one.position.unwrap().partition.0 == partition);
            assert!(offsets(&of.cloned().collect::<Vec<_>>()).is_sorted_by(|a, b| a + 1 == *b));
        }
        let mut seen = bodies(&got);
        seen.sort_by_key(|body| body.parse::<usize>().unwrap());
        assert_eq!(seen, numbers(50..350));
        assert!(got.iter().all(|one| one.topic_id == group.id && one.delivery_no.0 == 1));
    }
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_member").await, 0);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_range").await, 0);
}

#[tokio::test]
async fn a_member_begins_where_its_group_begins() {
    for (start, first) in [
        (OffsetSpec::Earliest, 0),
        (OffsetSpec::Latest, 20),
        (OffsetSpec::Offset(Offset(7)), 7),
        (OffsetSpec::Time("2020-01-01T00:00:00Z".parse().unwrap()), 0),
    ] {
        let mut stream = Stream::new(1).await;
        stream.enqueue(0..20).await;
        stream.sequence().await;
        let group = stream.broadcast(start).await;
        assert_eq!(group.broadcast().unwrap().start, start);
        for named in [None, Some("a")] {
            let (worker, member) = (stream.worker().await, member(&group, named));
            let got = worker.read(&member, 100).await.unwrap().deliveries;
            assert_eq!(offsets(&got), (first..20).collect::<Vec<_>>(), "{start}");
        }
    }
}

#[tokio::test]
async fn a_named_member_goes_on_where_it_was_and_is_one_worker_at_a_time() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..30).await;
    let (one, first) = (stream.worker().await, member(&group, Some("cache-1")));
    let got = read_n(&one, &first, 20).await;
    ack(&one, &got[..10]).await;
    ack(&one, &got[12..]).await;
    stream.until_at(10).await;
    // Another process with the same name.
    let (two, second) = (stream.worker().await, member(&group, Some("cache-1")));
    let refused = two.read(&second, 10).await.unwrap_err();
    assert!(matches!(&refused, Error::MemberInUse { worker, .. } if *worker == one.id()));
    assert!(refused.to_string().contains("a name of its own"), "{refused}");
    // The first one dies without a report.
    declare_dead(&mut stream.conn, one.id(), "killed").await;
    let again = read_n(&two, &second, 20).await;
    assert_eq!(offsets(&again), (10..30).collect::<Vec<_>>(), "it repeats what was not told");
    ack(&two, &again).await;
    stream.until_at(30).await;
    two.stop().await.unwrap();
    // A stop reports what the member had not reported yet.
    let (three, third) = (stream.worker().await, member(&group, Some("cache-1")));
    stream.enqueue(30..40).await;
    ack(&three, &read_n(&three, &third, 10).await).await;
    three.stop().await.unwrap();
    assert_eq!(stream.place().await, 40);
}

#[tokio::test]
async fn a_position_in_memory_outlives_its_worker() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Latest).await;
    for named in [None, Some("a")] {
        let member = member(&group, named);
        let one = stream.worker().await;
        nothing_more(&one, &member).await;
        stream.enqueue(0..10).await;
        let got = read_n(&one, &member, 10).await;
        ack(&one, &got[..3]).await;
        ack(&one, &got[7..]).await;
        let failed = all(&got[5..6], &retry(Duration::ZERO));
        one.settle(failed).await.unwrap();
        declare_dead(&mut stream.conn, one.id(), "cut off").await;
        stream.enqueue(10..12).await;
        // The consumer registers again, and no message that it had finished comes again.
        let two = stream.worker().await;
        let again = read_n(&two, &member, 6).await;
        assert_eq!(bodies(&again), ["3", "4", "5", "6", "10", "11"], "{named:?}");
        let counted: Vec<_> = again.iter().map(|one| (one.delivery_no.0, one.failures)).collect();
        assert_eq!(counted, [(2, 0), (2, 0), (2, 1), (2, 0), (1, 0), (1, 0)]);
        let late = one.settle(all(&got[3..4], &Settlement::Ack)).await;
        assert!(late.is_err() || late.unwrap() == [rowmq_core::worker::SettleOutcome::Fenced]);
        ack(&two, &again).await;
        nothing_more(&two, &member).await;
    }
}

#[tokio::test]
async fn a_reset_fences_named_members_and_those_without_a_name_refuse_it() {
    let mut stream = Stream::new(2).await;
    let group = stream.broadcast(OffsetSpec::Latest).await;
    let (worker, unnamed) = (stream.worker().await, member(&group, None));
    nothing_more(&worker, &unnamed).await;
    let refused = reset_members(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap_err();
    assert!(refused.to_string().contains("in memory and cannot be reset; restart"), "{refused}");
    let named = member(&group, Some("a"));
    let other = stream.worker().await;
    nothing_more(&other, &named).await;
    stream.enqueue(0..40).await;
    let got = read_n(&other, &named, 40).await;
    ack(&other, &got[..20]).await;
    let reset = reset_members(&mut stream.conn, &group, OffsetSpec::Earliest).await.unwrap();
    assert_eq!(reset, 1);
    // Its remaining messages are fenced at the latest when it reads again, and come with the rest.
    let again = read_n(&other, &named, 40).await;
    let mut seen = bodies(&again);
    seen.sort_by_key(|body| body.parse::<usize>().unwrap());
    assert_eq!(seen, numbers(0..40));
    let late = other.settle(all(&got[20..], &dead("late"))).await.unwrap();
    assert!(late.iter().all(|outcome| *outcome == rowmq_core::worker::SettleOutcome::Fenced));
    ack(&other, &again).await;
    let told = "SELECT CAST(SUM(next_offset) AS SIGNED) FROM queue_member";
    until("it has told", async || stream.number(told).await == 40).await;
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_dead").await, 0);
    let beyond = reset_members(&mut stream.conn, &group, OffsetSpec::Offset(Offset(99))).await;
    assert!(beyond.unwrap_err().to_string().contains("beyond the end"));
}

/// The member reports at the same time as an operator resets it.
#[tokio::test]
async fn what_a_member_says_after_a_reset_changes_nothing() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    let (worker, named) = (stream.worker().await, member(&group, Some("a")));
    stream.enqueue(0..10).await;
    let got = read_n(&worker, &named, 10).await;
    reset_members(&mut stream.conn, &group, OffsetSpec::Offset(Offset(2))).await.unwrap();
    ack(&worker, &got[..9]).await;
    let outcome = worker.settle(all(&got[9..], &dead("late"))).await.unwrap();
    assert_eq!(outcome, [rowmq_core::worker::SettleOutcome::Fenced]);
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_dead").await, 0);
    assert_eq!(stream.place().await, 2);
    assert_eq!(offsets(&read_n(&worker, &named, 8).await), (2..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_failed_message_is_tried_again_by_its_member_and_dies_with_its_body_and_history() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    for named in [None, Some("a")] {
        stream.sql("DELETE FROM queue_dead").await;
        let (worker, member) = (stream.worker().await, member(&group, named));
        if named.is_none() {
            stream.enqueue(0..5).await;
        }
        let got = read_n(&worker, &member, 5).await;
        worker.settle(all(&got[1..2], &retry(Duration::ZERO))).await.unwrap();
        ack(&worker, &got[..1]).await;
        ack(&worker, &got[2..]).await;
        for failures in 1..3 {
            let again = read_n(&worker, &member, 1).await;
            let (no, so_far) = (again[0].delivery_no.0, again[0].failures);
            assert_eq!((offsets(&again), no, so_far), (vec![1], failures + 1, failures));
            if named.is_some() {
                stream.until_at(1).await;
            }
            let end = if failures == 2 { dead("it is over") } else { retry(Duration::ZERO) };
            worker.settle(all(&again, &end)).await.unwrap();
        }
        nothing_more(&worker, &member).await;
        let filed = format!(
            "SELECT COUNT(*) FROM queue_dead WHERE failures = 3 AND delivery_no = 3 AND body = '1' \
             AND msg_id = UNHEX('{}')",
            got[1].msg_id.0.simple()
        );
        until("it is filed", async || stream.number(&filed).await == 1).await;
        let row = stream.number("SELECT CAST(MAX(id) AS SIGNED) FROM queue_dead").await;
        let row = RowId(row.unsigned_abs());
        let history = store::dead::history(&mut stream.conn, group.id, row).await.unwrap();
        let runs: Vec<_> = history.iter().map(|run| (run.delivery_no, run.worker)).collect();
        assert_eq!(runs, [1, 2, 3].map(|no| (no, worker.id().0)));
        if named.is_some() {
            stream.until_at(5).await;
        }
        worker.stop().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_snoozed_released_or_discarded_takes_its_course() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..6).await;
    let (worker, member) = (stream.worker().await, member(&group, Some("a")));
    let got = read_n(&worker, &member, 6).await;
    let hour = Duration::from_secs(3600);
    worker.settle(all(&got[3..4], &Settlement::Snooze { delay: hour })).await.unwrap();
    worker.settle(vec![Settled::release(&got[1])]).await.unwrap();
    let snoozed = Settlement::Snooze { delay: Duration::ZERO };
    worker.settle(all(&got[..1], &snoozed)).await.unwrap();
    let discard = Settlement::Discard { reason: "not worth it".to_owned() };
    worker.settle(all(&got[2..3], &discard)).await.unwrap();
    ack(&worker, &got[4..]).await;
    let again = read_n(&worker, &member, 2).await;
    let counted: Vec<_> = again.iter().map(|one| (one.delivery_no.0, one.failures)).collect();
    assert_eq!((offsets(&again), counted), (vec![0, 1], vec![(2, 0), (2, 0)]));
    ack(&worker, &again).await;
    nothing_more(&worker, &member).await;
    stream.until_at(3).await;
    let kept = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'discarded' AND body = '2'";
    assert_eq!(stream.number(kept).await, 1);
    worker.stop().await.unwrap();
    assert_eq!(stream.place().await, 3, "what is snoozed is not passed");
}

/// Otherwise the retries in memory would have no bound.
#[tokio::test]
async fn a_member_that_has_too_much_to_try_again_reads_nothing_new() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..1200).await;
    stream.sequence().await;
    let (worker, member) = (stream.worker().await, member(&group, None));
    let mut waiting = 0;
    while waiting < 1000 {
        let got = read_n(&worker, &member, 100).await;
        waiting += got.len();
        worker.settle(all(&got, &retry(Duration::from_secs(3600)))).await.unwrap();
    }
    let claimed = worker.read(&member, 100).await.unwrap();
    assert_eq!(claimed.deliveries, []);
    assert!(claimed.more_later);
}

#[tokio::test]
async fn a_paused_group_reads_nothing_and_a_deleted_one_leaves_no_members() {
    let mut stream = Stream::new(1).await;
    let group = stream.broadcast(OffsetSpec::Earliest).await;
    stream.enqueue(0..5).await;
    let (worker, member) = (stream.worker().await, member(&group, Some("a")));
    ack(&worker, &read_n(&worker, &member, 2).await).await;
    store::topic::set_access(&mut stream.conn, &group.name, Access::WriteOnly).await.unwrap();
    until("the pause is heard", async || {
        let read = worker.read(&member, 1).await.unwrap().deliveries;
        worker.settle(read.iter().map(Settled::release).collect()).await.unwrap();
        read.is_empty()
    })
    .await;
    let forgotten = forget_member(&mut stream.conn, &group, &name("b")).await.unwrap_err();
    assert!(forgotten.to_string().contains("has no member 'b'"), "{forgotten}");
    store::topic::set_access(&mut stream.conn, &group.name, Access::ReadWrite).await.unwrap();
    let other = Member::new(&group, None).unwrap();
    let second = stream.worker().await;
    until("it has begun", async || second.read(&other, 1).await.is_ok()).await;
    rowmq_core::stream::group::leave(&mut stream.conn, &group).await.unwrap();
    store::topic::delete(&mut stream.conn, group.id).await.unwrap();
    for (worker, member) in [(&worker, &member), (&second, &other)] {
        let mut said = String::new();
        until("it says so", async || {
            said = worker.read(member, 1).await.map_or_else(|no| no.to_string(), |_| said.clone());
            said.contains("There is no group 's@all'")
        })
        .await;
    }
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_member").await, 0);
}
