//! What all actors together saw of one message.

use std::collections::HashSet;

use super::asks_for_another;
use crate::record::{Answer, Ended, Enqueued, LogPosition, Moment};
use crate::tag::Actor;

/// A handler began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    pub(super) at: Moment,
    pub(super) actor: Actor,
    pub(super) delivery_no: u32,
    /// Its place in the stream, if it came from there.
    pub(super) place: Option<LogPosition>,
}

/// A handler ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) at: Moment,
    pub(super) delivery_no: u32,
    pub(super) ended: Ended,
}

/// A consumer learned the outcome of a delivery.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub(super) at: Moment,
    pub(super) actor: Actor,
    pub(super) delivery_no: u32,
    pub(super) ack: bool,
    pub(super) answer: Answer,
}

/// The combined view of a message; see the module.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// When it was about to be sent.
    pub(super) invoked: Option<Moment>,
    /// When its transaction had written it and to which topic, if it was sent in one.
    pub(super) inserted: Option<(Moment, String)>,
    /// What its sender learned, and when.
    pub(super) outcome: Option<(Moment, Enqueued)>,
    /// An operator has deleted it, or was about to.
    pub(super) purged: bool,
    /// An operator learned that it is cancelled.
    pub(super) cancelled: bool,
    pub(super) starts: Vec<Start>,
    pub(super) ends: Vec<End>,
    pub(super) settled: Vec<Settled>,
    /// Its handler has written an effect in a transaction.
    pub(super) transactional: bool,
    /// When it had written the effect, by delivery: its work was done then.
    pub(super) written: Vec<(u32, Moment)>,
    /// How many of these were committed.
    pub(super) effects: u64,
}

impl Message {
    /// Returns what its sender learned. A sender that was killed never learned it.
    pub(super) fn outcome(&self) -> Enqueued {
        match (self.invoked, self.outcome) {
            (Some(_), Some((_, outcome))) => outcome,
            (Some(_), None) => Enqueued::InDoubt,
            (None, _) => Enqueued::NotStored,
        }
    }

    /// Adds what other actors saw of the message.
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

    /// Returns whether its effect is complete.
    pub(super) fn is_done(&self) -> bool {
        if self.transactional {
            return self.effects > 0;
        }
        self.done().next().is_some()
    }

    /// Returns when handlers ended successfully.
    pub(super) fn done(&self) -> impl Iterator<Item = Moment> {
        self.ends.iter().filter(|end| end.ended == Ended::Done).map(|end| end.at)
    }

    /// Returns its places in the stream, according to its deliveries.
    pub(super) fn places(&self) -> impl Iterator<Item = LogPosition> {
        self.starts.iter().filter_map(|start| start.place)
    }

    /// Returns whether its effects are wrong. An effect is committed together with its ack: this
    /// happens once, and the message then no longer exists.
    pub(super) fn has_wrong_effects(&self, exists: bool) -> bool {
        self.effects > 1 || (self.effects == 1 && exists)
    }

    /// Returns whether it was acked, and `also`.
    pub(super) fn is_done_and(&self, also: bool) -> bool {
        also && self.acks().next().is_some()
    }

    /// Returns whether it was both cancelled and handled, which must never happen.
    pub(super) fn is_handled_though_cancelled(&self) -> bool {
        self.cancelled && (self.effects > 0 || self.acks().next().is_some())
    }

    /// Returns the acks that are committed, as their consumers learned.
    pub(super) fn acks(&self) -> impl Iterator<Item = &Settled> {
        self.settled.iter().filter(|settled| settled.ack && settled.answer == Answer::Settled)
    }

    /// Returns whether an ack was wrong. An ack removes the row: no consumer can have claimed it
    /// after that delivery.
    pub(super) fn has_wrong_ack(&self) -> bool {
        let latest = self.starts.iter().map(|start| start.delivery_no).max().unwrap_or(0);
        self.acks().count() > 1 || self.acks().any(|ack| ack.delivery_no < latest)
    }

    /// Returns whether two handlers had the same delivery. `(message, delivery number)` is a token:
    /// two owners never have the same.
    pub(super) fn shares_a_delivery(&self) -> bool {
        let mut seen = HashSet::new();
        !self.starts.iter().all(|start| seen.insert(start.delivery_no))
    }

    /// Returns when the deliveries began that no handler had asked for: those beyond the first
    /// whose previous delivery had not ended in a retry or a release.
    pub(super) fn unasked(&self) -> impl Iterator<Item = Moment> {
        let mut starts = self.starts.clone();
        // A delivery number occurs again when a group is reset.
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
