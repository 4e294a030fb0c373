//! Groups that want only some messages: the others count as passed.

use std::time::Duration;

use rowmq_core::model::{
    HeaderFilter, Offset, OffsetSpec, PartitionNo, RangeId, RetryPolicy, Settlement, TopicSettings,
};
use rowmq_core::rescue::{Why, take_range_back};
use rowmq_core::store::stream::log::{self, Reading, Stretch};
use rowmq_core::store::stream::progress;
use rowmq_core::store::stream::range::zombies;
use rowmq_core::store::topic;
use rowmq_core::stream::group::{group_settings, replay};
use rowmq_core::worker::{Claimed, Worker};
use rowmq_core::{Delivery, Error, NewMessage, Topic, enqueue_all};
use rowmq_test::until;

use super::{Stream, offsets};
use crate::scene::{all, bodies, retry};

fn filter(conditions: &[&str]) -> HeaderFilter {
    conditions.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>().into()
}

pub(super) fn wanting(conditions: &[&str]) -> TopicSettings {
    TopicSettings { filter: filter(conditions), ..group_settings() }
}

impl Stream {
    async fn group_wanting(&mut self, name: &str, ordered: bool, conditions: &[&str]) -> Topic {
        self.group_with(name, ordered, OffsetSpec::Earliest, &wanting(conditions)).await
    }

    /// Enqueues messages with these numbers as bodies; `kind` gives each one's header.
    async fn enqueue_kinds(
        &mut self,
        bodies: std::ops::Range<usize>,
        kind: impl Fn(usize) -> &'static str,
    ) {
        let message = |n: usize| NewMessage::new(n.to_string()).with_header("type", kind(n));
        let messages: Vec<_> = bodies.map(message).collect();
        enqueue_all(&mut self.conn, &self.topic.name, &messages).await.unwrap();
    }

    /// Lets every worker die, and takes back what they held.
    async fn crash(&mut self) {
        self.sql("UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6)").await;
        for zombie in zombies(&mut self.conn, RangeId(0), 10).await.unwrap() {
            let why = Why::Crashed { rows_held: 2 };
            take_range_back(&mut self.conn, &zombie.range, why).await.unwrap();
        }
    }

    async fn change(&mut self, group: &Topic, conditions: &[&str]) {
        topic::set(&mut self.conn, &group.name, &wanting(conditions)).await.unwrap();
    }

    /// Returns the group's lag, how much of it is claimed, what it has lost, and how many ranges it
    /// has.
    async fn progress(&mut self, group: &Topic) -> (u64, u64, u64, i64) {
        let all = progress::of_group(&mut self.conn, group.group().unwrap()).await.unwrap();
        let sum = |one: fn(&progress::GroupProgress) -> u64| all.iter().map(one).sum();
        let ranges = format!("SELECT COUNT(*) FROM queue_range WHERE group_id = {}", group.id.0);
        let ranges = self.number(&ranges).await;
        (sum(|one| one.lag), sum(|one| one.claimed), sum(|one| one.lost), ranges)
    }
}

async fn claim(worker: &Worker, group: &Topic, limit: u32) -> Claimed {
    worker.claim_range(group.group().unwrap(), limit).await.unwrap()
}

/// Claims until a claim neither returns nor passes anything; returns what came, how much was
/// passed, and how many claims it took.
async fn drain(worker: &Worker, group: &Topic, limit: u32) -> (Vec<Delivery>, u64, usize) {
    let (mut got, mut filtered, mut claims) = (Vec::new(), 0, 0);
    loop {
        let claimed = claim(worker, group, limit).await;
        if claimed.deliveries.is_empty() && claimed.filtered == 0 {
            return (got, filtered, claims);
        }
        claims += 1;
        filtered += claimed.filtered;
        assert!(claimed.deliveries.len() <= limit as usize, "{}", claimed.deliveries.len());
        worker.settle(all(&claimed.deliveries, &Settlement::Ack)).await.unwrap();
        got.extend(claimed.deliveries);
    }
}

fn one_in_a_hundred(n: usize) -> &'static str {
    if n % 100 == 50 { "wanted" } else { "other" }
}

#[tokio::test]
async fn a_group_gets_what_it_wants_and_the_rest_counts_as_passed() {
    let mut stream = Stream::new(1).await;
    let some = stream.group_wanting("some", false, &["type=wanted"]).await;
    let every = stream.group("every", false).await;
    stream.enqueue_kinds(0..3000, one_in_a_hundred).await;
    stream.sequence().await;
    let worker = stream.worker().await;
    let (got, filtered, claims) = drain(&worker, &some, 10).await;
    let wanted: Vec<u64> = (0..30).map(|n| n * 100 + 50).collect();
    assert_eq!((offsets(&got), filtered), (wanted, 2970));
    assert!(claims <= 5, "{claims} claims: each looks at a thousand messages");
    until("the ranges are over", async || stream.progress(&some).await == (0, 0, 0, 0)).await;
    assert_eq!(stream.progress(&every).await.0, 3000);
    let (got, filtered, _) = drain(&worker, &every, 1000).await;
    assert_eq!((got.len(), filtered), (3000, 0));
}

