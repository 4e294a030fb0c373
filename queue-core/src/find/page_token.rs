use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::model::{MsgId, Offset, PartitionNo, Position, RowId};
use crate::store::find::TablePosition;
use crate::store::inspect::MessageTable;
use crate::store::moment::micros;

/// Where an answer ended. The next call takes its text form and continues there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(with = "String"))]
#[serde(into = "String")]
pub enum PageToken {
    /// Behind this entry of the lookup.
    Lookup(DateTime<Utc>, MsgId),
    /// Behind these rows, in the tables that have more.
    Tables(Vec<TablePosition>),
    /// Before these offsets of a log's partitions.
    Log(Vec<Position>),
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup(at, id) => write!(f, "lookup.{}.{}", micros(*at), id.0.simple()),
            Self::Tables(places) => {
                for (n, place) in places.iter().enumerate() {
                    let comma = if n > 0 { "," } else { "" };
                    write!(f, "{comma}{}.{}.{}", place.table.word(), place.at, place.row)?;
                }
                Ok(())
            }
            Self::Log(places) => {
                for (n, place) in places.iter().enumerate() {
                    let comma = if n > 0 { "," } else { "" };
                    write!(f, "{comma}log.{}.{}", place.partition, place.offset)?;
                }
                Ok(())
            }
        }
    }
}

impl From<PageToken> for String {
    fn from(token: PageToken) -> Self {
        token.to_string()
    }
}

impl FromStr for PageToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            if let Some(rest) = text.strip_prefix("lookup.") {
                let (at, id) = rest.split_once('.')?;
                let at = DateTime::from_timestamp_micros(at.parse().ok()?)?;
                return Some(Self::Lookup(at, MsgId(Uuid::try_parse(id).ok()?)));
            }
            if text.starts_with("log.") {
                let place = |part: &str| {
                    let (partition, offset) = part.strip_prefix("log.")?.split_once('.')?;
                    let partition = PartitionNo(partition.parse().ok()?);
                    Some(Position { partition, offset: Offset(offset.parse().ok()?) })
                };
                return text.split(',').map(place).collect::<Option<Vec<_>>>().map(Self::Log);
            }
            let place = |part: &str| {
                let mut parts = part.split('.');
                let word = parts.next()?;
                let table = MessageTable::ALL.into_iter().find(|table| table.word() == word)?;
                let at = parts.next()?.parse().ok()?;
                let row = RowId(parts.next()?.parse().ok()?);
                parts.next().is_none().then_some(TablePosition { table, at, row })
            };
            // Each position is searched, so no table is named twice.
            let places = text.split(',').map(place).collect::<Option<Vec<TablePosition>>>()?;
            let tables: HashSet<&str> = places.iter().map(|place| place.table.word()).collect();
            (tables.len() == places.len()).then_some(Self::Tables(places))
        };
        let wrong = "a page token is what the answer before returned: `next` of --json";
        read().ok_or_else(|| wrong.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_as_it_was_written() {
        let at = DateTime::from_timestamp_micros(1_700_000_000_123_456).unwrap();
        let place = |table, at, row| TablePosition { table, at, row: RowId(row) };
        for one in [
            PageToken::Lookup(at, MsgId::new()),
            PageToken::Tables(vec![place(MessageTable::Ready, 105, 7)]),
            PageToken::Tables(MessageTable::ALL.map(|table| place(table, 0, u64::MAX)).to_vec()),
            PageToken::Log(vec![Position { partition: PartitionNo(1), offset: Offset(7) }; 2]),
        ] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        for wrong in [
            "",
            "lookup.1",
            "log.1",
            "log.1.2,",
            "log.1.2.3",
            "ready.1",
            "ready.1.2.3",
            "ready.1.2,",
            "ready.1.2,ready.1.3",
            "hot.1.2",
            "dead.a.1",
        ] {
            assert!(wrong.parse::<PageToken>().is_err(), "{wrong}");
        }
    }
}
