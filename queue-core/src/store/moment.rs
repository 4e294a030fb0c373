//! Moments as numbers that are bound: microseconds since 1970, UTC, whatever the session's zone.

use chrono::{DateTime, Utc};

/// The moment of the [`micros`] that are bound.
pub(super) const MOMENT: &str = "TIMESTAMP('1970-01-01') + INTERVAL ? MICROSECOND";

/// The last microsecond that both servers can add to 1970: the end of the year 9999.
pub(super) const LATEST: u64 = 253_402_300_799_999_999;

/// A moment as it is bound; what lies before 1970 counts as 1970.
pub(super) fn micros(time: DateTime<Utc>) -> u64 {
    u64::try_from(time.timestamp_micros()).unwrap_or(0).min(LATEST)
}
