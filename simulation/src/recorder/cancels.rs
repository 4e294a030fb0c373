//! The answers to wishes to cancel a message, and what must hold from then on.

use rowmq_core::cancellation::Was;
use rowmq_core::model::Settlement;
use rowmq_core::worker::SettleOutcome;

use super::Share;
use super::{Recorder, Run, Sent, Story};
use crate::recorder::EndState;

/// The answer to an attempt to cancel a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Cancelled(Was),
    /// It is over, or there is no such message.
    Over,
    /// Its worker was asked: the message is there, and is not cancelled so far.
    Asked,
    /// It was locked.
    Locked,
    /// The outcome is unknown.
    Doubtful,
    /// The canceller has given up.
    Left,
}

/// How many messages were reported as cancelled, by their state at the time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cancelled {
    /// They waited for their time.
    pub waiting: usize,
    /// They were ready.
    pub ready: usize,
    /// Their handlers stopped.
    pub stopped: usize,
    /// Their claims were taken away.
    pub fenced: usize,
}

impl Cancelled {
    fn count(&mut self, was: Was) {
        *match was {
            Was::Waiting => &mut self.waiting,
            Was::Ready => &mut self.ready,
            Was::Stopped => &mut self.stopped,
            Was::Fenced => &mut self.fenced,
        } += 1;
    }
}

/// A wish to cancel a message.
#[derive(Debug)]
pub(super) struct Wish {
    /// The canceller, as long as it tries.
    who: Option<String>,
    /// The message was known to be stored before.
    stored: bool,
    /// Some attempt may have asked a worker, or may have succeeded without an answer.
    asked: bool,
    doubtful: bool,
    /// The final answer, and the message's last delivery that had begun by then.
    last: Option<(Last, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Cancelled(Was),
    Over,
}

impl Story {
    /// Returns how it was cancelled, if an answer said so, and the last delivery before that.
    fn cancelled(&self) -> Option<(Was, u32)> {
        self.wishes.iter().find_map(|wish| match wish.last {
            Some((Last::Cancelled(was), begun)) => Some((was, begun)),
            _ => None,
        })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled().is_some()
    }

    fn is_doubtful(&self) -> bool {
        self.wishes.iter().any(|wish| wish.doubtful)
    }

    /// Returns whether it may have been cancelled.
    pub(super) fn may_be_cancelled(&self) -> bool {
        self.is_cancelled() || self.is_doubtful()
    }

    /// Returns why this delivery must not begin now, if no delivery may begin any more.
    pub(super) fn is_ended_before(&self, delivery_no: u32) -> Option<String> {
        self.wishes.iter().find_map(|wish| match wish.last {
            Some((Last::Cancelled(was), begun)) if delivery_no > begun => {
                Some(format!("it was cancelled ({was:?}) before delivery {delivery_no}"))
            }
            Some((Last::Over, begun)) if wish.stored && delivery_no > begun => {
                Some(format!("it was said to be over before delivery {delivery_no}"))
            }
            _ => None,
        })
    }
}

impl Recorder {
    /// Returns whether the message was sent.
    pub(crate) fn knows(&self, share: Share) -> bool {
        self.stories.contains_key(&share)
    }

    /// Records that a canceller begins to cancel a message; returns the number of its wish.
    pub(crate) fn wishes_end_of(&mut self, share: Share, who: &str) -> usize {
        // A message in a stream's log cannot be cancelled; such a wish counts as one for a message
        // that is not stored.
        let stored = !self.in_stream && self.stories[&share].sent == Sent::Stored;
        let story = self.tell(share, format!("{who} wants it cancelled"));
        let who = Some(who.to_owned());
        story.wishes.push(Wish { who, stored, asked: false, doubtful: false, last: None });
        story.wishes.len() - 1
    }

