//! A topic's turns, if the consumer's concurrency is shared.

use std::time::Duration;

use tokio::time::Instant;

use super::{State, TopicLoop};
use crate::shares::Slot;

/// How long claimed messages wait for a turn of their topic, or for a handler.
pub(super) const WAITED: Duration = Duration::from_secs(1);

impl TopicLoop {
    /// Takes the slot that a run needs; `Some(None)` if the concurrency is not shared. `None`: it
    /// is not the topic's turn. Messages that have waited too long for it are given back, and
    /// nothing is claimed until the turn comes.
    pub(super) fn take_turn(&self, state: &mut State) -> Option<Option<Slot>> {
        let Some(share) = &self.share else { return Some(None) };
        let slot = state.slot.take().or_else(|| share.take(Instant::now()));
        let too_long = self.turn_due(state).is_some_and(|due| due <= Instant::now());
        if too_long && (slot.is_none() || self.is_limited()) {
            self.give_back(std::mem::take(&mut state.waiting));
            state.slot = slot;
            state.parked = state.slot.is_none();
            state.poll.wake();
            return None;
        }
        if slot.is_some() {
            state.turn_at = Instant::now();
        }
        slot.map(Some)
    }

    /// Lets a topic that holds nothing claim again once it is its turn; returns false until then.
    pub(super) fn is_unparked(&self, state: &mut State) -> bool {
        if let (true, Some(share)) = (state.parked, &self.share) {
            state.slot = share.take(Instant::now());
            state.parked = state.slot.is_none();
            state.poll.wake();
        }
        !state.parked
    }

    /// Returns when the messages that wait for the topic's turn have waited too long. Another
    /// worker could handle them, and they may expire. If the topic bounds its runs or claims, they
    /// also use up time or room: the janitor counts a run's time from the claim on, and takes the
    /// message back one lease after that time.
    pub(super) fn turn_due(&self, state: &State) -> Option<Instant> {
        let half = self.runner.services.worker.lease() / 2;
        let first = state.waiting.front().filter(|_| self.share.is_some())?;
        if self.is_limited() {
            return Some(first.since + half);
        }
        // While turns come, messages that were claimed ahead may wait longer.
        Some(first.since.max(state.turn_at) + WAITED.min(half))
    }

    /// Declares that the topic has nothing to run.
    pub(super) fn want_no_turn(&self) {
        if let Some(share) = &self.share {
            share.content();
        }
    }
}

impl State {
    /// Returns whether a run could begin with the messages that wait.
    pub(super) fn has_next(&self) -> bool {
        match &self.order {
            Some(order) => order.has_next(&self.waiting),
            None => !self.waiting.is_empty(),
        }
    }
}
