use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::model::{Error, Offset, Result};

/// The place in its stream where a group continues: `earliest`, `latest`, an offset or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// At the oldest message still kept.
    Earliest,
    /// Behind the newest message that has an offset.
    Latest,
    /// At this offset, in every partition.
    Offset(Offset),
    /// At the first message that got its offset at this time of the server's clock, or later.
    Time(DateTime<Utc>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Offset(offset) => offset.fmt(f),
            Self::Time(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        }
    }
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => match (text.parse(), DateTime::parse_from_rfc3339(text)) {
                (Ok(offset), _) => Ok(Self::Offset(Offset(offset))),
                (_, Ok(time)) => Ok(Self::Time(time.to_utc())),
                _ => Err(Error::InvalidPlace { text: text.to_owned() }),
            },
        }
    }
}

impl TryFrom<String> for Place {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_word_an_offset_or_a_time_and_reads_as_it_is_written() {
        for text in ["earliest", "latest", "17", "2026-12-24T18:00:00.000123Z"] {
            let place: Place = text.parse().expect("a place");
            assert_eq!(place.to_string(), text);
        }
        assert!(matches!("2026-12-24T18:00:00+01:00".parse(), Ok(Place::Time(_))));
        for wrong in ["", "-1", "first", "2026-12-24"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
