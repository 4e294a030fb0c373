//! A member's position in one partition.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::model::{ClaimNo, Delivery, DeliveryNo, FailedRun, Offset, Settlement, WorkerId};
use crate::store::stream::filing::Past;
use crate::worker::settling::Settled;

/// The longest wait before a retry, whatever the handler asks for: the process that holds the
/// message in memory will hardly run for longer.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// The current time, by the process's clock and by the server's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) here: Instant,
    pub(super) server: DateTime<Utc>,
}

/// A message's deliveries and failures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct History {
    deliveries: u32,
    failures: u32,
    runs: Vec<u8>,
}

/// The state of a message that the member has not finished.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// A handler has it, under this claim.
    Held(ClaimNo),
    /// It is to be handled from this moment on.
    Waits(Instant),
    /// Its handler has finished; the database does not know yet.
    Over(Box<Settled>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Open {
    state: State,
    history: History,
}

/// A finished message that the database does not know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::worker) struct Over {
    pub(in crate::worker) offset: Offset,
    pub(in crate::worker) settled: Settled,
    pub(in crate::worker) delivery_no: DeliveryNo,
    pub(in crate::worker) past: Past,
}

/// A member's position in one partition. Everything before `next` is finished, except for what is
/// open.
#[derive(Debug)]
pub(super) struct Track {
    /// The next offset to read.
    pub(super) next: Offset,
    open: BTreeMap<u64, Open>,
    /// The mark in the database.
    pub(super) reported: Offset,
    /// Messages that retention has removed and that the database has not counted.
    pub(super) lost: u64,
    /// Since when there is something that the database does not know.
    pub(super) unreported_since: Option<Instant>,
}

impl Track {
    pub(super) fn at(next: Offset) -> Self {
        Self { next, open: BTreeMap::new(), reported: next, lost: 0, unreported_since: None }
    }

    /// The lowest offset that is not finished.
    pub(super) fn mark(&self) -> Offset {
        self.open.keys().next().map_or(self.next, |offset| Offset(*offset))
    }

    /// Whether a message that was read is not finished.
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// How many messages wait for a retry.
    pub(super) fn waiting(&self) -> usize {
        self.open.values().filter(|open| matches!(open.state, State::Waits(_))).count()
    }

    /// Records that retention has removed everything before `first`.
    pub(super) fn begins_at(&mut self, first: Offset, now: Instant) -> u64 {
        let lost = first.0.saturating_sub(self.next.0);
        self.next = self.next.max(first);
        self.lose(lost, now);
        lost
    }

    /// Records that the log ends at `end`. Returns how many messages the member had read beyond it:
    /// the server has lost them and will assign their offsets again.
    pub(super) fn ends_at(&mut self, end: Offset) -> u64 {
        let gone = self.next.0.saturating_sub(end.0);
        if gone > 0 {
            self.next = end;
            self.open.split_off(&end.0);
            self.reported = self.reported.min(end);
        }
        gone
    }

    fn lose(&mut self, lost: u64, now: Instant) {
        self.lost += lost;
        if lost > 0 {
            self.unreported_since.get_or_insert(now);
        }
    }

    /// The first messages that are due for a retry, without gaps between them.
    pub(super) fn due(&self, now: Instant, limit: u64) -> Option<(Offset, Offset)> {
        let is_due = |open: &Open| matches!(open.state, State::Waits(until) if until <= now);
        let mut due = self.open.iter().filter(|(_, open)| is_due(open)).map(|(at, _)| *at);
        let lo = due.next()?;
        let mut hi = lo + 1;
        while hi - lo < limit && due.next() == Some(hi) {
            hi += 1;
        }
        Some((Offset(lo), Offset(hi)))
    }

    /// Records a stretch that was read under a claim, and adds its history to each message.
    /// Messages that the filter rejected count as passed. Returns how many of the others are
    /// missing because retention has removed them.
    pub(super) fn take(
        &mut self,
        (lo, hi): (Offset, Offset),
        claim: ClaimNo,
        deliveries: &mut [Delivery],
        filtered: u64,
        now: Instant,
    ) -> u64 {
        let mut histories = self.open.split_off(&lo.0);
        self.open.append(&mut histories.split_off(&hi.0));
        let mut found = 0;
        for delivery in deliveries {
            let Some(at) = delivery.position else { continue };
            let mut history =
                histories.remove(&at.offset.0).map(|open| open.history).unwrap_or_default();
            history.deliveries += 1;
            delivery.delivery_no = DeliveryNo(history.deliveries);
            delivery.failures = history.failures;
            self.open.insert(at.offset.0, Open { state: State::Held(claim), history });
            found += 1;
        }
        self.next = self.next.max(hi);
        if filtered > 0 {
            self.unreported_since.get_or_insert(now);
        }
        let lost = (hi.0 - lo.0).saturating_sub(found + filtered);
        self.lose(lost, now);
        lost
    }

