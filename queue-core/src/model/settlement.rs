use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

/// The longest error or reason that is stored, in bytes.
const REASON_LIMIT: usize = 8192;

/// How a delivery is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// Handled: the row is deleted, or moves to the archive if the topic keeps finished messages.
    Ack,
    /// Acked without being handled, because another message with its biz id had been handled
    /// within the topic's ledger window.
    Repeated,
    /// Failed: comes back at the tail after `delay`, and one more failure is counted.
    Retry {
        /// How long it waits.
        delay: Duration,
        /// Why it failed.
        error: String,
    },
    /// Failed: comes back at the tail at `at`, or at once if that has passed, and one more failure
    /// is counted.
    RetryAt {
        /// When it is due, by the server's clock.
        at: DateTime<Utc>,
        /// Why it failed.
        error: String,
    },
    /// Not yet: comes back at the tail after `delay`; no failure is counted.
    Snooze {
        /// How long it waits.
        delay: Duration,
    },
    /// Not tried again automatically: moves to the dead letters, body included.
    DeadLetter {
        /// Why it is a dead letter.
        cause: DeadCause,
        /// Why it failed.
        error: String,
    },
    /// Acked without being handled; counted, and the archive keeps the reason.
    Discard {
        /// Why it was not worth handling.
        reason: String,
    },
    /// Given back untouched; nothing is charged to the message.
    Release,
}

impl Settlement {
    /// Whether this ends the message, successfully or not.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Ack | Self::Repeated | Self::DeadLetter { .. } | Self::Discard { .. } => true,
            Self::Retry { .. } | Self::RetryAt { .. } | Self::Snooze { .. } | Self::Release => {
                false
            }
        }
    }

    /// The reason, if there is one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Retry { error, .. }
            | Self::RetryAt { error, .. }
            | Self::DeadLetter { error, .. } => Some(error),
            Self::Discard { reason } => Some(reason),
            Self::Ack | Self::Repeated | Self::Snooze { .. } | Self::Release => None,
        }
    }

    /// The label for metrics and logs.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Repeated => "repeated",
            Self::Retry { .. } | Self::RetryAt { .. } => "retry",
            Self::Snooze { .. } => "snooze",
            Self::DeadLetter { .. } => "dead_letter",
            Self::Discard { .. } => "discard",
            Self::Release => "release",
        }
    }
}

/// Why a message became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeadCause {
    /// It failed as often as the topic allows.
    Attempts,
    /// It was held alone by workers that crashed, as often as the topic allows.
    Crashes,
    /// Its handler decided so.
    Handler,
    /// Its body could not be decoded.
    Decode,
}

impl DeadCause {
    /// Every one of them.
    pub const ALL: [Self; 4] = [Self::Attempts, Self::Crashes, Self::Handler, Self::Decode];

    /// The word in the database.
    #[must_use]
    pub fn stored(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Crashes => "crashes",
            Self::Handler => "handler",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for DeadCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.stored())
    }
}

/// Cuts `text` to the length of the reason columns, at a character boundary.
pub(crate) fn stored_reason(text: &str) -> &[u8] {
    cut(text, REASON_LIMIT).as_bytes()
}

/// Cuts `text` to `limit` bytes, at a character boundary.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let text = "é".repeat(REASON_LIMIT);
        let cut = stored_reason(&text);
        assert_eq!(cut.len(), REASON_LIMIT);
        assert!(std::str::from_utf8(cut).is_ok());
        assert_eq!(stored_reason("short"), b"short");
    }
}
