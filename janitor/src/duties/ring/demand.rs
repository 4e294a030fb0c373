//! Which topics have messages that no worker has been woken for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowmq_core::model::TopicId;
use rowmq_core::store::doorbell::Kind;
use tokio::time::Instant;

/// The pause before another worker is woken for a topic. While messages remain, it doubles each
/// time, and so does the number of workers.
const FIRST: Duration = Duration::from_millis(3);

/// The longest such pause: messages may be ready and yet not claimable, because of a limit.
const LONGEST: Duration = Duration::from_secs(1);

/// The most workers that are woken for a topic at once.
const MOST: u32 = 16;

/// New messages end the pauses of a topic at most this often: if its workers make no headway, each
/// ring is in vain.
const FRESH: Duration = Duration::from_millis(25);

/// The pause after nobody waited for a topic: every worker is busy, and claims by itself.
const BUSY: Duration = Duration::from_millis(25);

#[derive(Debug, Default)]
pub(super) struct Demand {
    topics: BTreeMap<TopicId, OfTopic>,
    /// The groups of each stream.
    groups: BTreeMap<TopicId, Vec<TopicId>>,
    broadcast: BTreeSet<TopicId>,
    /// How many messages each stream has ever had.
    ever: BTreeMap<TopicId, u64>,
}

#[derive(Debug)]
struct OfTopic {
    /// Whether a look has found something since a worker was last woken.
    is_wanted: bool,
    /// No worker is woken before.
    not_before: Option<Instant>,
    /// Whether the last look at the topic found messages that had been rung for.
    remains: bool,
    /// When new messages last ended its pauses.
    fresh_at: Option<Instant>,
    pause: Duration,
    workers: u32,
}

impl Default for OfTopic {
    fn default() -> Self {
        Self {
            is_wanted: false,
            not_before: None,
            remains: false,
            fresh_at: None,
            pause: FIRST,
            workers: 1,
        }
    }
}

impl Demand {
    /// Takes over how each topic is read.
    pub(super) fn know(&mut self, kinds: Vec<Kind>) {
        self.groups.clear();
        self.broadcast.clear();
        for kind in kinds {
            if kind.is_broadcast {
                self.broadcast.insert(kind.topic);
            }
            if kind.stream.0 != 0 {
                self.groups.entry(kind.stream).or_default().push(kind.topic);
            }
        }
    }

    /// Records that a topic has new rows.
    pub(super) fn arrived(&mut self, topic: TopicId, now: Instant) {
        let groups = self.groups.get(&topic).cloned();
        for topic in groups.unwrap_or_else(|| vec![topic]) {
            let of_topic = self.topics.entry(topic).or_default();
            of_topic.is_wanted = true;
            // Other messages than those that workers have been woken for.
            let is_fresh = of_topic.fresh_at.is_none_or(|at| now >= at + FRESH);
            if of_topic.pause > FIRST && is_fresh {
                let fresh_at = Some(now);
                let remains = of_topic.remains;
                *of_topic = OfTopic { is_wanted: true, remains, fresh_at, ..OfTopic::default() };
            }
        }
    }

    /// Records how many messages a stream has ever had. Returns whether these are more than before.
    pub(super) fn grown(&mut self, stream: TopicId, ever: u64, now: Instant) -> bool {
        let has_grown = self.ever.insert(stream, ever).is_some_and(|known| known != ever);
        if has_grown {
            self.arrived(stream, now);
        }
        has_grown
    }

    /// Records which of these topics have messages, as a look has found. They are all that workers
    /// listen to.
    pub(super) fn walked(&mut self, topics: &[TopicId], ready: &[TopicId], now: Instant) {
        // In order, as they come from a map.
        self.topics.retain(|topic, _| topics.binary_search(topic).is_ok());
        for topic in topics {
            if ready.contains(topic) {
                let of_topic = self.topics.entry(*topic).or_default();
                of_topic.remains = true;
                of_topic.is_wanted |= of_topic.not_before.is_none_or(|at| now >= at);
            } else if !self.broadcast.contains(topic) {
                self.topics.remove(topic);
            }
        }
    }

    /// Whether every worker of the topic is to be woken.
    pub(super) fn is_broadcast(&self, topic: TopicId) -> bool {
        self.broadcast.contains(&topic)
    }

