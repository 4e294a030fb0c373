//! What those were told who wanted a message cancelled, and what must hold from then on.

use rowmq_core::cancellation::Was;
use rowmq_core::model::Settlement;
use rowmq_core::worker::SettleOutcome;

use super::{Recorder, Run, Sent, Story};
use crate::recorder::Place;
use crate::stage::Share;

/// What an attempt to cancel a message was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Cancelled(Was),
    /// It is over, or there is no such message.
    Over,
    /// Its worker was asked: it is there, and nobody has cancelled it so far.
    Asked,
    /// It was locked.
    Locked,
    /// Nobody knows.
    Doubtful,
    /// Whoever wanted it has given up.
    Left,
}

/// How many messages somebody was told are cancelled, by what they were doing.
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

/// Somebody wants a message cancelled.
#[derive(Debug)]
pub(super) struct Wish {
    /// Whose it is, as long as he tries.
    who: Option<String>,
    /// The message was known to be stored before.
    stored: bool,
    /// Some attempt may have asked a worker, or may have succeeded unheard.
    asked: bool,
    doubtful: bool,
    /// The last word, and the message's last delivery that had begun by then.
    last: Option<(Last, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Cancelled(Was),
    Over,
}

impl Story {
    /// How it was cancelled, if somebody was told that it is, and the last delivery of before.
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

    /// Whether it may have been cancelled.
    pub(super) fn may_be_cancelled(&self) -> bool {
        self.is_cancelled() || self.is_doubtful()
    }

    /// Why a delivery that begins now must not, if nobody may begin any more.
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
    /// Whether the message was sent.
    pub(crate) fn knows(&self, share: Share) -> bool {
        self.stories.contains_key(&share)
    }

    /// Somebody begins to cancel a message; the number of his wish.
    pub(crate) fn wishes_end_of(&mut self, share: Share, who: &str) -> usize {
        // In the log of a stream it is not to be cancelled, and nobody says more of it.
        let stored = !self.in_stream && self.stories[&share].sent == Sent::Stored;
        let story = self.tell(share, format!("{who} wants it cancelled"));
        let who = Some(who.to_owned());
        story.wishes.push(Wish { who, stored, asked: false, doubtful: false, last: None });
        story.wishes.len() - 1
    }

    /// Who was about to cancel messages has been killed, and what his last attempt came to nobody
    /// has heard.
    pub(super) fn leave_wishes_of(&mut self, who: &str) {
        let wishes = self.stories.values_mut().flat_map(|story| &mut story.wishes);
        for wish in wishes.filter(|wish| wish.who.as_deref() == Some(who)) {
            (wish.who, wish.asked, wish.doubtful) = (None, true, true);
        }
    }

    /// What one attempt of the wish was told, after `begun` deliveries.
    pub(crate) fn told_of_end(&mut self, share: Share, wish: usize, answer: Answer, begun: u32) {
        let story = self.tell(share, format!("who wants it cancelled is told: {answer:?}"));
        if answer == Answer::Asked {
            // Its row was locked for that, so no attempt of before has removed it, and none will.
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

    /// How the message was cancelled, if that is beyond doubt.
    pub(crate) fn how_cancelled(&self, share: Share) -> Option<Was> {
        let story = self.stories.get(&share).filter(|story| !story.is_doubtful())?;
        story.cancelled().map(|(was, _)| was)
    }

    /// Compares what was told of a message's end with all that is known when all is over.
    pub(crate) fn judge_cancel(&mut self, share: Share, place: Place, effect: bool) {
        let story = &self.stories[&share];
        if !story.rewound
            && let Some(wrong) = wrong_of_cancels(story, place, effect)
        {
            self.violated(share, wrong);
        }
    }
}

fn wrong_of_cancels(story: &Story, place: Place, effect: bool) -> Option<String> {
    let asked = story.wishes.iter().any(|wish| wish.asked);
    let Some((was, begun)) = story.cancelled() else {
        let wrong = place == Place::Archive { cancelled: true } && !asked;
        return wrong.then(|| "it was cancelled, though nobody asked for that".to_owned());
    };
    let settled = |run: &&Run| run.outcome == Some(SettleOutcome::Settled);
    let right_place = match was {
        Was::Waiting => place == Place::Nowhere,
        Was::Ready | Was::Fenced => place == Place::Archive { cancelled: true },
        // By its own word or by that of its handler, which may have come first.
        Was::Stopped => matches!(place, Place::Archive { .. }),
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
