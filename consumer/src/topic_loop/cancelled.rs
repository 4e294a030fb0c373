//! Messages that are cancelled while this consumer holds them.

use std::collections::VecDeque;
use std::sync::Arc;

use rowmq_core::handler::RunOutcome;
use rowmq_core::worker::Life;
use tokio::sync::watch;

use super::{State, TopicLoop};
use crate::run::Waiting;
use crate::runs::hot_row;

impl TopicLoop {
    /// Discards cancelled messages that no handler has begun; ends the runs of the others.
    pub(super) fn give_up_cancelled(&self, state: &mut State, life: &watch::Receiver<Life>) {
        if life.borrow().pulse.cancelled.is_empty() {
            return;
        }
        let pulse = Arc::clone(&life.borrow().pulse);
        state.runs.stop(|row| pulse.is_cancelled(row));
        let is_cancelled =
            |it: &Waiting| hot_row(&it.delivery).is_some_and(|row| pulse.is_cancelled(row));
        if !state.waiting.iter().any(is_cancelled) {
            return;
        }
        let (cancelled, rest): (VecDeque<_>, _) =
            std::mem::take(&mut state.waiting).into_iter().partition(is_cancelled);
        state.waiting = rest;
        let topic = Arc::clone(&self.topic.borrow());
        for waiting in cancelled {
            self.runner.finish(&topic, waiting, RunOutcome::Cancelled);
        }
    }
}
