//! Where messages are when everything is over, compared with the answers about them.

use std::time::Duration;

use rowmq_core::model::{MsgId, TopicId};
use rowmq_core::worker::SettleOutcome;

use super::{Recorder, Run, Sent};

/// Lone crashes after which a message may be dead-lettered: the topic's default.
const MAX_CRASHES: usize = 3;

/// A message as one of its readers has it. The first is the topic, or the group.
pub(crate) type Share = (TopicId, MsgId);

/// Where a message is at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndState {
    /// Not handled yet.
    Waiting,
    /// Among the dead letters, because of lone crashes or not.
    Dead {
        crashes: bool,
    },
    /// Kept, or discarded.
    Archive {
        /// It was cancelled.
        cancelled: bool,
    },
    Nowhere,
}

impl EndState {
    pub(crate) fn is_dead(self) -> bool {
        matches!(self, Self::Dead { .. })
    }
}

impl Recorder {
    /// Returns every message that is known to be stored.
    pub(crate) fn ids(&self) -> Vec<Share> {
        self.stories.keys().copied().collect()
    }

    /// Compares a message's story with where it is at the end.
    pub(crate) fn judge(&mut self, id: Share, place: EndState, patience: Duration) {
        let story = &self.stories[&id];
        let done = story
            .runs
            .iter()
            .any(|run| run.is_final() && !matches!(run.outcome, Some(SettleOutcome::Fenced)));
        let done = done || story.may_be_cancelled();
        let lone = story
            .runs
            .iter()
            .filter(|run| run.alone || (self.overdue && run.outcome.is_none()))
            .filter(|run| run.outcome != Some(SettleOutcome::Settled));
        let crashes = lone.count() + story.charged_unrun;
        let wrong = match (story.sent, place) {
            (_, EndState::Waiting) => {
                Some(format!("it still waits {} s after the last fault", patience.as_secs()))
            }
            (Sent::NotStored, EndState::Dead { .. } | EndState::Archive { .. }) => {
                Some("it is stored, but its sender was told it is not".to_owned())
            }
            (_, EndState::Dead { crashes: true }) if crashes < MAX_CRASHES => {
                Some("it is a dead letter for crashes that were not its own".to_owned())
            }
            (Sent::Stored, EndState::Nowhere) if !done => Some(
                "it is lost: nobody settled it, or only one who was told it is another's"
                    .to_owned(),
            ),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.violated(id, wrong);
        }
    }

    /// Records that a delivery was charged with a crash of its worker, and checks whether the
    /// worker held nothing else. Only handlers that have started are recorded. A consumer that dies
    /// between its claim and its handler's start is charged too, which is right: the rescue cannot
    /// know about the handler.
    pub(crate) fn judge_charge(&mut self, id: Share, delivery_no: u32) {
        let Some(story) = self.stories.get_mut(&id) else { return };
        let mut runs = story.runs.iter().filter(|run| run.no == delivery_no).peekable();
        let lone = |run: &Run| run.alone || (self.overdue && run.outcome.is_none());
        if runs.peek().is_none() {
            story.charged_unrun += 1;
        } else if !runs.any(lone) {
            let what = format!("delivery {delivery_no} is charged with the crash of others");
            self.violated(id, what);
        }
    }

    /// Compares where a message is at the end with whether it has an effect.
    pub(crate) fn judge_effect(&mut self, id: Share, place: EndState, effect: bool) {
        let told = |run: &Run| run.outcome == Some(SettleOutcome::Settled) && run.in_transaction;
        let committed = self.stories[&id].runs.iter().any(told);
        if self.stories[&id].rewound {
            return;
        }
        if effect && matches!(place, EndState::Waiting | EndState::Dead { .. }) {
            self.violated(id, "its effect was committed without the ack".to_owned());
        } else if committed && !effect {
            self.violated(id, "its ack was committed without the effect".to_owned());
        }
    }
}