    /// Records a message's settlement; false if this claim does not have the message.
    pub(super) fn settle(
        &mut self,
        offset: Offset,
        settled: &Settled,
        worker: WorkerId,
        now: Now,
    ) -> bool {
        let Some(open) = self.open.get_mut(&offset.0) else { return false };
        if open.state != State::Held(settled.claim_no) {
            return false;
        }
        let wait = |delay: Duration| State::Waits(now.here + delay.min(LONGEST_WAIT));
        open.state = match &settled.settlement {
            Settlement::Ack | Settlement::Repeated => {
                self.open.remove(&offset.0);
                self.unreported_since.get_or_insert(now.here);
                return true;
            }
            Settlement::Release => wait(Duration::ZERO),
            Settlement::Snooze { delay } => wait(*delay),
            Settlement::Retry { delay, error } => {
                open.history.failed(worker, now, error);
                wait(*delay)
            }
            Settlement::RetryAt { at, error } => {
                open.history.failed(worker, now, error);
                wait((*at - now.server).to_std().unwrap_or_default())
            }
            Settlement::DeadLetter { .. } | Settlement::Discard { .. } => {
                State::Over(Box::new(settled.clone()))
            }
        };
        true
    }

    /// Makes every message that a handler holds due again: no worker will settle it any more.
    pub(super) fn release_held(&mut self, now: Instant) {
        for open in self.open.values_mut() {
            if matches!(open.state, State::Held(_)) {
                open.state = State::Waits(now);
            }
        }
    }

    /// Whether the database lacks the mark, or the count of lost messages.
    pub(super) fn has_news(&self) -> bool {
        self.mark() > self.reported || self.lost > 0
    }

    /// Whether a message is dead or discarded and the database does not know.
    pub(super) fn has_over(&self) -> bool {
        self.open.values().any(|open| matches!(open.state, State::Over(_)))
    }

    /// The dead and discarded messages that the database lacks, in order.
    pub(super) fn over(&self) -> Vec<Over> {
        let over = |(offset, open): (&u64, &Open)| match &open.state {
            State::Over(settled) => Some(Over {
                offset: Offset(*offset),
                settled: (**settled).clone(),
                delivery_no: DeliveryNo(open.history.deliveries),
                past: open.history.past(),
            }),
            State::Held(_) | State::Waits(_) => None,
        };
        self.open.iter().filter_map(over).collect()
    }

    /// The mark once the database has these.
    pub(super) fn mark_without(&self, over: &[Over]) -> Offset {
        let stays = |offset: &u64| over.iter().all(|one| one.offset.0 != *offset);
        self.open.keys().copied().find(stays).map_or(self.next, Offset)
    }

    /// Records that the database has these, and the mark without them.
    pub(super) fn mark_reported(&mut self, over: &[Over], lost: u64) {
        for one in over {
            self.open.remove(&one.offset.0);
        }
        self.reported = self.mark();
        self.lost -= lost.min(self.lost);
        self.unreported_since = None;
    }

    /// Whether the message's settlement is not yet in the database.
    pub(super) fn is_unsaid(&self, offset: Offset) -> bool {
        self.reported <= offset
    }

    /// Whether the message is dead or discarded and the database does not know.
    pub(super) fn is_over(&self, offset: Offset) -> bool {
        self.open.get(&offset.0).is_some_and(|open| matches!(open.state, State::Over(_)))
    }
}

impl History {
    fn failed(&mut self, worker: WorkerId, now: Now, error: &str) {
        self.failures += 1;
        self.runs.extend(FailedRun::line(DeliveryNo(self.deliveries), worker, now.server, error));
    }

    fn past(&self) -> Past {
        if self.failures == 0 {
            return Past::Nothing;
        }
        Past::Failures { failures: self.failures, history: self.runs.clone() }
    }
}
