use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::{Error, LONGEST, Moment, Result};

/// The longest unique key, in bytes: what its column holds.
const KEY_LIMIT: usize = 255;

/// The key that makes a message unique: while the key is held, another message with the same key in
/// the same topic is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unique {
    key: Vec<u8>,
    hold: KeyLifetime,
}

/// How long a key is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLifetime {
    /// This long after the message was enqueued, done or not.
    For(Duration),
    /// Until the message is acked, discarded, dead-lettered, cancelled or purged.
    UntilDone(Repeat),
}

/// How another message with a key held until done is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    Keep,
    Replace,
    Debounce { max_wait: Option<Duration> },
}

/// How a new message is treated while its key is held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    /// The first message stays, and the new one is not stored.
    #[default]
    Keep,
    /// While the first message waits, it takes the new one's body and headers.
    Replace,
    /// As `Replace`, and the first message's wait starts over.
    Debounce,
}

impl std::str::FromStr for OnConflict {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "keep" => Ok(Self::Keep),
            "replace" => Ok(Self::Replace),
            "debounce" => Ok(Self::Debounce),
            _ => Err("it is one of keep, replace and debounce".to_owned()),
        }
    }
}

impl Unique {
    /// While this message waits, is handled or waits for a retry, another one with the key is not
    /// stored.
    pub fn until_done(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), hold: KeyLifetime::UntilDone(Repeat::Keep) }
    }

    /// For this long, another message with the key is not stored, whether this one is done or not.
    pub fn for_duration(key: impl Into<Vec<u8>>, time: Duration) -> Self {
        Self { key: key.into(), hold: KeyLifetime::For(time) }
    }

    /// As [`until_done`](Self::until_done), but another message's body, headers, keys, expiry and
    /// delivery time replace this one's, as long as it has not been claimed and its delay has not
    /// run out. After that, the other message is stored and takes over the key. A message without a
    /// delay makes a delayed one due now; a message with a delay does not make a ready one wait.
    pub fn replacing(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), hold: KeyLifetime::UntilDone(Repeat::Replace) }
    }

    /// As [`replacing`](Self::replacing), for messages with a delay: each one starts the wait over,
    /// so that only the last of many is handled, but at most `max_wait` after the first.
    pub fn debounced(key: impl Into<Vec<u8>>, max_wait: Option<Duration>) -> Self {
        Self { key: key.into(), hold: KeyLifetime::UntilDone(Repeat::Debounce { max_wait }) }
    }

    /// Builds the key from options, each of which may be missing. The key is held for `time`, or
    /// until the message is done if there is no `time`.
    ///
    /// # Errors
    /// [`Error::InvalidUnique`] if the options contradict each other.
    pub fn from_options(
        key: Option<Vec<u8>>,
        time: Option<Duration>,
        on_conflict: Option<OnConflict>,
        max_wait: Option<Duration>,
    ) -> Result<Option<Self>> {
        let Some(key) = key else {
            return match (time, on_conflict, max_wait) {
                (None, None, None) => Ok(None),
                _ => invalid("there is none, so nothing else may be said of it"),
            };
        };
        let unique = match (on_conflict.unwrap_or_default(), time, max_wait) {
            (OnConflict::Debounce, None, max_wait) => Self::debounced(key, max_wait),
            (OnConflict::Replace | OnConflict::Debounce, Some(_), _) => {
                return invalid("one that is held for a time keeps the first message");
            }
            (_, _, Some(_)) => return invalid("only a debounced message has a longest wait"),
            (OnConflict::Keep, Some(time), None) => Self::for_duration(key, time),
            (OnConflict::Keep, None, None) => Self::until_done(key),
            (OnConflict::Replace, None, None) => Self::replacing(key),
        };
        Ok(Some(unique))
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The options that [`from_options`](Self::from_options) builds it from: how long, how others
    /// are treated, and the longest wait.
    #[must_use]
    pub fn options(&self) -> (Option<Duration>, OnConflict, Option<Duration>) {
        match self.hold {
            KeyLifetime::For(time) => (Some(time), OnConflict::Keep, None),
            KeyLifetime::UntilDone(Repeat::Keep) => (None, OnConflict::Keep, None),
            KeyLifetime::UntilDone(Repeat::Replace) => (None, OnConflict::Replace, None),
            KeyLifetime::UntilDone(Repeat::Debounce { max_wait }) => {
                (None, OnConflict::Debounce, max_wait)
            }
        }
    }

    pub(crate) fn hold(&self) -> KeyLifetime {
        self.hold
    }

    /// How long the key is held; `None`: until the message is done.
    pub(crate) fn time(&self) -> Option<Duration> {
        match self.hold {
            KeyLifetime::For(time) => Some(time),
            KeyLifetime::UntilDone(_) => None,
        }
    }

    /// Whether another message may replace this one.
    pub(crate) fn replaces(&self) -> bool {
        !matches!(self.hold, KeyLifetime::For(_) | KeyLifetime::UntilDone(Repeat::Keep))
    }

    /// Checks it for a message with this delivery time.
    pub(crate) fn check(&self, deliver: Option<Moment>) -> Result<()> {
        let len = self.key.len();
        if len > KEY_LIMIT {
            return Err(Error::KeyTooLong { field: "unique key", len, limit: KEY_LIMIT });
        }
        if len == 0 {
            return invalid("it is empty");
        }
        let sound = |time: Duration| time > Duration::ZERO && time <= LONGEST;
        match self.hold {
            KeyLifetime::For(time) if !sound(time) => {
                invalid("it is held for no time, or for more than ten years")
            }
            KeyLifetime::UntilDone(Repeat::Debounce { max_wait }) => {
                if deliver.is_none_or(|moment| moment == Moment::After(Duration::ZERO)) {
                    return invalid("a debounced message needs a delay");
                }
                match max_wait {
                    Some(wait) if !sound(wait) => {
                        invalid("its longest wait is no time, or more than ten years")
                    }
                    _ => Ok(()),
                }
            }
            KeyLifetime::For(_) | KeyLifetime::UntilDone(_) => Ok(()),
        }
    }
}

