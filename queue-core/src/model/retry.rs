use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use humantime::parse_duration;
use serde::{Deserialize, Serialize};

use crate::chance;
use crate::model::{Error, Result};

/// The longest text of a policy, in bytes: the topic's column holds this much, some 200 steps.
const TEXT_LIMIT: usize = 1024;

/// The shortest wait: below it, the promotion of due messages decides, not the policy.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest wait: a year. A longer one is a mistaken unit.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a failed message waits before its retry.
///
/// It is written the same everywhere, on the command line, in JSON, in the database and in a
/// message's header: `exponential 1s..1h`, `ladder 10s 30s 1m` or `fixed 30s`. People may write a
/// wait with several units, `1h30m`; it is stored with one, `90m`, as the SQL contract reads times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum RetryPolicy {
    /// After the n-th failure, between half and all of `base * 2^(n-1)`, at most `cap`.
    Exponential {
        /// The wait after the first failure.
        base: Duration,
        /// The longest wait.
        cap: Duration,
    },
    /// After the n-th failure, the n-th of these steps; beyond the last step, the last one again.
    Ladder(Vec<Duration>),
    /// Always this wait.
    Fixed(Duration),
}

impl Default for RetryPolicy {
    /// 1 s, doubling, at most 1 h.
    fn default() -> Self {
        Self::Exponential { base: Duration::from_secs(1), cap: Duration::from_secs(3600) }
    }
}

impl RetryPolicy {
    /// The longest wait after the `failures`-th failure (1 is the first).
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let waited = failures.saturating_sub(1);
        match self {
            Self::Exponential { base, cap } => {
                let factor = 1_u64.checked_shl(waited.min(63)).unwrap_or(u64::MAX);
                let base = u64::try_from(base.as_millis()).unwrap_or(u64::MAX);
                Duration::from_millis(base.saturating_mul(factor)).min(*cap)
            }
            Self::Ladder(steps) => {
                let step = usize::try_from(waited).unwrap_or(usize::MAX);
                steps.get(step).or(steps.last()).copied().unwrap_or(SHORTEST)
            }
            Self::Fixed(wait) => *wait,
        }
    }

    /// Returns a wait for the `failures`-th failure. Exponential waits have jitter, so that
    /// messages that failed together do not come back together; the others are exact.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let ceiling = self.ceiling(failures);
        match self {
            Self::Exponential { .. } => ceiling.mul_f64(chance::between(0.5..=1.0)),
            Self::Ladder(_) | Self::Fixed(_) => ceiling,
        }
    }

    /// The shortest wait that it can make.
    #[must_use]
    pub fn shortest(&self) -> Duration {
        match self {
            Self::Exponential { base, .. } => *base / 2,
            Self::Ladder(steps) => steps.iter().min().copied().unwrap_or(SHORTEST),
            Self::Fixed(wait) => *wait,
        }
    }

    /// Checks that its waits are within bounds and its text can be stored.
    ///
    /// # Errors
    /// [`Error::InvalidRetry`].
    pub fn check(&self) -> Result<()> {
        let text = self.to_string();
        self.fault().map_or(Ok(()), |reason| Err(invalid(&text, reason)))?;
        if text.len() > TEXT_LIMIT {
            return Err(invalid(&text, format!("it has {} bytes, {TEXT_LIMIT} fit", text.len())));
        }
        Ok(())
    }

    fn fault(&self) -> Option<String> {
        let waits = match self {
            Self::Exponential { base, cap } => &[*base, *cap][..],
            Self::Ladder(steps) => steps,
            Self::Fixed(wait) => std::slice::from_ref(wait),
        };
        if waits.is_empty() {
            return Some("the ladder has no steps".to_owned());
        }
        if waits.iter().any(|wait| *wait < SHORTEST) {
            return Some("a wait is shorter than 1ms".to_owned());
        }
        if waits.iter().any(|wait| !wait.subsec_nanos().is_multiple_of(1_000_000)) {
            return Some("a wait has a part of a millisecond".to_owned());
        }
        if waits.iter().any(|wait| *wait > LONGEST) {
            return Some("a wait is longer than 365 days".to_owned());
        }
        match self {
            Self::Exponential { base, cap } if base > cap => {
                Some("the first wait is longer than the longest".to_owned())
            }
            _ => None,
        }
    }
}

