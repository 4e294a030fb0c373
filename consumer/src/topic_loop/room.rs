//! How much a topic's loop claims, and when.

use std::time::Duration;

use tokio::time::Instant;

use super::{State, TopicLoop};
use crate::breaker::Breaker;
use crate::shares::Share;

/// About this much work is claimed beyond the free handlers, so that fast handlers never wait for a
/// claim and slow work is left to other workers.
const PREFETCH: Duration = Duration::from_millis(50);

impl TopicLoop {
    /// Returns how many messages to claim now; 0 while there are enough.
    pub(super) fn room(&self, state: &State) -> usize {
        if state.parked {
            return 0;
        }
        if let Some(limit) = state.breaker.as_ref().and_then(Breaker::limit) {
            return limit.saturating_sub(state.waiting.len());
        }
        if let Some(order) = &state.order {
            let busy = state.runs.len() >= self.concurrency();
            let enough = busy || order.has_next(&state.waiting);
            return if enough { 0 } else { self.post.registration.options.max_batch as usize };
        }
        let (options, size) = (&self.post.registration.options, self.post.registration.run_size);
        let free = self.concurrency().saturating_sub(state.runs.len()) * size;
        let max_batch = options.max_batch as usize;
        let prefetch = match state.run_time {
            // A message that waits in memory would use up the time that its run is allowed, or the
            // place of another one that could run.
            _ if self.is_limited() => 0,
            None => 0,
            Some(time) => {
                let per_handler = PREFETCH.as_nanos() / time.as_nanos().max(1_000);
                let per_handler = usize::try_from(per_handler).unwrap_or(usize::MAX);
                // A batch to work on while the next one is claimed.
                (self.concurrency() * size).saturating_mul(per_handler).min(2 * max_batch)
            }
        };
        let room = (free + prefetch).saturating_sub(state.waiting.len());
        // Small claims cost as much as large ones: wait until half of the prefetch is used up.
        let worth = (prefetch / 2).max(1);
        if room < worth && !state.waiting.is_empty() { 0 } else { room.min(max_batch) }
    }

    /// Returns when the loop must act without being woken: at the next poll if there is `room`, at
    /// the end of a pause, or when a message has waited too long for its turn.
    pub(super) fn next(&self, state: &State, room: usize) -> Option<Instant> {
        let pause = state.breaker.as_ref().and_then(Breaker::until);
        let next = pause.or_else(|| (room > 0).then(|| state.poll.due()));
        let is_free = state.runs.len() < self.post.registration.options.concurrency;
        let turn = self.turn_due(state).filter(|_| is_free);
        [next, turn].into_iter().flatten().min()
    }

    /// Returns how many handlers of this topic may run at once.
    fn concurrency(&self) -> usize {
        let slots = self.share.as_ref().map_or(usize::MAX, Share::slots);
        self.post.registration.options.concurrency.min(slots)
    }

    /// Returns whether a claimed message costs something while it waits in memory.
    pub(super) fn is_limited(&self) -> bool {
        let topic = self.topic.borrow();
        topic.settings.max_run_time.is_some() || !topic.settings.limits.is_off()
    }
}
