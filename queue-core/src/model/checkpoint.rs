//! How far the handler of a long message has come.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::DeliveryNo;

/// How much of the work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(extend("maximum" = 100)))]
pub struct Percent(u8);

impl Percent {
    /// 0 to 100; what is more is 100.
    #[must_use]
    pub fn new(percent: u8) -> Self {
        Self(percent.min(100))
    }

    /// `done` of `all`, rounded down; of nothing, all of it.
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

/// A place to go on from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// What the handler needs in order to go on.
    pub state: Vec<u8>,
    /// How far it is, for people: `rowmq find` shows it.
    pub progress: Option<Percent>,
}

impl Checkpoint {
    /// A place of any bytes.
    pub fn new(state: impl Into<Vec<u8>>) -> Self {
        Self { state: state.into(), progress: None }
    }

    /// A place as JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if it is none.
    pub fn json<S: Serialize>(state: &S) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(state).map(Self::new)
    }

    /// With how far the handler is.
    #[must_use]
    pub fn at(self, progress: Percent) -> Self {
        Self { progress: Some(progress), ..self }
    }
}

/// A checkpoint as it was saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The place.
    pub checkpoint: Checkpoint,
    /// The delivery that saved it.
    pub delivery_no: DeliveryNo,
    /// Server time at which it did.
    pub at: DateTime<Utc>,
}

impl Saved {
    /// The place, from JSON.
    ///
    /// # Errors
    /// [`serde_json::Error`] if it is not what the caller takes.
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
