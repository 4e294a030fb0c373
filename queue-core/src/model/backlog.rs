use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::model::TopicSettings;

/// How an enqueue is handled while the topic is full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// Producers wait for room, for as long as they retry a message. An enqueue in a caller's
    /// transaction is refused: it would wait with its locks held.
    #[default]
    Block,
    /// It is refused at once.
    Reject,
}

impl WhenFull {
    /// The word in the database and on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Reject => "reject",
        }
    }

    /// An unknown word, written by another client, counts as the default.
    pub(crate) fn from_stored(word: &[u8]) -> Self {
        if word == Self::Reject.word().as_bytes() { Self::Reject } else { Self::default() }
    }
}

/// A sweeper's measurement of a topic that has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Backlog {
    /// About how many messages are ready or claimed.
    pub depth: u64,
    /// About how many bytes their bodies and headers take; `None` if the topic does not limit
    /// bytes.
    pub bytes: Option<u64>,
    /// Whether the topic takes no more: once it reaches the limit, until a tenth of it is free.
    pub full: bool,
}

impl Backlog {
    /// The measurement of a topic; `full` is whether the topic was full before. It becomes full at
    /// a limit and stays full until it is below nine tenths of that limit, so that it does not
    /// flap.
    #[must_use]
    pub fn measured(depth: u64, bytes: Option<u64>, full: bool, settings: &TopicSettings) -> Self {
        let reaches = |n: u64, limit: Option<NonZeroU64>| {
            limit.is_some_and(|limit| n >= if full { nine_tenths(limit) } else { limit.get() })
        };
        let full = reaches(depth, settings.max_depth)
            || bytes.is_some_and(|bytes| reaches(bytes, settings.max_bytes));
        Self { depth, bytes, full }
    }

    /// How full the topic is, if it is full.
    #[must_use]
    pub fn fill(&self, settings: &TopicSettings) -> Option<Fill> {
        if !self.full {
            return None;
        }
        // Against the current limits: a raised limit takes effect at once.
        let messages = settings.max_depth.filter(|limit| self.depth >= nine_tenths(*limit));
        let bytes = self.bytes.zip(settings.max_bytes);
        let bytes = bytes.filter(|(held, limit)| *held >= nine_tenths(*limit));
        messages
            .map(|limit| Fill::Messages { held: self.depth, limit })
            .or_else(|| bytes.map(|(held, limit)| Fill::Bytes { held, limit }))
    }
}

/// Rounded up: a topic with a limit of one message has room again at zero.
fn nine_tenths(limit: NonZeroU64) -> u64 {
    limit.get() - limit.get() / 10
}

/// How full a topic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Counted in messages.
    Messages {
        /// About how many there are.
        held: u64,
        /// How many make it full.
        limit: NonZeroU64,
    },
    /// Counted in bytes.
    Bytes {
        /// About how many there are.
        held: u64,
        /// How many make it full.
        limit: NonZeroU64,
    },
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (held, unit, limit) = match self {
            Self::Messages { held, limit } => (held, "messages", limit),
            Self::Bytes { held, limit } => (held, "bytes", limit),
        };
        write!(f, "{held} {unit}, the limit is {limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(max_depth: u64, max_bytes: u64) -> TopicSettings {
        let (max_depth, max_bytes) = (NonZeroU64::new(max_depth), NonZeroU64::new(max_bytes));
        TopicSettings { max_depth, max_bytes, ..TopicSettings::default() }
    }

    #[test]
    fn a_topic_is_full_from_its_limit_until_a_tenth_of_it_is_free() {
        let settings = settings(100, 0);
        let full = |depth, full| Backlog::measured(depth, None, full, &settings).full;
        assert_eq!([full(99, false), full(100, false)], [false, true]);
        assert_eq!([full(90, true), full(89, true)], [true, false]);
    }

    #[test]
    fn the_limit_that_is_reached_is_the_one_that_is_reported() {
        let both = settings(100, 1000);
        let closed = |depth, bytes| {
            let backlog = Backlog::measured(depth, Some(bytes), false, &both);
            backlog.fill(&both).map(|fill| fill.to_string())
        };
        assert_eq!(closed(99, 999), None);
        assert_eq!(closed(120, 5).as_deref(), Some("120 messages, the limit is 100"));
        assert_eq!(closed(5, 1200).as_deref(), Some("1200 bytes, the limit is 1000"));
        let before = Backlog::measured(120, None, false, &both);
        assert_eq!([settings(0, 0), settings(200, 0)].map(|s| before.fill(&s)), [None, None]);
    }

    #[test]
    fn a_limit_of_one_is_a_limit() {
        let one = settings(1, 0);
        assert!(Backlog::measured(1, None, true, &one).full);
        assert!(!Backlog::measured(0, None, true, &one).full);
    }
}
