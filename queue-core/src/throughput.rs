//! The throughput of workers: counted by each, written with its beats, and summed by topic.
//!
//! A consumer counts what it settles, and periodically writes its totals to the database
//! ([`Counter`]). A session that uses the SQL contract counts in `queue_settle`. The totals of
//! workers that are gone are folded into one row for all of them, so that the sums of a topic never
//! shrink.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::connection::Connection;
use crate::model::{Result, Settlement, Throughput, TopicId, WorkerId};
use crate::store::throughput;

/// A worker's counts by topic. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<Mutex<Totals>>);

#[derive(Debug, Default)]
struct Totals {
    topics: BTreeMap<TopicId, Counted>,
    /// The number after the last topic that was written: each topic has its turn, however many
    /// there are.
    next: u32,
}

#[derive(Debug, Default)]
struct Counted {
    now: Throughput,
    written: Throughput,
}

impl Counter {
    /// Counts a delivery that was settled.
    pub fn settled(&self, topic: TopicId, settlement: &Settlement) {
        self.change(topic, |now| now.count(settlement));
    }

    /// Counts a delivery that was claimed after waiting this long.
    pub fn picked_up(&self, topic: TopicId, after: Duration) {
        self.change(topic, |now| {
            now.picked_up += 1;
            now.waited += after;
        });
    }

    fn change(&self, topic: TopicId, change: impl FnOnce(&mut Throughput)) {
        let mut totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut totals.topics.entry(topic).or_default().now);
    }

    /// Returns the totals of at most `limit` topics that have changed since they were
    /// [written](Self::mark_written).
    pub(crate) fn unwritten(&self, limit: usize) -> Vec<(TopicId, Throughput)> {
        let totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = TopicId(totals.next);
        let topics = totals.topics.range(next..).chain(totals.topics.range(..next));
        let changed = topics.filter(|(_, counted)| counted.now != counted.written);
        changed.map(|(topic, counted)| (*topic, counted.now)).take(limit).collect()
    }

    /// Records that these totals are in the database.
    pub(crate) fn mark_written(&self, written: &[(TopicId, Throughput)]) {
        let mut totals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (topic, total) in written {
            totals.topics.entry(*topic).or_default().written = *total;
            totals.next = topic.0.saturating_add(1);
        }
    }
}

/// Folds the totals of up to `limit` workers that have no row any more into one row, and deletes
/// the totals of topics that are gone. Returns how many workers it folded. It joins the caller's
/// transaction.
pub async fn fold(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let gone: Vec<WorkerId> = throughput::of_gone(conn, limit).await?;
    let mut folded = 0;
    for worker in gone {
        // Another process may have folded it first.
        if throughput::lock(conn, worker).await? > 0 {
            throughput::fold(conn, worker).await?;
            throughput::forget(conn, worker).await?;
            folded += 1;
        }
    }
    throughput::forget_topics(conn).await?;
    Ok(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_reported_once() {
        let (counter, topic) = (Counter::default(), TopicId(7));
        assert_eq!(counter.unwritten(9), []);
        counter.settled(topic, &Settlement::Ack);
        counter.clone().settled(topic, &Settlement::Release);
        counter.picked_up(topic, Duration::from_millis(3));
        let totals = counter.unwritten(9);
        let waited = Duration::from_millis(3);
        let wanted = Throughput { done: 1, failed: 0, picked_up: 1, waited };
        assert_eq!(totals, [(topic, wanted)]);
        // A settlement before the totals are written.
        counter.settled(topic, &Settlement::Ack);
        counter.mark_written(&totals);
        assert_eq!(counter.unwritten(9), [(topic, Throughput { done: 2, ..wanted })]);
        counter.settled(TopicId(8), &Settlement::Ack);
        assert_eq!(counter.unwritten(1).len(), 1);
        counter.mark_written(&counter.unwritten(9));
        assert_eq!(counter.unwritten(9), []);
    }

    #[test]
    fn of_more_topics_than_are_reported_at_once_each_has_its_turn() {
        let counter = Counter::default();
        let mut topics = Vec::new();
        for _ in 0..6 {
            (1..=3).for_each(|topic| counter.settled(TopicId(topic), &Settlement::Ack));
            let totals = counter.unwritten(1);
            counter.mark_written(&totals);
            topics.extend(totals.iter().map(|(topic, _)| topic.0));
        }
        assert_eq!(topics, [1, 2, 3, 1, 2, 3]);
    }
}
