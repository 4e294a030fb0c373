//! Moments in SQL: bound as microseconds, independent of the session's time zone.

use chrono::{DateTime, Utc};

use crate::model::{LONGEST, Moment};

/// The moment of the bound [`micros`]; NULL for NULL.
pub(super) const MOMENT: &str = "TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND";

/// The last microsecond that both servers can add to 1970: the end of the year 9999.
pub(super) const LATEST: u64 = 253_402_300_799_999_999;

/// Converts a moment to the number that is bound; anything before 1970 counts as 1970.
pub(crate) fn micros(time: DateTime<Utc>) -> u64 {
    u64::try_from(time.timestamp_micros()).unwrap_or(0).min(LATEST)
}

/// Converts an age in milliseconds: never below zero, even if the clock was set back.
pub(super) fn age(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}

/// As [`age`], for a value that may be NULL.
pub(super) fn maybe_age(ms: Option<i64>) -> Option<u64> {
    ms.map(age)
}

impl Moment {
    /// Returns its SQL, with a `?` for its [`micros`](Self::micros).
    pub(super) fn sql(self) -> &'static str {
        match self {
            Self::After(_) => "UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
            Self::At(_) => MOMENT,
        }
    }

    /// As [`sql`](Self::sql), for the due time of a message: a past moment counts as now. A due
    /// time must not be earlier than the statement that stores the message, because the search for
    /// due messages does not reach far back.
    pub(super) fn due_sql(self) -> &'static str {
        match self {
            Self::After(_) => self.sql(),
            Self::At(_) => {
                "GREATEST(TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND, UTC_TIMESTAMP(6))"
            }
        }
    }

    /// Returns microseconds from now, or since 1970.
    pub(super) fn micros(self) -> u64 {
        match self {
            Self::After(time) => u64::try_from(time.min(LONGEST).as_micros()).unwrap_or(0),
            Self::At(at) => micros(at),
        }
    }
}