#[tokio::test]
async fn what_nobody_wants_is_passed_without_a_range_and_the_worker_goes_on() {
    let mut stream = Stream::new(2).await;
    let group = stream.group_wanting("g", false, &["type=wanted", "region"]).await;
    stream.enqueue_kinds(0..30_000, |_| "wanted").await;
    while stream.sequence().await > 0 {}
    let worker = stream.worker().await;
    let first = claim(&worker, &group, 5).await;
    // Not all at once: the worker has other work in between.
    assert!(first.deliveries.is_empty() && first.filtered < 30_000, "{}", first.filtered);
    assert!(first.filtered > 1000);
    let (got, filtered, _) = drain(&worker, &group, 5).await;
    assert_eq!((got.len(), first.filtered + filtered), (0, 30_000));
    assert_eq!(stream.progress(&group).await, (0, 0, 0, 0));
}

#[tokio::test]
async fn conditions_are_met_together_and_headers_are_what_a_handler_would_see() {
    let mut stream = Stream::new(1).await;
    let eu = stream.group_wanting("eu", false, &["type=created,paid", "region!=us"]).await;
    let number = stream.group_wanting("number", false, &["n=1"]).await;
    let message = |headers: &[(&str, &str)]| {
        let message = NewMessage::new(headers.len().to_string());
        headers.iter().fold(message, |message, (name, value)| message.with_header(*name, *value))
    };
    let messages = [
        message(&[("type", "created"), ("region", "eu")]),
        message(&[("type", "paid"), ("region", "us")]),
        message(&[("type", "paid"), ("region", "asia"), ("x", "y")]),
        message(&[("type", "paid")]),
        message(&[("type", "Paid"), ("region", "eu")]),
        message(&[]),
    ];
    enqueue_all(&mut stream.conn, &stream.topic.name, &messages).await.unwrap();
    let insert = "INSERT INTO queue_message (topic_id, msg_id, headers, body)";
    let id = stream.topic.id.0;
    for headers in ["{\"n\":1}", "not json", "[1]", "{\"n\":\"2\"}"] {
        let values = format!("VALUES ({id}, UNHEX(REPLACE(UUID(), '-', '')), '{headers}', 'raw')");
        stream.sql(&format!("{insert} {values}")).await;
    }
    let worker = stream.worker().await;
    let (got, filtered, _) = drain(&worker, &eu, 100).await;
    assert_eq!((offsets(&got), filtered), (vec![0, 2], 8));
    let (got, ..) = drain(&worker, &number, 100).await;
    assert_eq!(offsets(&got), [6], "a number is its text");
}

#[tokio::test]
async fn an_ordered_group_keeps_its_order_and_waits_only_for_what_it_wants() {
    let mut stream = Stream::new(1).await;
    let group = stream.group_wanting("g", true, &["type=wanted"]).await;
    stream.enqueue_kinds(0..20, |n| if n % 4 == 1 { "wanted" } else { "other" }).await;
    let worker = stream.worker().await;
    let got = claim(&worker, &group, 2).await;
    assert_eq!(offsets(&got.deliveries), [1, 5]);
    worker.settle(all(&got.deliveries[..1], &retry(Duration::from_secs(3600)))).await.unwrap();
    worker.settle(all(&got.deliveries[1..], &Settlement::Release)).await.unwrap();
    until("it is held back", async || {
        stream.number("SELECT COUNT(*) FROM queue_range WHERE worker_id <> 0").await == 0
    })
    .await;
    assert_eq!(drain(&worker, &group, 10).await.0, []);
    stream
        .sql("UPDATE queue_range SET ready_at = UTC_TIMESTAMP(6) WHERE ready_at IS NOT NULL")
        .await;
    let again = claim(&worker, &group, 10).await.deliveries;
    assert_eq!((offsets(&again), again[0].failures), (vec![1, 5], 1));
    // It holds back the partition again, and then a filter excludes it: the others continue.
    worker.settle(all(&again[..1], &retry(Duration::from_millis(1)))).await.unwrap();
    worker.settle(all(&again[1..], &Settlement::Release)).await.unwrap();
    stream.change(&group, &["type=other"]).await;
    let mut got = Vec::new();
    until("the rest is handled", async || {
        got.extend(offsets(&drain(&worker, &group, 3).await.0));
        got.len() >= 13
    })
    .await;
    let left: Vec<u64> = (2..20).filter(|n| n % 4 != 1).collect();
    assert_eq!(got, left, "from where it had come to, in order");
    until("everything is passed", async || stream.progress(&group).await == (0, 0, 0, 0)).await;
}

