//! The meaning of a binary log event for the queue.

use mysql_async::binlog::EventType;
use mysql_async::binlog::events::{Event, EventData, TableMapEvent};

use super::rows::{self, Topics};

/// The meaning of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing of the queue's.
    Nothing,
    /// An event of the queue in this database that wakes no consumer, such as a beat.
    Sign,
    /// A topic's settings or the list of topics changed.
    TopicsChanged,
    /// Messages of these topics became ready.
    Messages(Rung),
    /// Messages of these topics became ready again: their floors were published.
    Floors(Rung),
}

/// The topics that an event concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rung {
    Topics(Topics),
    /// The event is not understood: any topic.
    Everybody,
}

/// The row events that `MariaDB` compresses (`log_bin_compress`): writes, updates and deletes of
/// both versions, and the compressed statement before them.
const COMPRESSED_QUERY: u8 = 165;
const COMPRESSED_WRITES: [u8; 2] = [166, 169];
const COMPRESSED: std::ops::RangeInclusive<u8> = 166..=171;

const WRITES: [u8; 2] = [EventType::WRITE_ROWS_EVENT as u8, EventType::WRITE_ROWS_EVENT_V1 as u8];
const UPDATES: [u8; 3] = [
    EventType::UPDATE_ROWS_EVENT as u8,
    EventType::UPDATE_ROWS_EVENT_V1 as u8,
    EventType::PARTIAL_UPDATE_ROWS_EVENT as u8,
];
const DELETES: [u8; 2] =
    [EventType::DELETE_ROWS_EVENT as u8, EventType::DELETE_ROWS_EVENT_V1 as u8];

/// Determines what `event` means; `table` looks up the tables announced by the stream.
pub(super) fn understand<'t>(
    event: &Event,
    database: &str,
    table: impl FnOnce(u64) -> Option<&'t TableMapEvent<'static>>,
) -> Heard {
    let kind = event.header().event_type_raw();
    if kind == EventType::QUERY_EVENT as u8 || kind == COMPRESSED_QUERY {
        return statement(event.data(), database, kind == COMPRESSED_QUERY);
    }
    let of_rows = [&WRITES[..], &UPDATES, &DELETES].iter().any(|kinds| kinds.contains(&kind));
    if !of_rows && !COMPRESSED.contains(&kind) {
        return Heard::Nothing;
    }
    let Some(table) = table_id(event.data()).and_then(table) else { return Heard::Nothing };
    if !same_name(table.database_name_raw(), database.as_bytes()) {
        return Heard::Nothing;
    }
    let writes = WRITES.contains(&kind) || COMPRESSED_WRITES.contains(&kind);
    match table.table_name_raw() {
        // Writes to the log ring too: producers append batches to it directly, and when one member
        // sequences messages, every member reads them.
        b"queue_message" | b"queue_log" if writes => Heard::Messages(rung(event, table)),
        b"queue_floor" => Heard::Floors(rung(event, table)),
        b"queue_topic" | b"queue_switch" => Heard::TopicsChanged,
        name if name.starts_with(b"queue_") => Heard::Sign,
        _ => Heard::Nothing,
    }
}

/// Returns the table id of a row event, from its first six bytes.
fn table_id(data: &[u8]) -> Option<u64> {
    let bytes = data.get(..6)?;
    Some(bytes.iter().rev().fold(0, |id, byte| id << 8 | u64::from(*byte)))
}

/// Some servers write names in lower case, whatever case they were created with.
fn same_name(one: &[u8], other: &[u8]) -> bool {
    one.eq_ignore_ascii_case(other)
}

fn rung(event: &Event, table: &TableMapEvent<'_>) -> Rung {
    let Ok(Some(EventData::RowsEvent(rows))) = event.read_data() else { return Rung::Everybody };
    let topics = match rows.columns_before_image() {
        None => rows::inserted(table, &rows),
        Some(_) => rows::changed(&rows),
    };
    topics.map_or(Rung::Everybody, Rung::Topics)
}

/// A statement logged in place of rows (`binlog_format = MIXED`), or one that ends an XA
/// transaction, whose rows came with its preparation.
fn statement(data: &[u8], database: &str, compressed: bool) -> Heard {
    let Some((name, text)) = database_and_text(data) else { return Heard::Nothing };
    let ours = same_name(name, database.as_bytes());
    let rings = text.starts_with(b"XA COMMIT")
        || ours && (compressed || contains(text, b"queue_message"))
        || !ours && contains(text, b"queue_message") && contains(text, database.as_bytes());
    if rings { Heard::Messages(Rung::Everybody) } else { Heard::Nothing }
}

/// The layout: thread, time, length of the name, error, length of the variables; the variables; the
/// name of the session's database, a zero, the text.
fn database_and_text(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = usize::from(*data.get(8)?);
    let variables = usize::from(u16::from_le_bytes([*data.get(11)?, *data.get(12)?]));
    let (name, text) = data.get(13 + variables..)?.split_at_checked(length)?;
    Some((name, text.get(1..)?))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A statement's event without variables.
    fn query(database: &str, text: &str) -> Vec<u8> {
        let length = u8::try_from(database.len()).expect("a short name");
        let mut data = vec![0, 0, 0, 0, 0, 0, 0, 0, length, 0, 0, 0, 0];
        data.extend(database.as_bytes());
        data.push(0);
        data.extend(text.as_bytes());
        data
    }

    #[test]
    fn a_statement_that_names_our_tables_may_be_anybodys_message() {
        let insert = "INSERT INTO queue_message (body) VALUES (1)";
        let everybody = Heard::Messages(Rung::Everybody);
        assert_eq!(statement(&query("shop", insert), "shop", false), everybody);
        assert_eq!(statement(&query("SHOP", insert), "shop", false), everybody);
        let from_outside = "INSERT INTO shop.queue_message (body) VALUES (1)";
        assert_eq!(statement(&query("other", from_outside), "shop", false), everybody);
        assert_eq!(statement(&query("other", insert), "shop", false), Heard::Nothing);
        let named = "queue_message";
        assert_eq!(statement(&query(named, "BEGIN"), named, false), Heard::Nothing);
        assert_eq!(statement(&query("", "XA COMMIT X'31'"), "shop", false), everybody);
        assert_eq!(statement(&query("shop", "\u{1}"), "shop", true), everybody);
        assert_eq!(statement(&[0; 5], "shop", false), Heard::Nothing);
    }

    #[test]
    fn a_tables_number_has_six_bytes() {
        assert_eq!(table_id(&[1, 1, 0, 0, 0, 0, 9]), Some(257));
        assert_eq!(table_id(&[1, 1]), None);
    }
}
