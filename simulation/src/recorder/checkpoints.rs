//! The checkpoints that handlers have saved, and what later handlers found.

use rowmq_core::Delivery;
use rowmq_core::model::{DeliveryNo, Settlement};
use rowmq_core::worker::SettleOutcome;

use super::Share;
use super::{Recorder, Run, Story, share};

/// The answer to a handler that has saved a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saved {
    Stored,
    /// Its claim was taken back.
    Refused,
    Unknown,
}

/// An attempt to save a checkpoint.
#[derive(Debug)]
pub(super) struct Save {
    no: u32,
    number: u64,
    /// When it was sent, its message was already claimed by a later delivery, or was cancelled.
    too_late: bool,
    /// The answer, with its number among all events.
    told: Option<(Saved, u64)>,
}

impl Story {
    /// Returns the place of the latest checkpoint of the latest delivery that was known to be
    /// stored at `event`.
    fn newest_save(&self, event: u64) -> Option<(u32, usize)> {
        let known = |save: &Save| matches!(save.told, Some((Saved::Stored, at)) if at < event);
        let saves = self.saves.iter().enumerate().filter(|(_, save)| known(save));
        saves.map(|(at, save)| (save.no, at)).max()
    }

    /// Returns why this is a wrong answer to a handler that asked at `event`.
    fn wrong_of_found(&self, number: u64, no: u32, event: u64) -> Option<String> {
        let Some(at) = self.saves.iter().position(|save| save.number == number) else {
            return Some(format!("checkpoint {number} is another message's"));
        };
        let save = &self.saves[at];
        if save.no != no {
            Some(format!("checkpoint {number} is delivery {}'s, not {no}'s", save.no))
        } else if save.too_late || matches!(save.told, Some((Saved::Refused, _))) {
            Some(format!("checkpoint {number} was saved without a claim"))
        } else if self.newest_save(event).is_some_and(|newest| (save.no, at) < newest) {
            Some(format!("checkpoint {number} is not the last that was stored"))
        } else {
            None
        }
    }
}

impl Recorder {
    /// Returns the number of events so far.
    pub(crate) fn now(&self) -> u64 {
        self.events
    }

    /// Records that a handler is about to save a checkpoint; returns its unique number.
    pub(crate) fn saving(&mut self, who: &str, delivery: &Delivery) -> u64 {
        let (number, no) = (self.events, delivery.delivery_no.0);
        self.run(who, delivery).has_checkpoint = true;
        let story = self.tell(share(delivery), format!("delivery {no} saves checkpoint {number}"));
        let too_late = story.is_cancelled() || story.runs.iter().any(|run| run.no > no);
        story.saves.push(Save { no, number, too_late, told: None });
        number
    }

    /// Records the answer to the save.
    pub(crate) fn saved(&mut self, delivery: &Delivery, number: u64, told: Saved) {
        let id = share(delivery);
        let at = self.events;
        let story = self.tell(id, format!("checkpoint {number} is {told:?}"));
        let rewound = story.rewound;
        let save = story.saves.iter_mut().find(|save| save.number == number).expect("one saved");
        save.told = Some((told, at));
        if told == Saved::Stored && save.too_late && !rewound {
            self.violated(id, format!("checkpoint {number} was stored without a claim"));
        }
    }

    /// Records what a handler found that asked for the last checkpoint after event `since`.
    pub(crate) fn looked_back(
        &mut self,
        who: &str,
        delivery: &Delivery,
        since: u64,
        found: Option<(u64, DeliveryNo)>,
    ) {
        let (id, no) = (share(delivery), delivery.delivery_no);
        let what = found.map_or("no checkpoint".to_owned(), |(n, _)| format!("checkpoint {n}"));
        let story = self.tell(id, format!("delivery {no} goes on from {what}"));
        if story.rewound {
            return;
        }
        match found {
            Some((number, of)) => {
                let wrong = story.wrong_of_found(number, of.0, since);
                self.resumed += usize::from(of < no);
                if let Some(wrong) = wrong {
                    self.violated(id, wrong);
                }
            }
            // Whether its claim was taken back, so that there was nothing to find, is checked
            // later.
            None => {
                let missed = story.newest_save(since).is_some();
                self.run(who, delivery).missed_checkpoint |= missed;
            }
        }
    }

    /// Checks a message whose checkpoint is still there when everything is over.
    pub(crate) fn judge_checkpoint(&mut self, id: Share) {
        let Some(story) = self.stories.get(&id).filter(|story| !story.rewound) else { return };
        let certain = |save: &Save| !matches!(save.told, None | Some((Saved::Unknown, _)));
        let kept = |run: &Run| matches!(run.asked, Some(Settlement::DeadLetter { .. }));
        let removed = |run: &Run| {
            run.is_final()
                && run.outcome == Some(SettleOutcome::Settled)
                && run.has_checkpoint
                && !run.in_transaction
                && !kept(run)
        };
        // A save that arrived late may have crossed the ack.
        if story.saves.iter().all(certain) && story.runs.iter().any(removed) {
            self.violated(id, "its checkpoint outlives it".to_owned());
        }
    }
}
