//! The progress of the handler of a long message.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::DeliveryNo;

/// The share of the work that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(extend("maximum" = 100)))]
pub struct Percent(u8);

impl Percent {
    /// 0 to 100; a higher number is 100.
    #[must_use]
    pub fn new(percent: u8) -> Self {
        Self(percent.min(100))
    }

    /// `done` of `all`, rounded down; 100 if `all` is zero.
    #[must_use]
    pub fn of(done: u64, all: u64) -> Self {
        let percent = (u128::from(done) * 100).checked_div(u128::from(all)).unwrap_or(100);
        Self::new(u8::try_from(percent).unwrap_or(100))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// A point to resume from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// What the handler needs in order to resume.
    pub state: Vec<u8>,
    /// How far the handler is, for people: `rowmq find` shows it.
    pub progress: Option<Percent>,
}

impl Checkpoint {
    /// A checkpoint of any bytes.
    pub fn new(state: impl Into<Vec<u8>>) -> Self {
        Self { state: state.into(), progress: None }
    }

    /// A checkpoint as JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if the state cannot be written as JSON.
    pub fn json<S: Serialize>(state: &S) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(state).map(Self::new)
    }

    /// Adds how far the handler is.
    #[must_use]
    pub fn at(self, progress: Percent) -> Self {
        Self { progress: Some(progress), ..self }
    }
}

/// A checkpoint as it was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The delivery that saved it.
    pub delivery_no: DeliveryNo,
    /// The server time at which it was saved.
    pub at: DateTime<Utc>,
}

impl Saved {
    /// Reads the checkpoint as JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if it is not of the caller's type.
    pub fn json<S: DeserializeOwned>(&self) -> Result<S, serde_json::Error> {
        serde_json::from_slice(&self.checkpoint.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_rounded_down_and_never_more_than_all() {
        assert_eq!(Percent::of(1, 3).get(), 33);
        assert_eq!(Percent::of(999, 1000).get(), 99);
        assert_eq!(Percent::of(5, 4).get(), 100);
        assert_eq!(Percent::of(0, 0).get(), 100);
        assert_eq!(Percent::of(u64::MAX, u64::MAX).get(), 100);
    }
}
