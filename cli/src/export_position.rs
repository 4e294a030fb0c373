//! The progress of an export.

use std::fmt;
use std::str::FromStr;

use chrono::DateTime;
use rowmq_core::Priority;
use rowmq_core::model::RowId;
use rowmq_core::store::scheduled::ScheduledPosition;
use serde::{Serialize, Serializer};

/// The position of an export at a message. The message's own line holds it, so that a whole line in
/// the file has both the message and where to continue. A second file with the position could be
/// behind the first one or ahead of it after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExportPosition {
    /// The last row that the export takes.
    pub(crate) last: RowId,
    /// Where the message was.
    pub(crate) at: At,
}

/// Where a message was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Scheduled(ScheduledPosition),
    /// Its priority, which also marks a suspect, and its row.
    Ready(Priority, RowId),
}

impl fmt::Display for ExportPosition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            At::Scheduled(ScheduledPosition { due_at, row }) => {
                write!(out, "{}/{}/{row}", self.last, due_at.format("%FT%T%.6fZ"))
            }
            At::Ready(priority, row) => write!(out, "{}/{}/{row}", self.last, priority.stored()),
        }
    }
}

impl FromStr for ExportPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let mut parts = text.split('/');
            let (last, within, row) = (parts.next()?, parts.next()?, parts.next()?);
            let (last, row) = (RowId(last.parse().ok()?), RowId(row.parse().ok()?));
            let at = match within.parse() {
                Ok(stored) => {
                    let priority = Priority::from_stored(stored);
                    let known = Priority::all().flat_map(|plain| [plain, plain.suspect()]);
                    At::Ready(known.into_iter().find(|known| *known == priority)?, row)
                }
                Err(_) => {
                    let due_at = DateTime::parse_from_rfc3339(within).ok()?.to_utc();
                    At::Scheduled(ScheduledPosition { due_at, row })
                }
            };
            parts.next().is_none().then_some(Self { last, at })
        };
        parse().ok_or_else(|| format!("'{text}' is no position of an export"))
    }
}

impl Serialize for ExportPosition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_text_and_back() {
        for text in
            ["900/5/123", "900/105/123", "18446744073709551615/2026-12-24T18:00:00.000001Z/1"]
        {
            assert_eq!(
                text.parse::<ExportPosition>().map(|place| place.to_string()),
                Ok(text.to_owned())
            );
        }
        for wrong in ["", "1/2", "1/2/3/4", "1/10/3", "1/110/3", "1/soon/3", "a/5/3", "1/5/-3"] {
            assert!(wrong.parse::<ExportPosition>().is_err(), "{wrong}");
        }
    }
}