    /// Records that a canceller was killed: the answer to its last attempt is unknown.
    pub(super) fn leave_wishes_of(&mut self, who: &str) {
        let wishes = self.stories.values_mut().flat_map(|story| &mut story.wishes);
        for wish in wishes.filter(|wish| wish.who.as_deref() == Some(who)) {
            (wish.who, wish.asked, wish.doubtful) = (None, true, true);
        }
    }

    /// Records the answer to one attempt of the wish, after `begun` deliveries.
    pub(crate) fn told_of_end(&mut self, share: Share, wish: usize, answer: Answer, begun: u32) {
        let story = self.tell(share, format!("who wants it cancelled is told: {answer:?}"));
        if answer == Answer::Asked {
            // The row was locked for this request, so no earlier attempt has removed it, and none
            // will.
            story.wishes.iter_mut().for_each(|wish| wish.doubtful = false);
        }
        let wish = &mut story.wishes[wish];
        match answer {
            Answer::Cancelled(was) => wish.last = Some((Last::Cancelled(was), begun)),
            Answer::Over => wish.last = Some((Last::Over, begun)),
            Answer::Asked => wish.asked = true,
            Answer::Doubtful => (wish.asked, wish.doubtful) = (true, true),
            Answer::Locked | Answer::Left => {}
        }
        if matches!(answer, Answer::Cancelled(_) | Answer::Over | Answer::Left) {
            wish.who = None;
        }
        if let Answer::Cancelled(was) = answer {
            self.cancelled.count(was);
        }
    }

    /// Returns how the message was cancelled, if that is beyond doubt.
    pub(crate) fn how_cancelled(&self, share: Share) -> Option<Was> {
        let story = self.stories.get(&share).filter(|story| !story.is_doubtful())?;
        story.cancelled().map(|(was, _)| was)
    }

    /// Compares the answers about a message's end with all that is known when everything is over.
    pub(crate) fn judge_cancel(&mut self, share: Share, place: EndState, effect: bool) {
        let story = &self.stories[&share];
        if !story.rewound
            && let Some(wrong) = wrong_of_cancels(story, place, effect)
        {
            self.violated(share, wrong);
        }
    }
}

fn wrong_of_cancels(story: &Story, place: EndState, effect: bool) -> Option<String> {
    let asked = story.wishes.iter().any(|wish| wish.asked);
    let Some((was, begun)) = story.cancelled() else {
        let wrong = place == EndState::Archive { cancelled: true } && !asked;
        return wrong.then(|| "it was cancelled, though nobody asked for that".to_owned());
    };
    let settled = |run: &&Run| run.outcome == Some(SettleOutcome::Settled);
    let right_place = match was {
        Was::Waiting => place == EndState::Nowhere,
        Was::Ready | Was::Fenced => place == EndState::Archive { cancelled: true },
        // With the cancellation's reason or its handler's, which may have come first.
        Was::Stopped => matches!(place, EndState::Archive { .. }),
    };
    let by_its_worker = |run: &Run| matches!(run.asked, Some(Settlement::Discard { .. }));
    let ended: Vec<&Run> = story.runs.iter().filter(settled).filter(|run| run.is_final()).collect();
    let explained = was == Was::Stopped && ended.iter().all(|run| by_its_worker(run));
    let twice = story
        .wishes
        .iter()
        .filter(|wish| matches!(wish.last, Some((Last::Cancelled(was), _)) if was != Was::Stopped));
    let fenced = |run: &Run| was == Was::Fenced && run.no == begun;
    if effect {
        Some("its effect was committed though it was cancelled".to_owned())
    } else if !right_place {
        Some(format!("it was cancelled ({was:?}), and is in {place:?}"))
    } else if let Some(run) = ended.first().filter(|_| !explained) {
        Some(format!("delivery {} settled it though it was cancelled ({was:?})", run.no))
    } else if let Some(run) = story.runs.iter().filter(settled).find(|run| fenced(run)) {
        Some(format!("delivery {} settled it though its claim was taken away", run.no))
    } else {
        (twice.count() > 1).then(|| "it was cancelled twice".to_owned())
    }
}
