use std::rc::Rc;

use chrono::NaiveDateTime;
use diesel::deserialize::FromSql;
use diesel::mysql::data_types::{MysqlTime, MysqlTimestampType};
use diesel::mysql::sql_types::Datetime;
use diesel::mysql::{Mysql, MysqlType, MysqlValue};

/// A value of a column. Values are ordered as keys are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Value {
    Null,
    Number(i128),
    /// Microseconds since 1970, UTC.
    Time(i64),
    Bytes(Rc<[u8]>),
}

/// A row: one value per column.
pub(crate) type Row = Rc<[Value]>;

impl Value {
    pub(crate) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.into())
    }

    pub(crate) fn truth(value: bool) -> Self {
        Self::Number(i128::from(value))
    }

    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Self::Number(number) if *number != 0)
    }

    pub(crate) fn number(&self) -> i128 {
        match self {
            Self::Number(number) => *number,
            Self::Time(micros) => i128::from(*micros),
            Self::Null => 0,
            Self::Bytes(bytes) => {
                panic!("a number expected, not {:?}", String::from_utf8_lossy(bytes))
            }
        }
    }

    /// Returns the value as text, as CONCAT does.
    pub(crate) fn text(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Number(number) => number.to_string().into_bytes(),
            other => panic!("a text expected, not {other:?}"),
        }
    }

    /// Reads a bound value, as it goes over the wire.
    pub(crate) fn from_wire(bytes: &[u8], kind: MysqlType) -> Self {
        let number = || {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_ne_bytes(word)
        };
        match kind {
            MysqlType::Blob | MysqlType::String => Self::bytes(bytes),
            MysqlType::LongLong => Self::Number(i128::from(number().cast_signed())),
            MysqlType::DateTime => {
                let time = MysqlValue::new(bytes, kind);
                let time = <NaiveDateTime as FromSql<Datetime, Mysql>>::from_sql(time);
                Self::Time(time.expect("a time").and_utc().timestamp_micros())
            }
            MysqlType::Tiny
            | MysqlType::UnsignedTiny
            | MysqlType::UnsignedShort
            | MysqlType::UnsignedLong
            | MysqlType::UnsignedLongLong => Self::Number(number().into()),
            other => panic!("unknown to the model: a value of the type {other:?}"),
        }
    }

    /// Returns the type's name on the wire.
    pub(crate) fn kind(&self) -> MysqlType {
        match self {
            Self::Null | Self::Number(_) => MysqlType::LongLong,
            Self::Time(_) => MysqlType::DateTime,
            Self::Bytes(_) => MysqlType::Blob,
        }
    }

    /// Returns the value as it comes over the wire.
    pub(crate) fn wire(&self) -> Option<Vec<u8>> {
        match self {
            Self::Null => None,
            Self::Number(number) => {
                let number = i64::try_from(*number).expect("64 bits");
                Some(number.to_ne_bytes().to_vec())
            }
            Self::Bytes(bytes) => Some(bytes.to_vec()),
            Self::Time(micros) => Some(time(*micros).serialize().to_vec()),
        }
    }
}

/// Converts a moment to a calendar date (Howard Hinnant's `civil_from_days`).
fn time(micros: i64) -> MysqlTime {
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    MysqlTime::new(
        year as u32,
        month as u32,
        day as u32,
        (second / 3600) as u32,
        (second / 60 % 60) as u32,
        (second % 60) as u32,
        fraction as u64,
        false,
        MysqlTimestampType::MYSQL_TIMESTAMP_DATETIME,
        0,
    )
}
