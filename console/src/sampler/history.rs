use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use rowmq_core::TopicName;
use rowmq_core::model::Throughput;
use rowmq_core::store::inspect::DEPTH_CAP;
use schemars::JsonSchema;
use serde::Serialize;

/// How long points are kept.
const KEPT: TimeDelta = TimeDelta::minutes(15);

/// The period over which rates are measured: from one look to the next they would jump.
const RATE_OVER: TimeDelta = TimeDelta::seconds(10);

/// What one look saw of a topic or a group.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Point {
    /// When, by the server's clock.
    pub(crate) at: DateTime<Utc>,
    /// Messages that are not done.
    pub(crate) waiting: u64,
    /// How old the oldest of them was.
    pub(crate) oldest_ms: Option<u64>,
    /// All messages that have ever passed, where that is counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) passed: Option<u64>,
    /// What its consumers have done.
    #[serde(flatten)]
    pub(crate) throughput: Throughput,
    /// How fast it changed over the last seconds.
    #[serde(skip)]
    pub(crate) rates: Rates,
}

/// How fast something changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Rates {
    /// By how many messages a second the backlog grows, or shrinks; nothing where the count is
    /// capped.
    pub(crate) change_per_second: Option<f64>,
    /// Messages a second that have passed, where that is counted.
    pub(crate) passed_per_second: Option<f64>,
    /// Deliveries a second that consumers have handled successfully.
    pub(crate) done_per_second: Option<f64>,
    /// Those that failed.
    pub(crate) failed_per_second: Option<f64>,
    /// How long messages have waited for a consumer on average, in milliseconds; nothing where none
    /// was picked up.
    pub(crate) waited_ms: Option<f64>,
}

/// The recent points.
#[derive(Debug, Default)]
pub(super) struct Histories {
    topics: HashMap<TopicName, VecDeque<Point>>,
    groups: HashMap<TopicName, VecDeque<Point>>,
}

impl Histories {
    pub(super) fn take(&mut self, name: &TopicName, point: Point) -> (Rates, Arc<[Point]>) {
        append(&mut self.topics, name, point)
    }

    pub(super) fn take_group(&mut self, name: &TopicName, point: Point) -> (Rates, Arc<[Point]>) {
        append(&mut self.groups, name, point)
    }

    /// Drops deleted topics once their last point is too old.
    pub(super) fn forget_before(&mut self, now: DateTime<Utc>) {
        let is_recent =
            |points: &VecDeque<Point>| points.back().is_some_and(|last| now - last.at < KEPT);
        self.topics.retain(|_, points| is_recent(points));
        self.groups.retain(|_, points| is_recent(points));
    }
}

fn append(
    all: &mut HashMap<TopicName, VecDeque<Point>>,
    name: &TopicName,
    mut point: Point,
) -> (Rates, Arc<[Point]>) {
    let points = all.entry(name.clone()).or_default();
    // A clock that was set back would make a plot run backwards.
    points.retain(|old| old.at < point.at && point.at - old.at < KEPT);
    let since = points.iter().rev().take_while(|old| point.at - old.at <= RATE_OVER).last();
    point.rates = since.map_or_else(Rates::default, |since| rates(*since, point));
    points.push_back(point);
    (point.rates, points.iter().copied().collect())
}

#[allow(clippy::cast_precision_loss, reason = "only shown, to one digit")]
fn rates(from: Point, to: Point) -> Rates {
    let seconds = (to.at - from.at).as_seconds_f64();
    if seconds <= 0.0 {
        return Rates::default();
    }
    let per_second = |from: u64, to: u64| (to as f64 - from as f64) / seconds;
    let counted =
        |point: Point| Some(point.waiting).filter(|n| point.passed.is_some() || *n < DEPTH_CAP);
    let change = counted(from).zip(counted(to)).map(|(from, to)| per_second(from, to));
    let passed = from.passed.zip(to.passed).map(|(from, to)| per_second(from, to));
    let (before, now) = (from.throughput, to.throughput);
    // A failover may lose rows, and workers then count from zero again: this would be negative.
    let grown = |from: u64, to: u64| (to >= from).then(|| per_second(from, to));
    let picked_up = now.picked_up.saturating_sub(before.picked_up);
    let waited = now.waited.checked_sub(before.waited);
    Rates {
        change_per_second: change,
        passed_per_second: passed,
        done_per_second: grown(before.done, now.done),
        failed_per_second: grown(before.failed, now.failed),
        waited_ms: waited
            .filter(|_| picked_up > 0)
            .map(|waited| waited.as_secs_f64() * 1000.0 / picked_up as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(second: i64, waiting: u64, passed: Option<u64>) -> Point {
        let at = DateTime::from_timestamp(second, 0).expect("a time");
        let (throughput, rates) = Default::default();
        Point { at, waiting, oldest_ms: None, passed, throughput, rates }
    }

    #[test]
    fn a_rate_is_of_the_last_ten_seconds() {
        let mut histories = Histories::default();
        let name = TopicName::new("mail").expect("a name");
        assert_eq!(histories.take(&name, point(0, 9000, Some(0))).0, Rates::default());
        histories.take(&name, point(90, 100, Some(1000)));
        let (rates, points) = histories.take(&name, point(95, 50, Some(1100)));
        let wanted = Rates {
            change_per_second: Some(-10.0),
            passed_per_second: Some(20.0),
            done_per_second: Some(0.0),
            failed_per_second: Some(0.0),
            waited_ms: None,
        };
        assert_eq!(rates, wanted);
        assert_eq!(points.len(), 3);
        let (_, points) = histories.take(&name, point(994, 0, None));
        assert_eq!(points.len(), 2, "what is older than a quarter of an hour is forgotten");
    }

    #[test]
    fn a_backlog_that_is_not_counted_to_its_end_has_no_rate() {
        let mut histories = Histories::default();
        let name = TopicName::new("mail").expect("a name");
        histories.take(&name, point(0, DEPTH_CAP, None));
        let (rates, _) = histories.take(&name, point(2, 9000, None));
        assert_eq!(rates.change_per_second, None);
    }

    #[test]
    fn throughput_is_counted_by_the_second_and_waiting_by_the_message() {
        let mut histories = Histories::default();
        let name = TopicName::new("mail").expect("a name");
        let at = |second, done, picked_up, waited| {
            let waited = std::time::Duration::from_millis(waited);
            let throughput = Throughput { done, failed: done / 10, picked_up, waited };
            Point { throughput, ..point(second, 0, None) }
        };
        histories.take(&name, at(0, 100, 100, 1000));
        let rates = histories.take(&name, at(4, 140, 120, 1100)).0;
        assert_eq!((rates.done_per_second, rates.failed_per_second), (Some(10.0), Some(1.0)));
        assert_eq!(rates.waited_ms, Some(5.0));
        let rates = histories.take(&name, at(6, 0, 0, 0)).0;
        assert_eq!(
            (rates.done_per_second, rates.waited_ms),
            (None, None),
            "it started from nothing"
        );
    }

    #[test]
    fn a_clock_that_was_set_back_starts_the_history_again() {
        let mut histories = Histories::default();
        let name = TopicName::new("mail").expect("a name");
        histories.take(&name, point(100, 1, None));
        assert_eq!(histories.take(&name, point(50, 2, None)).1.len(), 1);
    }
}
