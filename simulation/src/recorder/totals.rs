//! The workers' throughput, as their handlers counted it.

use std::collections::BTreeMap;
use std::time::Duration;

use rowmq_core::model::{Settlement, Throughput, TopicId, WorkerId};

use super::Recorder;

/// Totals by worker and topic.
pub(crate) type Totals = BTreeMap<(WorkerId, TopicId), Throughput>;

impl Recorder {
    /// Counts a delivery that is settled so, or may be.
    pub(crate) fn counted(&mut self, worker: WorkerId, topic: TopicId, settlement: &Settlement) {
        use Settlement::{Ack, DeadLetter, Discard, Release, Repeated, Retry, RetryAt, Snooze};
        let total = self.totals.entry((worker, topic)).or_default();
        match settlement {
            Ack | Repeated | Discard { .. } => total.done += 1,
            Retry { .. } | RetryAt { .. } | DeadLetter { .. } => total.failed += 1,
            Release | Snooze { .. } => {}
        }
    }

    /// Counts a delivery that had waited this long when its handler got it.
    pub(crate) fn picked_up(&mut self, worker: WorkerId, topic: TopicId, after: Duration) {
        let total = self.totals.entry((worker, topic)).or_default();
        total.picked_up += 1;
        total.waited += after;
    }

    /// Returns all counts.
    pub(crate) fn totals(&self) -> &Totals {
        &self.totals
    }
}
