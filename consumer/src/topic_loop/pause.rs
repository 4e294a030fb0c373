//! How the topic loop applies the pause on errors.

use rowmq_core::telemetry;
use tokio::time::Instant;

use super::{State, TopicLoop};
use crate::breaker::{Breaker, Change};

impl TopicLoop {
    /// Ends the pause if it is over.
    pub(super) fn turn_breaker(&self, state: &mut State) {
        let change = state.breaker.as_mut().and_then(|breaker| breaker.turn(Instant::now()));
        self.changed(change, state);
    }

    pub(super) fn changed(&self, change: Option<Change>, state: &mut State) {
        let Some(change) = change else { return };
        let topic = self.name();
        telemetry::paused_on_errors(topic, matches!(change, Change::Paused { .. }));
        match change {
            Change::Paused { failed, of } => {
                let pause_ms = self.runner.registration.options.pause_for.as_millis();
                tracing::warn!(
                    topic.name = topic,
                    failed,
                    of,
                    pause_ms,
                    "Too many messages failed: the consumer pauses the topic."
                );
                self.give_up_paused(state);
            }
            Change::Trying => {
                tracing::info!(topic.name = topic, "The pause is over: one message is tried.");
                state.poll.wake();
            }
            Change::Resumed => {
                tracing::info!(topic.name = topic, "The message was handled: the topic goes on.");
                state.poll.wake();
            }
        }
    }

    /// Gives back, uncharged, messages that no handler may begin while the topic is paused on
    /// errors or one message is tried.
    pub(super) fn give_up_paused(&self, state: &mut State) {
        let limit = state.breaker.as_ref().and_then(Breaker::limit);
        if let Some(beyond) = limit.filter(|limit| *limit < state.waiting.len()) {
            let beyond = state.waiting.split_off(beyond);
            self.give_back(beyond);
        }
    }
}