/// The units of times in the SQL contract, in milliseconds.
const UNITS: [(&str, u64); 6] = [
    ("ms", 1),
    ("s", 1000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
    ("w", 604_800_000),
];

/// A wait written as one number, with the largest unit up to days that divides it.
struct Word(Duration);

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let (days, _) = UNITS.split_at(5);
        let divides = |(_, unit): &&(&str, u64)| millis.is_multiple_of(u128::from(*unit));
        let (name, unit) = days.iter().rfind(divides).unwrap_or(&UNITS[0]);
        write!(f, "{}{name}", millis / u128::from(*unit))
    }
}

/// Reads a time as the SQL contract does (`queue_duration`): a JSON number of up to 12 characters
/// and its unit, to the microsecond.
fn contract_time(word: &str) -> Option<Duration> {
    // `ms` comes before `s`.
    let read = |(name, unit): &(&str, u64)| Some((word.strip_suffix(name)?, *unit));
    let (number, unit) = UNITS.iter().find_map(read)?;
    let number: f64 = serde_json::from_str(number).ok().filter(|_| number.len() <= 12)?;
    let micros = (number * 1e6).round() / 1e6 * (unit as f64 * 1e3);
    Duration::try_from_secs_f64(micros.round() / 1e6).ok()
}

impl fmt::Display for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exponential { base, cap } => {
                write!(f, "exponential {}..{}", Word(*base), Word(*cap))
            }
            Self::Ladder(steps) => {
                f.write_str("ladder")?;
                steps.iter().try_for_each(|step| write!(f, " {}", Word(*step)))
            }
            Self::Fixed(wait) => write!(f, "fixed {}", Word(*wait)),
        }
    }
}

impl FromStr for RetryPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::read(text, text.split_whitespace(), |word| parse_duration(word).ok())
    }
}

impl RetryPolicy {
    /// Reads a message's header. It may come from SQL, so it is read as the stored procedures read
    /// it: with one space between words, and each wait a number and its unit.
    ///
    /// # Errors
    /// [`Error::InvalidRetry`].
    pub(crate) fn from_header(text: &str) -> Result<Self> {
        Self::read(text, text.split(' '), contract_time)
    }

    fn read<'a>(
        text: &str,
        mut words: impl Iterator<Item = &'a str>,
        time: impl Fn(&str) -> Option<Duration>,
    ) -> Result<Self> {
        let wait = |word: &str| {
            let no_time = || invalid(text, format!("'{}' is not a time with a unit", cut(word)));
            time(word).ok_or_else(no_time)
        };
        let kind = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let policy = match (kind, rest.as_slice()) {
            ("exponential", [waits]) => {
                let (base, cap) = waits
                    .split_once("..")
                    .ok_or_else(|| invalid(text, "the longest wait is missing"))?;
                Self::Exponential { base: wait(base)?, cap: wait(cap)? }
            }
            ("ladder", steps) => {
                Self::Ladder(steps.iter().map(|step| wait(step)).collect::<Result<_>>()?)
            }
            ("fixed", [time]) => Self::Fixed(wait(time)?),
            ("exponential", _) => return Err(invalid(text, "it takes a first and a longest wait")),
            ("fixed", _) => return Err(invalid(text, "it takes one wait")),
            _ => {
                let reason = format!("'{}' is none of exponential, ladder, fixed", cut(kind));
                return Err(invalid(text, reason));
            }
        };
        policy.check()?;
        Ok(policy)
    }
}

