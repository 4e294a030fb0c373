//! A topic's turns, where the consumer's concurrency is shared.

use std::time::Instant;

use super::{State, TopicLoop};
use crate::shares::Slot;

impl TopicLoop {
    /// The slot that a run needs; `Some(None)` where there are none to share. `None`: it is not the
    /// topic's turn, or its messages have waited for it too long.
    pub(super) fn take_turn(&self, state: &mut State) -> Option<Option<Slot>> {
        let Some(share) = &self.share else { return Some(None) };
        let slot = state.slot.take().or_else(|| share.take(Instant::now()))?;
        if !self.has_waited_too_long(state) {
            return Some(Some(slot));
        }
        // The turn is kept for what is claimed now in their place.
        self.give_back(std::mem::take(&mut state.waiting));
        state.slot = Some(slot);
        state.poll.wake();
        None
    }

    /// Whether the time that a topic allows a run has begun to run out while its message waited for
    /// its turn: the janitor counts it from the claim on, and takes the message back a lease after
    /// its end.
    fn has_waited_too_long(&self, state: &State) -> bool {
        let most = self.post.crew.worker.lease() / 2;
        self.is_limited() && state.waiting.iter().any(|waiting| waiting.since.elapsed() > most)
    }

    /// The topic has nothing to run.
    pub(super) fn want_no_turn(&self) {
        if let Some(share) = &self.share {
            share.content();
        }
    }
}

impl State {
    /// Whether a run could begin with what waits.
    pub(super) fn has_next(&self) -> bool {
        match &self.order {
            Some(order) => order.has_next(&self.waiting),
            None => !self.waiting.is_empty(),
        }
    }
}
