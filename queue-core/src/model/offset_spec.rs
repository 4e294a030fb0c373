use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use crate::model::{Error, Offset, Result};

/// Where in its stream a group begins or continues: `earliest`, `latest`, an offset or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum OffsetSpec {
    /// At the oldest message still kept.
    Earliest,
    /// Behind the newest message that has an offset.
    Latest,
    /// At this offset, in every partition.
    Offset(Offset),
    /// At the first message that got its offset at this time of the server's clock, or later.
    Time(DateTime<Utc>),
}

impl fmt::Display for OffsetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Earliest => f.write_str("earliest"),
            Self::Latest => f.write_str("latest"),
            Self::Offset(offset) => offset.fmt(f),
            Self::Time(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        }
    }
}

impl FromStr for OffsetSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            _ => match (text.parse(), DateTime::parse_from_rfc3339(text)) {
                (Ok(offset), _) => Ok(Self::Offset(Offset(offset))),
                (_, Ok(time)) => Ok(Self::Time(time.to_utc())),
                _ => Err(Error::InvalidOffsetSpec { text: text.to_owned() }),
            },
        }
    }
}

impl TryFrom<String> for OffsetSpec {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<OffsetSpec> for String {
    fn from(spec: OffsetSpec) -> Self {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_spec_is_a_word_an_offset_or_a_time_and_reads_as_it_is_written() {
        for text in ["earliest", "latest", "17", "2026-12-24T18:00:00.000123Z"] {
            let spec: OffsetSpec = text.parse().expect("an offset spec");
            assert_eq!(spec.to_string(), text);
        }
        assert!(matches!("2026-12-24T18:00:00+01:00".parse(), Ok(OffsetSpec::Time(_))));
        for wrong in ["", "-1", "first", "2026-12-24"] {
            assert!(wrong.parse::<OffsetSpec>().is_err(), "{wrong}");
        }
    }
}