impl TryFrom<String> for RetryPolicy {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<RetryPolicy> for String {
    fn from(policy: RetryPolicy) -> Self {
        policy.to_string()
    }
}

fn invalid(text: &str, reason: impl Into<String>) -> Error {
    Error::InvalidRetry { text: cut(text), reason: reason.into() }
}

/// Shortens a text of any content for an error.
fn cut(text: &str) -> String {
    const SHOWN: usize = 60;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_wait_doubles_up_to_the_cap() {
        let policy = RetryPolicy::default();
        let waits = [(1, 1), (2, 2), (5, 16), (12, 2048), (13, 3600), (u32::MAX, 3600)];
        for (failures, wait) in waits {
            assert_eq!(policy.ceiling(failures), seconds(wait), "{failures}");
        }
    }

    #[test]
    fn jitter_stays_in_the_upper_half_and_only_exponential_waits_have_it() {
        let policy = RetryPolicy::default();
        for failures in 1..20 {
            let (delay, ceiling) = (policy.delay(failures), policy.ceiling(failures));
            assert!(delay >= ceiling / 2 && delay <= ceiling, "{failures}: {delay:?}");
        }
        assert_eq!(RetryPolicy::Fixed(seconds(30)).delay(7), seconds(30));
    }

    #[test]
    fn the_last_step_of_a_ladder_repeats() {
        let policy: RetryPolicy = "ladder 10s 30s 1m".parse().unwrap();
        let waits: Vec<_> = [1, 2, 3, 4, 100].map(|n| policy.delay(n).as_secs()).into();
        assert_eq!(waits, [10, 30, 60, 60, 60]);
    }

    #[test]
    fn a_policy_is_written_as_it_is_read() {
        let ladder = "ladder 10s 20s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";
        for text in ["exponential 1s..1h", ladder, "fixed 90m", "fixed 1500ms", "fixed 365d"] {
            let policy: RetryPolicy = text.parse().unwrap();
            assert_eq!(policy.to_string(), text);
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(json, format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<RetryPolicy>(&json).unwrap(), policy);
        }
        let longest = RetryPolicy::Exponential { base: SHORTEST, cap: LONGEST };
        assert_eq!(longest.to_string().parse::<RetryPolicy>().unwrap(), longest);
        let spaced: RetryPolicy = "  ladder   90s 1500ms ".parse().unwrap();
        assert_eq!(spaced.to_string(), "ladder 90s 1500ms");
    }

    /// What is stored is read by the procedures too.
    #[test]
    fn a_header_has_one_number_and_its_unit_for_each_wait() {
        for text in ["exponential 1s..1h", "ladder 90s 1500ms", "fixed 1.5h", "fixed 365d"] {
            let policy: RetryPolicy = text.parse().unwrap();
            assert_eq!(RetryPolicy::from_header(&policy.to_string()).unwrap(), policy);
        }
        let spelled: RetryPolicy = "fixed 1h30m".parse().unwrap();
        assert_eq!(RetryPolicy::from_header(&spelled.to_string()).unwrap(), spelled);
        for text in ["fixed 1h30m", "fixed  1s", "fixed 1min", "fixed 30", "fixed 05s", "fixed -1s"]
        {
            RetryPolicy::from_header(text).unwrap_err();
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_an_example() {
        let long = format!("ladder{}", " 1s".repeat(400));
        let cases = [
            ("", "none of exponential, ladder, fixed"),
            ("sometimes 1s", "'sometimes' is none of"),
            ("ladder", "the ladder has no steps"),
            ("ladder 10s 0s", "shorter than 1ms"),
            ("ladder 10s soon", "'soon' is not a time"),
            ("ladder 10", "'10' is not a time"),
            ("fixed", "it takes one wait"),
            ("fixed 1001us", "a part of a millisecond"),
            ("fixed 1s 2s", "it takes one wait"),
            ("fixed 10years", "longer than 365 days"),
            ("fixed 99999999999999999999s", "is not a time"),
            ("exponential 1s", "the longest wait is missing"),
            ("exponential", "a first and a longest wait"),
            ("exponential 1h..1s", "the first wait is longer than the longest"),
            (&long, "1206 bytes, 1024 fit"),
        ];
        for (text, part) in cases {
            let error = text.parse::<RetryPolicy>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("ladder 10s 30s 1m"), "{error}");
            assert!(error.len() < 300, "{error}");
        }
    }
}
