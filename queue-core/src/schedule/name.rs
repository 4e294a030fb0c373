use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::topic::is_name;

/// A schedule's name: 1 to 64 of `A-Z a-z 0-9 . _ -`, compared byte for byte.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ScheduleName(String);

impl ScheduleName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if it is empty, too long or has another character.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if is_name(&name) { Ok(Self(name)) } else { Err(Error::InvalidName { name }) }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ScheduleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ScheduleName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}