fn invalid<T>(reason: &'static str) -> Result<T> {
    Err(Error::InvalidUnique { reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_cannot_be_held_is_refused() {
        let soon = Some(Moment::After(HOUR));
        for (unique, deliver, why) in [
            (Unique::until_done(""), None, "empty"),
            (Unique::until_done([7; 256]), None, "256 bytes"),
            (Unique::for_duration("k", Duration::ZERO), None, "no time"),
            (Unique::for_duration("k", LONGEST + HOUR), None, "ten years"),
            (Unique::debounced("k", None), None, "needs a delay"),
            (Unique::debounced("k", None), Some(Moment::After(Duration::ZERO)), "needs a delay"),
            (Unique::debounced("k", Some(Duration::ZERO)), soon, "longest wait"),
        ] {
            let refused = unique.check(deliver).expect_err(why).to_string();
            assert!(refused.contains(why), "{refused}");
        }
        assert!(Unique::debounced([7; 255], Some(LONGEST)).check(soon).is_ok());
        assert!(Unique::for_duration("k", LONGEST).check(None).is_ok());
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let key = || Some(b"k".to_vec());
        let options = |time, choice, wait| Unique::from_options(key(), time, choice, wait);
        let debounced = options(None, Some(OnConflict::Debounce), Some(HOUR)).expect("sound");
        assert_eq!(debounced, Some(Unique::debounced("k", Some(HOUR))));
        let held = options(Some(HOUR), None, None).expect("sound");
        assert_eq!(held, Some(Unique::for_duration("k", HOUR)));
        assert_eq!(Unique::from_options(None, None, None, None).expect("sound"), None);
        Unique::from_options(None, Some(HOUR), None, None).expect_err("there is no key");
        for (time, on_conflict, wait) in [
            (Some(HOUR), OnConflict::Replace, None),
            (Some(HOUR), OnConflict::Debounce, None),
            (None, OnConflict::Replace, Some(HOUR)),
            (None, OnConflict::Keep, Some(HOUR)),
        ] {
            options(time, Some(on_conflict), wait).expect_err("they do not go together");
        }
    }
}