#[tokio::test]
async fn another_filter_holds_for_what_is_claimed_from_then_on_also_after_a_rescue() {
    let mut stream = Stream::new(1).await;
    let group = stream.group_wanting("g", false, &["type=a"]).await;
    let kind = |n: usize| ["a", "b", "c"][n % 3];
    stream.enqueue_kinds(0..30, kind).await;
    let worker = stream.worker().await;
    let held = claim(&worker, &group, 4).await;
    assert_eq!(offsets(&held.deliveries), [0, 3, 6, 9]);
    stream.change(&group, &["type=a,b"]).await;
    let next = claim(&worker, &group, 2).await;
    assert_eq!(offsets(&next.deliveries), [12, 13], "from where the first range ends");
    worker.settle(all(&held.deliveries[..2], &Settlement::Ack)).await.unwrap();
    until("the mark has moved", async || {
        stream.number("SELECT COUNT(*) FROM queue_range WHERE mark = 6").await == 1
    })
    .await;
    stream.crash().await;
    stream.change(&group, &["type=b,c"]).await;
    let worker = stream.worker().await;
    let (got, filtered, _) = drain(&worker, &group, 5).await;
    let mut got = offsets(&got);
    got.sort_unstable();
    let wanted: Vec<u64> = (6..30).filter(|n| n % 3 != 0).collect();
    assert_eq!((got, filtered), (wanted, 8));
    until("the ranges are over", async || stream.progress(&group).await == (0, 0, 0, 0)).await;
}

#[tokio::test]
async fn a_replay_brings_what_is_wanted_now_and_a_range_that_nobody_wants_ends_at_once() {
    let mut stream = Stream::new(1).await;
    let group = stream.group_wanting("g", false, &["type=wanted"]).await;
    stream.enqueue_kinds(0..2500, one_in_a_hundred).await;
    while stream.sequence().await > 0 {}
    let worker = stream.worker().await;
    assert_eq!(drain(&worker, &group, 50).await.0.len(), 25);
    let (from, to) = (OffsetSpec::Offset(Offset(100)), OffsetSpec::Offset(Offset(2000)));
    assert_eq!(replay(&mut stream.conn, &group, from, to).await.unwrap(), 1900);
    let (got, filtered, _) = drain(&worker, &group, 7).await;
    let wanted: Vec<u64> = (1..20).map(|n| n * 100 + 50).collect();
    assert_eq!((offsets(&got), filtered), (wanted, 1881));
    until("the ranges are over", async || stream.progress(&group).await == (0, 0, 0, 0)).await;
    stream.change(&group, &["type=none"]).await;
    replay(&mut stream.conn, &group, from, to).await.unwrap();
    let (got, filtered, claims) = drain(&worker, &group, 7).await;
    assert_eq!((got.len(), filtered, claims), (0, 1900, 1));
    assert_eq!(stream.progress(&group).await, (0, 0, 0, 0));
}

/// Messages that transactional handlers have acked in a range stay acked, and leave with it.
#[tokio::test]
async fn what_was_acked_in_transactions_is_not_wanted_again_nor_lost() {
    let mut stream = Stream::in_rows(1).await;
    let group = stream.group_wanting("g", false, &["type=a"]).await;
    stream.enqueue_kinds(0..10, |n| if n % 2 == 0 { "a" } else { "b" }).await;
    let worker = stream.worker().await;
    assert_eq!(offsets(&claim(&worker, &group, 10).await.deliveries), [0, 2, 4, 6, 8]);
    stream.sql("INSERT INTO queue_passed SELECT id, 2 FROM queue_range").await;
    worker.stop().await.unwrap();
    let worker = stream.worker().await;
    let mut again = Vec::new();
    until("the rest comes again", async || {
        again.extend(offsets(&drain(&worker, &group, 3).await.0));
        again.len() >= 4
    })
    .await;
    assert_eq!(again, [0, 4, 6, 8]);
    until("the ranges are over", async || stream.progress(&group).await == (0, 0, 0, 0)).await;
    // A range that the filter excludes, with an ack in it that retention has overtaken.
    let (from, to) = (OffsetSpec::Offset(Offset(0)), OffsetSpec::Offset(Offset(4)));
    replay(&mut stream.conn, &group, from, to).await.unwrap();
    stream.sql("INSERT INTO queue_passed SELECT id, 2 FROM queue_range").await;
    stream.sql("DELETE FROM queue_log WHERE offset_no IN (1, 2)").await;
    stream.change(&group, &["type=none"]).await;
    let passed = claim(&worker, &group, 3).await;
    assert_eq!((passed.deliveries.len(), passed.filtered, passed.lost), (0, 2, 1));
    assert_eq!(stream.progress(&group).await, (0, 0, 1, 0));
    assert_eq!(stream.number("SELECT COUNT(*) FROM queue_passed").await, 0);
}

