//! How many messages a topic's loop claims ahead of its handlers, and which of them it gives back.

use std::time::Duration;

use tokio::time::Instant;

use super::turns::WAITED;
use super::{State, TopicLoop};

/// About this much work is claimed beyond the free handlers, so that fast handlers never wait for a
/// claim and slow work is left to other workers.
const PREFETCH: Duration = Duration::from_millis(50);

/// About as many bytes of bodies wait for a handler: two claims of large bodies.
const BYTES: usize = 16 * 1024 * 1024;

impl TopicLoop {
    /// Returns how many messages may wait for a handler while all are busy.
    pub(super) fn prefetch(&self, state: &State) -> usize {
        let registration = &self.runner.registration;
        // A waiting message would take the place of one that could run.
        let Some(time) = state.run_time.filter(|_| !self.bounds_running()) else { return 0 };
        let per_handler = PREFETCH.as_nanos() / time.as_nanos().max(1_000);
        let per_handler = usize::try_from(per_handler).unwrap_or(usize::MAX);
        let handlers = self.concurrency() * registration.run_size;
        // A batch to work on while the next one is claimed.
        let batches = 2 * registration.options.max_batch as usize;
        handlers.saturating_mul(per_handler).min(batches).min(BYTES / state.body.max(1))
    }

    /// Gives back what has waited too long because the handlers became slow: another worker could
    /// handle it. An ordered group has one claim of a partition at a time, which must wait.
    pub(super) fn give_back_surplus(&self, state: &mut State) {
        let now = Instant::now();
        let waited = state.waiting.front().is_some_and(|it| it.since + WAITED <= now);
        if !waited || state.order.is_some() {
            return;
        }
        if self.surplus_due(state).is_some_and(|due| due <= now) {
            state.run_time = state.run_time.max(Some(WAITED));
        }
        // Those for free handlers wait for the topic's turn.
        let keep = self.free(state) + self.prefetch(state);
        if state.waiting.len() > keep {
            self.give_back(state.waiting.split_off(keep));
        }
    }

    /// Returns when the handlers count as slow: when all are busy, and no run has ended for as long
    /// as a message may wait.
    pub(super) fn surplus_due(&self, state: &State) -> Option<Instant> {
        let first = state.waiting.front().filter(|_| state.order.is_none())?;
        let is_busy = state.runs.len() >= self.concurrency();
        is_busy.then(|| first.since.max(state.ended_at) + WAITED)
    }
}

impl State {
    /// Adds the time of a run that has ended to the mean.
    pub(super) fn learn(&mut self, took: Duration) {
        let mean = self.run_time.map_or(took, |mean| (mean * 7 + took) / 8);
        self.run_time = Some(mean);
        self.ended_at = Instant::now();
    }
}
