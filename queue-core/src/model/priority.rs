use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{Error, Result};

/// The distance in the database between a suspect's priority and its plain one.
const SUSPECT_OFFSET: u8 = 100;

/// 0 (first) to 9 (last); the default is 5.
///
/// A *suspect*, a message that was held by workers that crashed, has `priority + 100` in the
/// clustered key: ordinary claims never walk over it, and it is claimed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(extend("maximum" = 9)))]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// Handled before all others.
    pub const FIRST: Self = Self(0);
    /// Handled after all others.
    pub const LAST: Self = Self(9);

    /// The priority `level`, 0 to 9.
    ///
    /// # Errors
    /// [`Error::InvalidPriority`] for any other number.
    pub fn new(level: u8) -> Result<Self> {
        if level <= Self::LAST.0 { Ok(Self(level)) } else { Err(Error::InvalidPriority { level }) }
    }

    /// Every priority, first to last.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::FIRST.0..=Self::LAST.0).map(Self)
    }

    /// The priority that the user chose, suspect or not.
    #[must_use]
    pub fn level(self) -> u8 {
        self.0 % SUSPECT_OFFSET
    }

    /// Whether the message is claimed alone.
    #[must_use]
    pub fn is_suspect(self) -> bool {
        self.0 >= SUSPECT_OFFSET
    }

    /// The same priority among the suspects.
    #[must_use]
    pub fn suspect(self) -> Self {
        Self(self.level() + SUSPECT_OFFSET)
    }

    /// The same priority among the messages that are not suspects.
    #[must_use]
    pub fn plain(self) -> Self {
        Self(self.level())
    }

    /// The number in the database's key.
    #[must_use]
    pub fn stored(self) -> u8 {
        self.0
    }

    /// The priority from the number in the database's key.
    #[must_use]
    pub fn from_stored(stored: u8) -> Self {
        Self(stored)
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u8> for Priority {
    type Error = Error;

    fn try_from(level: u8) -> Result<Self> {
        Self::new(level)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.level()
    }
}

impl FromStr for Priority {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse().map_err(|_| Error::InvalidPriority { level: u8::MAX }).and_then(Self::new)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.level().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspect_keeps_its_level_and_comes_back_to_it() {
        for priority in Priority::all() {
            let suspect = priority.suspect();
            assert!(suspect.is_suspect() && !priority.is_suspect());
            assert_eq!(suspect.level(), priority.level());
            assert_eq!(suspect.plain(), priority);
            assert_eq!(suspect.suspect(), suspect);
            assert_eq!(Priority::from_stored(suspect.stored()), suspect);
        }
    }

    #[test]
    fn only_0_to_9_can_be_asked_for() {
        assert!(Priority::new(9).is_ok());
        assert!(Priority::new(10).is_err());
        assert!("104".parse::<Priority>().is_err());
    }
}