#[tokio::test]
async fn a_suspect_is_alone_with_its_worker_whatever_lies_before_it() {
    let mut stream = Stream::new(1).await;
    let group = stream.group_wanting("g", false, &["type=wanted"]).await;
    stream.enqueue_kinds(0..300, one_in_a_hundred).await;
    for _ in 0..2 {
        let worker = stream.worker().await;
        assert_eq!(claim(&worker, &group, 5).await.deliveries.len(), 3);
        stream.crash().await;
    }
    let worker = stream.worker().await;
    let shared = claim(&worker, &group, 5).await;
    assert!(shared.deliveries.is_empty() && shared.suspect_waits);
    let group_of = group.group().unwrap();
    for offset in [50, 150, 250] {
        let suspect = worker.claim_suspect_range(group_of).await.unwrap();
        assert_eq!(offsets(&suspect.deliveries), [offset]);
        let alone = format!(
            "SELECT COUNT(*) FROM queue_range WHERE worker_id <> 0 AND mark = {offset} AND hi = {}",
            offset + 1
        );
        assert_eq!(stream.number(&alone).await, 1);
        worker.settle(all(&suspect.deliveries, &Settlement::Ack)).await.unwrap();
    }
    let rest = worker.claim_suspect_range(group_of).await.unwrap();
    assert_eq!((rest.deliveries.len(), rest.filtered), (0, 49));
    until("the ranges are over", async || stream.progress(&group).await == (0, 0, 0, 0)).await;
}

#[tokio::test]
async fn some_messages_of_the_log_are_read_by_their_offsets() {
    let mut stream = Stream::new(1).await;
    let group = stream.group("g", false).await;
    stream.enqueue(0..1200).await;
    while stream.sequence().await > 0 {}
    let partition = PartitionNo(0);
    let (lo, hi) = (Offset(100), Offset(1100));
    let stretch = Stretch { stream: stream.topic.id, partition, lo, hi };
    let (claim_no, delivery_no) = (rowmq_core::model::ClaimNo(1), rowmq_core::model::DeliveryNo(3));
    let reading = Reading { group: group.id, claim_no, delivery_no };
    let some: Vec<_> = (100..1100).filter(|n| n % 7 != 0).map(Offset).collect();
    let read = log::read_some(&mut stream.conn, stretch, reading, &some).await.unwrap().deliveries;
    let expected: Vec<u64> = some.iter().map(|offset| offset.0).collect();
    assert_eq!(offsets(&read), expected);
    assert_eq!(bodies(&read[..2]), ["100", "101"]);
    let headers = log::headers(&mut stream.conn, stretch).await.unwrap();
    assert_eq!((headers.len(), headers[0].0), (1000, lo));
}

#[tokio::test]
async fn a_filter_is_kept_and_only_a_groups() {
    let mut stream = Stream::new(1).await;
    let group = stream.group_wanting("g", false, &["type=a,b", "region!=us", "x"]).await;
    assert_eq!(group.settings, wanting(&["type=a,b", "region!=us", "x"]));
    let retry = RetryPolicy::Fixed(Duration::from_secs(1));
    let settings = TopicSettings { retry, ..group.settings.clone() };
    topic::set(&mut stream.conn, &group.name, &settings).await.unwrap();
    let found = topic::existing(&mut stream.conn, &group.name).await.unwrap();
    assert_eq!(found.settings, settings);
    let settings = TopicSettings { filter: filter(&["type"]), ..TopicSettings::default() };
    let refused = topic::set(&mut stream.conn, &stream.topic.name, &settings).await;
    assert!(matches!(refused, Err(Error::Setting { name: "filter", .. })), "{refused:?}");
    let long = filter(&[&format!("type={}", "x".repeat(4096))]);
    let settings = TopicSettings { filter: long, ..group_settings() };
    let refused = topic::set(&mut stream.conn, &group.name, &settings).await;
    assert!(matches!(refused, Err(Error::InvalidFilter { .. })), "{refused:?}");
    // A filter that only SQL can have written: the group gets everything, and misses nothing.
    stream.sql("UPDATE queue_topic SET header_filter = 'type=a' WHERE kind = 'group'").await;
    let found = topic::existing(&mut stream.conn, &group.name).await.unwrap();
    assert!(found.settings.filter.wants_all());
    stream.enqueue(0..3).await;
    let worker = stream.worker().await;
    assert_eq!(claim(&worker, &group, 5).await.deliveries.len(), 3);
}
