//! A circuit breaker: pauses a topic whose handler keeps failing.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use rowmq_core::model::{DeadCause, Settlement};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The share of failures among the last handled messages at which a topic is paused. Written
/// `50%/20`: half of the last 20. A topic is never paused before that many messages were handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ErrorRate {
    percent: u8,
    of: NonZeroU16,
}

/// Why a text is not a valid [`ErrorRate`].
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error(
    "an error rate is a share from 1% to 100% and a number of messages from 1 to 65535: 50%/20 is half of the last 20"
)]
pub struct InvalidErrorRate;

impl ErrorRate {
    /// Makes a rate of `percent`, 1 to 100, of the last `of` messages.
    ///
    /// # Errors
    /// [`InvalidErrorRate`] for 0 and for more than 100 percent.
    pub fn new(percent: u8, of: NonZeroU16) -> Result<Self, InvalidErrorRate> {
        if (1..=100).contains(&percent) { Ok(Self { percent, of }) } else { Err(InvalidErrorRate) }
    }

    fn is_reached(self, failed: usize, of: usize) -> bool {
        of >= usize::from(self.of.get()) && failed * 100 >= usize::from(self.percent) * of
    }
}

impl FromStr for ErrorRate {
    type Err = InvalidErrorRate;

    fn from_str(text: &str) -> Result<Self, InvalidErrorRate> {
        let (share, of) = text.split_once("%/").ok_or(InvalidErrorRate)?;
        let share = share.trim().parse().map_err(|_| InvalidErrorRate)?;
        Self::new(share, of.trim().parse().map_err(|_| InvalidErrorRate)?)
    }
}

impl fmt::Display for ErrorRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%/{}", self.percent, self.of)
    }
}

impl TryFrom<String> for ErrorRate {
    type Error = InvalidErrorRate;

    fn try_from(text: String) -> Result<Self, InvalidErrorRate> {
        text.parse()
    }
}

impl From<ErrorRate> for String {
    fn from(rate: ErrorRate) -> Self {
        rate.to_string()
    }
}

/// Whether each message that a run has handled failed, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally(Vec<bool>);

impl Tally {
    /// Counts a message by its settlement. A failure is a dead letter or a retry that is charged. A
    /// message that was snoozed, given back or never handled says nothing about the handler.
    pub(crate) fn count(&mut self, settlement: &Settlement) {
        let failed = match settlement {
            // No handler has seen it: a bad sender must not pause what others send.
            Settlement::DeadLetter { cause: DeadCause::Decode, .. } => return,
            Settlement::Retry { .. }
            | Settlement::RetryAt { .. }
            | Settlement::DeadLetter { .. } => true,
            Settlement::Ack | Settlement::Discard { .. } => false,
            Settlement::Repeated | Settlement::Snooze { .. } | Settlement::Release => return,
        };
        self.0.push(failed);
    }

    fn failed(&self) -> usize {
        self.0.iter().filter(|failed| **failed).count()
    }
}

/// The phase of the breaker in which a run began. A run that ends in another phase is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// How the breaker has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Too many messages have failed: nothing is claimed.
    Paused { failed: usize, of: usize },
    /// The pause is over: one message is tried.
    Trying,
    /// That message was handled: the topic continues.
    Resumed,
}

#[derive(Debug)]
enum Phase {
    /// Messages are handled; whether each of the last ones failed.
    Closed(VecDeque<bool>),
    /// The topic is paused until this time.
    Open(Instant),
    /// One message is tried, or is to be tried.
    Trying { under_way: bool },
}

/// The breaker of one topic.
#[derive(Debug)]
pub(crate) struct Breaker {
    rate: ErrorRate,
    pause: Duration,
    phase: Phase,
    generation: u64,
}

impl Breaker {
    pub(crate) fn new(rate: ErrorRate, pause: Duration) -> Self {
        Self { rate, pause, phase: Phase::Closed(VecDeque::new()), generation: 0 }
    }

    /// Returns how many messages may be begun; `None`: as many as there are handlers.
    pub(crate) fn limit(&self) -> Option<usize> {
        match self.phase {
            Phase::Closed(_) => None,
            Phase::Open(_) | Phase::Trying { under_way: true } => Some(0),
            Phase::Trying { under_way: false } => Some(1),
        }
    }

    /// Returns when the pause ends.
    pub(crate) fn until(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open(until) => Some(until),
            Phase::Closed(_) | Phase::Trying { .. } => None,
        }
    }

    /// Ends the pause if it is over.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<Change> {
        match self.phase {
            Phase::Open(until) if until <= now => {
                self.enter(Phase::Trying { under_way: false });
                Some(Change::Trying)
            }
            _ => None,
        }
    }

    /// Records that a run begins.
    pub(crate) fn begun(&mut self) -> Generation {
        if let Phase::Trying { under_way } = &mut self.phase {
            *under_way = true;
        }
        Generation(self.generation)
    }

    /// Records that a run that began in `generation` has ended.
    pub(crate) fn ended(
        &mut self,
        generation: Generation,
        tally: &Tally,
        now: Instant,
    ) -> Option<Change> {
        if generation != Generation(self.generation) {
            return None;
        }
        match &mut self.phase {
            Phase::Open(_) => None,
            Phase::Trying { under_way } if tally.0.is_empty() => {
                *under_way = false;
                None
            }
            Phase::Trying { .. } if tally.failed() == 0 => {
                self.enter(Phase::Closed(VecDeque::new()));
                Some(Change::Resumed)
            }
            Phase::Trying { .. } => {
                self.pause(now);
                Some(Change::Paused { failed: tally.failed(), of: tally.0.len() })
            }
            Phase::Closed(last) => {
                last.extend(&tally.0);
                let surplus = last.len().saturating_sub(usize::from(self.rate.of.get()));
                drop(last.drain(..surplus));
                let (failed, of) = (last.iter().filter(|failed| **failed).count(), last.len());
                self.rate.is_reached(failed, of).then(|| {
                    self.pause(now);
                    Change::Paused { failed, of }
                })
            }
        }
    }

    fn pause(&mut self, now: Instant) {
        // A pause too long for the clock is cut to the longest that it can represent.
        let longest = Duration::from_secs(365 * 24 * 3600);
        self.enter(Phase::Open(now + self.pause.min(longest)));
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests;