    /// Returns the topics that workers are to be woken for now, and how many workers.
    pub(super) fn due(&self, now: Instant) -> Vec<(TopicId, u32)> {
        let is_due = |of: &OfTopic| of.is_wanted && of.not_before.is_none_or(|at| now >= at);
        let due = self.topics.iter().filter(|(_, of)| is_due(of));
        due.map(|(topic, of)| (*topic, of.workers)).collect()
    }

    /// Records how many workers were woken for a topic.
    pub(super) fn rung(&mut self, topic: TopicId, woken: u32, now: Instant) {
        let of_topic = self.topics.entry(topic).or_default();
        if woken == 0 {
            of_topic.not_before = Some(now + BUSY);
            return;
        }
        of_topic.is_wanted = false;
        of_topic.not_before = Some(now + of_topic.pause);
        if !of_topic.remains {
            return;
        }
        of_topic.pause = (of_topic.pause * 2).min(LONGEST);
        of_topic.workers = (of_topic.workers * 2).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: TopicId = TopicId(1);
    const STREAM: TopicId = TopicId(2);
    const GROUP: TopicId = TopicId(3);
    const CACHE: TopicId = TopicId(4);

    fn demand() -> Demand {
        let mut demand = Demand::default();
        let kind = |topic, stream, is_broadcast| Kind { topic, stream, is_broadcast };
        demand.know(vec![
            kind(QUEUE, TopicId(0), false),
            kind(GROUP, STREAM, false),
            kind(CACHE, STREAM, true),
        ]);
        demand
    }

    #[test]
    fn one_worker_is_woken_for_new_messages_and_more_while_messages_remain() {
        let (mut demand, start) = (demand(), Instant::now());
        let (mut woken, mut now) = (Vec::new(), start);
        demand.arrived(QUEUE, now);
        while now < start + Duration::from_millis(100) {
            for (topic, workers) in demand.due(now) {
                woken.push(workers);
                demand.rung(topic, workers, now);
            }
            demand.walked(&[QUEUE], &[QUEUE], now);
            now += Duration::from_millis(1);
        }
        assert_eq!(woken, [1, 1, 2, 4, 8, 16], "after 0, 4, 8, 15, 28 and 53 ms");
        demand.walked(&[QUEUE], &[], now);
        demand.arrived(QUEUE, now);
        assert_eq!(demand.due(now), [(QUEUE, 1)], "those have been claimed, and there are others");
    }

    #[test]
    fn new_messages_do_not_wait_behind_those_that_nobody_can_claim() {
        let (mut demand, now) = (demand(), Instant::now());
        for _ in 0..12 {
            demand.walked(&[QUEUE], &[QUEUE], now + LONGEST);
            demand.rung(QUEUE, 1, now);
        }
        assert_eq!(demand.due(now), []);
        demand.arrived(QUEUE, now);
        assert_eq!(demand.due(now), [(QUEUE, 1)]);
        // But if that ring was in vain, too, those that follow at once do not storm.
        demand.rung(QUEUE, 1, now);
        demand.rung(QUEUE, 1, now);
        demand.arrived(QUEUE, now + FIRST);
        assert_eq!(demand.due(now + FIRST), []);
        demand.arrived(QUEUE, now + FRESH);
        assert_eq!(demand.due(now + FRESH), [(QUEUE, 1)]);
    }

    #[test]
    fn while_every_worker_is_busy_none_is_tried_again_at_once() {
        let (mut demand, now) = (demand(), Instant::now());
        demand.arrived(QUEUE, now);
        demand.rung(QUEUE, 0, now);
        demand.arrived(QUEUE, now);
        assert_eq!(demand.due(now + BUSY / 2), []);
        assert_eq!(demand.due(now + BUSY), [(QUEUE, 1)]);
    }

    #[test]
    fn what_is_new_in_a_stream_is_new_for_each_of_its_groups() {
        let (mut demand, now) = (demand(), Instant::now());
        demand.grown(STREAM, 7, now);
        assert_eq!(demand.due(now), [], "the first look only learns where the stream ends");
        demand.grown(STREAM, 7, now);
        assert_eq!(demand.due(now), []);
        demand.grown(STREAM, 8, now);
        assert_eq!(demand.due(now), [(GROUP, 1), (CACHE, 1)]);
        assert!(demand.is_broadcast(CACHE) && !demand.is_broadcast(GROUP));
        for topic in [GROUP, CACHE] {
            demand.rung(topic, 1, now);
        }
        demand.arrived(STREAM, now);
        assert_eq!(demand.due(now + FIRST), [(GROUP, 1), (CACHE, 1)], "a message in its inbox");
    }
}
