use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::{Error, MsgId};

/// The whole: a share has six decimal places.
const MILLION: u32 = 1_000_000;

/// Which of a topic's messages leave a trace. The message id alone decides, so every process, every
/// delivery and every group of a stream decides the same without communicating.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Sampling(u32);

impl Sampling {
    /// None of them.
    pub const OFF: Self = Self(0);

    /// All of them.
    pub const ALL: Self = Self(MILLION);

    /// This many of a million; a higher number means all.
    #[must_use]
    pub fn per_million(n: u32) -> Self {
        Self(n.min(MILLION))
    }

    /// How many of a million.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.0
    }

    /// Whether no message leaves a trace.
    #[must_use]
    pub fn is_off(self) -> bool {
        self == Self::OFF
    }

    /// Whether the message with this id leaves a trace. In SQL: `CRC32(msg_id) MOD 1000000`.
    #[must_use]
    pub fn takes(self, message: MsgId) -> bool {
        !self.is_off() && crc32fast::hash(message.as_bytes()) % MILLION < self.0
    }
}

/// Writes `off`, `all`, or a percentage: `1%`.
impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OFF => f.write_str("off"),
            Self::ALL => f.write_str("all"),
            Self(n) => write!(f, "{}%", f64::from(n) / 10_000.0),
        }
    }
}

impl FromStr for Sampling {
    type Err = Error;

    /// Reads `off`, `all`, a percentage (`1%`) or a share (`0.01`).
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Setting {
            name: "trace",
            value: text.to_owned(),
            fix: "use `off`, `all`, per cent such as `1%`, or a share such as `0.01`",
        };
        let share = |number: &str, whole: f64| {
            let share = number.trim().parse::<f64>().ok()? / whole;
            (0.0..=1.0).contains(&share).then_some(share)
        };
        let share = match text.trim() {
            "off" => return Ok(Self::OFF),
            "all" => return Ok(Self::ALL),
            text => match text.strip_suffix('%') {
                Some(number) => share(number, 100.0),
                None => share(text, 1.0),
            },
        };
        let share = share.ok_or_else(wrong)?;
        // From 0 to a million, by the check above; a share above zero is never rounded to zero.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let millionths = (share * f64::from(MILLION)).round() as u32;
        Ok(Self(if share > 0.0 { millionths.max(1) } else { 0 }))
    }
}

impl TryFrom<String> for Sampling {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<Sampling> for String {
    fn from(sampling: Sampling) -> Self {
        sampling.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_people_write_it() {
        for (text, millionths, shown) in [
            ("off", 0, "off"),
            ("0", 0, "off"),
            ("all", 1_000_000, "all"),
            ("1", 1_000_000, "all"),
            ("100%", 1_000_000, "all"),
            ("1%", 10_000, "1%"),
            ("0.01", 10_000, "1%"),
            ("0.5 %", 5_000, "0.5%"),
            ("0.0000001", 1, "0.0001%"),
        ] {
            let sampling: Sampling = text.parse().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!((sampling.millionths(), sampling.to_string().as_str()), (millionths, shown));
            assert_eq!(sampling.to_string().parse::<Sampling>().ok(), Some(sampling));
        }
        for wrong in ["", "%", "2", "-1%", "101%", "NaN", "inf", "on", "1 in 100"] {
            assert!(wrong.parse::<Sampling>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn about_the_share_of_the_messages_is_taken_and_always_the_same_ones() {
        let ids: Vec<_> = (0..20_000).map(|_| MsgId::new()).collect();
        let taken = |sampling: Sampling| ids.iter().filter(|id| sampling.takes(**id)).count();
        assert_eq!(taken(Sampling::OFF), 0);
        assert_eq!(taken(Sampling::ALL), ids.len());
        let tenth = taken(Sampling::per_million(100_000));
        assert!((1500..2500).contains(&tenth), "{tenth}");
        let (small, large) = (Sampling::per_million(10_000), Sampling::per_million(100_000));
        assert!(ids.iter().all(|id| !small.takes(*id) || large.takes(*id)));
    }
}
