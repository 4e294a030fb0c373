//! A schedule: the message that is enqueued, the topic, and the times.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::model::{Headers, NewMessage, Priority, Recurrence, ScheduleName, TopicName};

/// The most messages of one transaction: missed ticks are enqueued in batches.
const BATCH: usize = 500;

/// The most bytes of bodies of one transaction, unless a single one is larger.
const BYTES: usize = 4 * 1024 * 1024;

/// A tick that was not enqueued for this long is a missed one.
const MISSED_AFTER: TimeDelta = TimeDelta::minutes(1);

/// The header of a recurring message that names its schedule.
pub const SCHEDULE_HEADER: &str = "schedule";

/// The header of a recurring message that holds its tick, the time it was due.
pub const TICK_HEADER: &str = "tick";

/// How ticks are handled that were due while no janitor swept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// Ticks that are more than a minute late are left out.
    Skip,
    /// The last of them is enqueued.
    #[default]
    Once,
    /// Each of them is enqueued.
    All,
}

impl Missed {
    /// The word in the database, on the command line and in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Missed {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        [Self::Skip, Self::Once, Self::All]
            .into_iter()
            .find(|missed| missed.word() == word)
            .ok_or_else(|| format!("'{word}' is none of skip, once and all"))
    }
}

/// The message that is enqueued, the topic, and the times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Schedule {
    /// Its name: setting another schedule of this name replaces it.
    pub name: ScheduleName,
    /// The topic of its messages.
    pub topic: TopicName,
    /// Its ticks.
    #[serde(flatten)]
    pub recurrence: Recurrence,
    /// How ticks are handled that were due while no janitor swept.
    pub missed: Missed,
    /// The priority of its messages.
    pub priority: Priority,
    /// Their ordering key.
    #[serde(skip)]
    pub key: Option<Vec<u8>>,
    /// Their headers, besides [`SCHEDULE_HEADER`] and [`TICK_HEADER`].
    pub headers: Headers,
    /// Their body.
    #[serde(skip)]
    pub body: Vec<u8>,
}

impl Schedule {
    /// A schedule of messages with an empty body.
    #[must_use]
    pub fn new(name: ScheduleName, topic: TopicName, recurrence: Recurrence) -> Self {
        Self {
            name,
            topic,
            recurrence,
            missed: Missed::default(),
            priority: Priority::default(),
            key: None,
            headers: Headers::default(),
            body: Vec::new(),
        }
    }

    /// Makes the message of a tick. Its biz id is always the same for the same tick.
    pub(crate) fn message(&self, tick: DateTime<Utc>) -> NewMessage {
        let tick = tick.to_rfc3339_opts(SecondsFormat::Secs, true);
        let mut message = NewMessage::new(self.body.clone())
            .with_priority(self.priority)
            .with_biz_id(format!("{}@{tick}", self.name));
        message.key.clone_from(&self.key);
        message.headers.clone_from(&self.headers);
        message.with_header(SCHEDULE_HEADER, self.name.as_str()).with_header(TICK_HEADER, tick)
    }

    /// The ticks to enqueue from `first`, itself a tick, until `now`, and the next one after them.
    pub(crate) fn due(
        &self,
        first: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> (Vec<DateTime<Utc>>, Option<DateTime<Utc>>) {
        let recurrence = &self.recurrence;
        let from = match self.missed {
            Missed::All => Some(first),
            Missed::Once => recurrence.last_until(now).map(|last| last.max(first)),
            Missed::Skip if first >= now - MISSED_AFTER => Some(first),
            Missed::Skip => recurrence.next_after(now - MISSED_AFTER),
        };
        let ticks: Vec<_> = std::iter::successors(from, |tick| recurrence.next_after(*tick))
            .take_while(|tick| *tick <= now)
            .take((BYTES / self.body.len().max(1)).clamp(1, BATCH))
            .collect();
        let last = ticks.last().copied().unwrap_or(now);
        (ticks, recurrence.next_after(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("a moment")
    }

    fn every_minute(missed: Missed) -> Schedule {
        let name = ScheduleName::new("s").expect("a name");
        let topic = TopicName::new("t").expect("a name");
        let recurrence = Recurrence::new("* * * * *", "UTC").expect("a recurrence");
        Schedule { missed, ..Schedule::new(name, topic, recurrence) }
    }

    #[test]
    fn a_tick_in_time_is_enqueued_whatever_the_policy() {
        let (first, now) = (at("2026-01-01T00:01:00Z"), at("2026-01-01T00:01:00.2Z"));
        for missed in [Missed::Skip, Missed::Once, Missed::All] {
            let next = Some(at("2026-01-01T00:02:00Z"));
            assert_eq!(every_minute(missed).due(first, now), (vec![first], next), "{missed}");
        }
    }

    #[test]
    fn ticks_that_were_missed_are_left_out_or_enqueued_once_or_all() {
        let (first, now) = (at("2026-01-01T00:01:00Z"), at("2026-01-01T01:00:30Z"));
        let next = Some(at("2026-01-01T01:01:00Z"));
        let last = at("2026-01-01T01:00:00Z");
        assert_eq!(every_minute(Missed::Skip).due(first, now), (vec![last], next));
        assert_eq!(every_minute(Missed::Once).due(first, now), (vec![last], next));
        let (all, after) = every_minute(Missed::All).due(first, now);
        assert_eq!((all.len(), all[0], all[59], after), (60, first, last, next));
    }

    #[test]
    fn years_of_missed_ticks_come_in_pieces() {
        let (first, now) = (at("2020-01-01T00:01:00Z"), at("2026-01-01T00:00:00Z"));
        let (some, next) = every_minute(Missed::All).due(first, now);
        assert_eq!(some.len(), BATCH);
        assert_eq!(next, Some(some[BATCH - 1] + TimeDelta::minutes(1)));
    }

    #[test]
    fn the_message_of_a_tick_says_which() {
        let message = every_minute(Missed::All).message(at("2026-03-29T01:00:00Z"));
        assert_eq!(message.biz_id.as_deref(), Some(&b"s@2026-03-29T01:00:00Z"[..]));
        assert_eq!(message.headers.get(TICK_HEADER), Some("2026-03-29T01:00:00Z"));
        assert_eq!(message.headers.get(SCHEDULE_HEADER), Some("s"));
    }
}
