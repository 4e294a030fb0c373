use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Deserialize;

use crate::model::{Error, Result};

/// The longest delay, and the longest time that anything is kept: ten years, so that no sum leaves
/// the calendar.
pub(crate) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The last second of the server's calendar, in seconds since 1970.
const CALENDAR_END: i64 = 253_402_300_799;

/// A time by the server's clock; this machine's clock does not matter. As text: a time from now
/// (`48h`, `1m 30s`), or a date and time with its zone (`2026-12-24T18:00:00Z`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Moment {
    /// This long after the message is enqueued.
    After(Duration),
    /// At this time.
    At(DateTime<Utc>),
}

impl Moment {
    /// Refuses a time beyond the calendar; `what` names the time in the error.
    ///
    /// # Errors
    /// [`Error::InvalidTime`].
    pub fn check(self, what: &'static str) -> Result<()> {
        let reason = match self {
            Self::After(time) if time > LONGEST => "it is more than ten years away",
            Self::At(at) if !(0..=CALENDAR_END).contains(&at.timestamp()) => {
                "its year is not one of 1970 to 9999"
            }
            Self::After(_) | Self::At(_) => return Ok(()),
        };
        Err(Error::InvalidTime { what, reason })
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) => write!(f, "{}", humantime::format_duration(*time)),
            Self::At(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = humantime::parse_duration(text) {
            return Ok(Self::After(time));
        }
        match DateTime::parse_from_rfc3339(text) {
            Ok(at) => Ok(Self::At(at.to_utc())),
            Err(_) => Err(format!(
                "'{text}' is no moment: use a time from now, as 48h, or a date and time with its zone, as 2026-12-24T18:00:00Z"
            )),
        }
    }
}

impl TryFrom<String> for Moment {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_time_from_now_or_a_date_with_its_zone() {
        assert_eq!("48h".parse(), Ok(Moment::After(Duration::from_secs(48 * 3600))));
        let at = DateTime::from_timestamp(1_798_135_200, 0).expect("a time");
        for text in ["2026-12-24T18:00:00Z", "2026-12-24T19:00:00+01:00"] {
            assert_eq!(text.parse(), Ok(Moment::At(at)), "{text}");
        }
        for wrong in
            ["", "soon", "-1h", "2026-12-24", "2026-12-24T18:00:00", "2026-13-01T00:00:00Z"]
        {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_moment_beyond_the_calendar_is_refused() {
        assert!(Moment::After(LONGEST).check("it").is_ok());
        assert!(Moment::After(Duration::MAX).check("it").is_err());
        assert!(Moment::At(DateTime::UNIX_EPOCH).check("it").is_ok());
        assert!(Moment::At(DateTime::<Utc>::MIN_UTC).check("it").is_err());
        let error = Moment::At(DateTime::<Utc>::MAX_UTC).check("it").expect_err("refused");
        assert_eq!(error.to_string(), "it cannot be: its year is not one of 1970 to 9999.");
    }
}
