use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Error, Result};

/// The longest period of a rate. A server's times have microseconds, and a day of them is far from
/// overflow.
const LONGEST_PERIOD: Duration = Duration::from_secs(24 * 3600);

/// The most messages per period: the server's clock distinguishes microseconds, one per message.
const MOST: u64 = 1_000_000;

/// A rate of claims: a burst of this many messages, and as many again over each period. Written
/// `100/1s`.
///
/// It is a bucket of `messages` tokens that refills evenly over a `period`: `100/1s` and `6000/1m`
/// are the same in the long run, but the second lets 6000 through at once after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    messages: NonZeroU32,
    period: Duration,
}

impl Rate {
    /// Checks and creates a rate.
    ///
    /// # Errors
    /// [`Error::Setting`] for a period of less than a millisecond or more than a day, or more
    /// messages than the period has microseconds.
    pub fn new(messages: NonZeroU32, period: Duration) -> Result<Self> {
        let fits = (Duration::from_millis(1)..=LONGEST_PERIOD).contains(&period);
        let micros = u64::try_from(period.as_micros()).unwrap_or(u64::MAX);
        if fits && u64::from(messages.get()) <= micros.min(MOST) {
            return Ok(Self { messages, period });
        }
        let text = format!("{messages}/{}", humantime::format_duration(period));
        Err(invalid(&text))
    }

    /// The messages per period.
    #[must_use]
    pub fn messages(self) -> NonZeroU32 {
        self.messages
    }

    /// The period.
    #[must_use]
    pub fn period(self) -> Duration {
        self.period
    }

    /// How many messages may pass, if earlier ones have used up the time until `lead` from now.
    /// (The generic cell rate algorithm, ITU-T I.371: it stores one time instead of a count of
    /// tokens and the time of that count.)
    #[must_use]
    pub fn room(self, lead: Duration) -> u32 {
        let free = self.period.saturating_sub(lead).as_micros();
        let room = free * u128::from(self.messages.get()) / self.period.as_micros().max(1);
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// The time that `n` messages use up.
    #[must_use]
    pub fn time_of(self, n: u32) -> Duration {
        let messages = u128::from(self.messages.get());
        // Rounded up: otherwise many small claims would go faster than one large one.
        let micros = (self.period.as_micros() * u128::from(n)).div_ceil(messages);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

fn invalid(text: &str) -> Error {
    Error::Setting {
        name: "rate",
        value: text.to_owned(),
        fix: "write it as messages/time, such as 100/1s or 6000/1m: 1ms to 1day, and at most a \
              million messages",
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = humantime::format_duration(self.period).to_string();
        write!(f, "{}/{}", self.messages, period.replace(' ', ""))
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/');
        let parsed = parts.and_then(|(messages, period)| {
            Some((messages.trim().parse().ok()?, humantime::parse_duration(period.trim()).ok()?))
        });
        let (messages, period) = parsed.ok_or_else(|| invalid(text))?;
        Self::new(messages, period).map_err(|_| invalid(text))
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

/// The limits on a topic's claims, over all consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Limits {
    /// The most messages that are claimed at once. Default: any number.
    pub max_running: Option<NonZeroU32>,
    /// The most messages of one key that are claimed at once. Default: any number. It does not
    /// limit messages without a key.
    pub max_running_per_key: Option<NonZeroU32>,
    /// The rate of claims. Default: as fast as handlers are free.
    pub rate: Option<Rate>,
}

impl Limits {
    /// Whether nothing is limited.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.rate.is_none() && !self.bounds_running()
    }

    /// The most messages that are claimed at once, if nothing else is limited.
    #[must_use]
    pub fn only_running(&self) -> Option<NonZeroU32> {
        self.max_running.filter(|_| self.max_running_per_key.is_none() && self.rate.is_none())
    }

    /// Whether the number of messages claimed at once is limited.
    #[must_use]
    pub fn bounds_running(&self) -> bool {
        self.max_running.or(self.max_running_per_key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().expect("a rate")
    }

    #[test]
    fn a_rate_is_messages_in_a_time() {
        for text in ["100/1s", "6000/1m", "1/1day", "1000/1ms"] {
            assert_eq!(rate(text).to_string(), text);
        }
        for bad in ["", "100", "0/1s", "-1/1s", "100/", "100/0s", "2000000/1s", "2000/1ms", "1/25h"]
        {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_full_bucket_empties_and_fills_evenly() {
        let rate = rate("10/1s");
        assert_eq!(rate.room(Duration::ZERO), 10);
        let lead = rate.time_of(10);
        assert_eq!((lead, rate.room(lead)), (Duration::from_secs(1), 0));
        assert_eq!(rate.room(lead - Duration::from_millis(99)), 0);
        assert_eq!(rate.room(lead - Duration::from_millis(100)), 1);
        assert_eq!(rate.room(lead - Duration::from_millis(550)), 5);
        // A clock that was set back must not cause an endless wait: the lead is kept.
        assert_eq!(rate.room(Duration::from_secs(3600)), 0);
    }

    #[test]
    fn small_claims_are_no_faster_than_a_large_one() {
        let rate = rate("3/1s");
        assert!(rate.time_of(1) * 3 >= rate.time_of(3));
    }
}
