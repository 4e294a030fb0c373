//! What all actors together saw of one message.

use std::collections::HashSet;

use super::asks_for_another;
use crate::record::{Answer, Ended, Enqueued, Moment, Place};
use crate::tag::Actor;

/// A handler began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) at: Moment,
    pub(super) actor: Actor,
    pub(super) delivery_no: u32,
    /// Where it lay in the stream, if it came from there.
    pub(super) place: Option<Place>,
}

/// A handler ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) at: Moment,
    pub(super) delivery_no: u32,
    pub(super) ended: Ended,
}

/// A consumer was told what became of a delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub(super) at: Moment,
    pub(super) actor: Actor,
    pub(super) delivery_no: u32,
    pub(super) ack: bool,
    pub(super) answer: Answer,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// When it was about to be sent.
    pub(super) invoked: Option<Moment>,
    /// When its transaction had written it and to which topic, if it was sent in one.
    pub(super) inserted: Option<(Moment, String)>,
    /// What its sender learned, and when.
    pub(super) outcome: Option<(Moment, Enqueued)>,
    /// A person has deleted it, or was about to.
    pub(super) purged: bool,
    /// An operator was told that it is cancelled.
    pub(super) cancelled: bool,
    pub(super) starts: Vec<Start>,
    pub(super) ends: Vec<End>,
    pub(super) settled: Vec<Settled>,
    /// Its handler has written an effect in a transaction.
    pub(super) transactional: bool,
    /// When it had written it, by delivery: its work was done then.
    pub(super) written: Vec<(u32, Moment)>,
    /// How many of these were committed.
    pub(super) effects: u64,
}

impl Message {
    /// A sender that was killed never learned it.
    pub(super) fn outcome(&self) -> Enqueued {
        match (self.invoked, self.outcome) {
            (Some(_), Some((_, outcome))) => outcome,
            (Some(_), None) => Enqueued::InDoubt,
            (None, _) => Enqueued::NotStored,
        }
    }

    /// Adds what others saw of it.
    pub(super) fn take_over(&mut self, other: Self) {
        self.invoked = self.invoked.or(other.invoked);
        self.inserted = self.inserted.take().or(other.inserted);
        self.outcome = self.outcome.or(other.outcome);
        self.purged |= other.purged;
        self.cancelled |= other.cancelled;
        self.starts.extend(other.starts);
        self.ends.extend(other.ends);
        self.settled.extend(other.settled);
        self.transactional |= other.transactional;
        self.written.extend(other.written);
    }

    /// Whether its effect is complete.
    pub(super) fn is_done(&self) -> bool {
        if self.transactional {
            return self.effects > 0;
        }
        self.done().next().is_some()
    }

    /// When handlers came to a good end.
    pub(super) fn done(&self) -> impl Iterator<Item = Moment> {
        self.ends.iter().filter(|end| end.ended == Ended::Done).map(|end| end.at)
    }

    /// Where it lies in the stream, as its deliveries say.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.starts.iter().filter_map(|start| start.place)
    }

    /// An effect and the ack are one: it happens once, and the message does not go on existing.
    pub(super) fn has_wrong_effects(&self, exists: bool) -> bool {
        self.effects > 1 || (self.effects == 1 && exists)
    }

    /// Whether it was acked, and `also`.
    pub(super) fn is_done_and(&self, also: bool) -> bool {
        also && self.acks().next().is_some()
    }

    /// A message is cancelled or handled, never both.
    pub(super) fn is_handled_though_cancelled(&self) -> bool {
        self.cancelled && (self.effects > 0 || self.acks().next().is_some())
    }

    /// Acks that are committed, as their consumers were told.
    pub(super) fn acks(&self) -> impl Iterator<Item = &Settled> {
        self.settled.iter().filter(|settled| settled.ack && settled.answer == Answer::Settled)
    }

    /// An ack removes the row: nobody can have claimed it after that delivery.
    pub(super) fn has_wrong_ack(&self) -> bool {
        let latest = self.starts.iter().map(|start| start.delivery_no).max().unwrap_or(0);
        self.acks().count() > 1 || self.acks().any(|ack| ack.delivery_no < latest)
    }

    /// `(message, delivery number)` is a token: two owners never have the same.
    pub(super) fn shares_a_delivery(&self) -> bool {
        let mut seen = HashSet::new();
        !self.starts.iter().all(|start| seen.insert(start.delivery_no))
    }

    /// When deliveries began that nobody had asked for: beyond the first, and the one before had
    /// not ended in a retry or a release.
    pub(super) fn unasked(&self) -> impl Iterator<Item = Moment> {
        let mut starts = self.starts.clone();
        // A number comes again when a group is put back.
        starts.sort_by_key(|start| (start.delivery_no, start.at));
        let asked = |delivery_no: u32| {
            self.ends
                .iter()
                .any(|end| end.delivery_no == delivery_no && asks_for_another(end.ended))
        };
        let unasked: Vec<Moment> = starts
            .windows(2)
            .filter(|pair| !asked(pair[0].delivery_no))
            .map(|pair| pair[1].at)
            .collect();
        unasked.into_iter()
    }
}
