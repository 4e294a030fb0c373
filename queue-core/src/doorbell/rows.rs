//! The topics of one event's rows, found without reading the rows: each value is only measured, so
//! bodies are skipped and never copied.

use std::collections::BTreeSet;

use mysql_async::binlog::events::{RowsEventData, TableMapEvent};
use mysql_async::consts::ColumnType;

use crate::model::TopicId;

/// The length of a column's value in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    Fixed(usize),
    /// This many bytes hold the length of what follows.
    Prefixed(usize),
}

/// The topics of inserted rows, whose first column is the topic; `None` if the event is not
/// understood.
pub(super) fn inserted(table: &TableMapEvent<'_>, event: &RowsEventData<'_>) -> Option<Topics> {
    let used: Vec<bool> = event.columns_after_image()?.iter().by_vals().collect();
    let widths = (0..used.len()).filter(|column| used[*column]);
    let widths: Vec<Width> = widths.map(|column| width(table, column)).collect::<Option<_>>()?;
    if !*used.first()? || widths.first() != Some(&Width::Fixed(4)) {
        return None;
    }
    let (mut rest, mut topics) = (event.rows_data(), BTreeSet::new());
    while !rest.is_empty() {
        topics.insert(take_row(&mut rest, &widths)?);
    }
    Some(topics)
}

/// The topic of the first row of an event that changes rows.
pub(super) fn changed(event: &RowsEventData<'_>) -> Option<Topics> {
    let used = event.columns_before_image()?;
    if !*used.first()? {
        return None;
    }
    let nulls = used.count_ones().div_ceil(8);
    let topic = event.rows_data().get(nulls..nulls + 4)?;
    Some([number(topic)?].into())
}

pub(super) type Topics = BTreeSet<TopicId>;

/// Takes one row off the front. Returns the topic in its first column.
fn take_row(rest: &mut &[u8], widths: &[Width]) -> Option<TopicId> {
    let nulls = take(rest, widths.len().div_ceil(8))?;
    let mut topic = None;
    for (column, width) in widths.iter().enumerate() {
        if nulls[column / 8] >> (column % 8) & 1 == 1 {
            continue;
        }
        let length = match width {
            Width::Fixed(length) => *length,
            Width::Prefixed(bytes) => little_endian(take(rest, *bytes)?)?,
        };
        let value = take(rest, length)?;
        if column == 0 {
            topic = number(value);
        }
    }
    topic
}

fn take<'r>(rest: &mut &'r [u8], length: usize) -> Option<&'r [u8]> {
    let (value, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(value)
}

fn number(value: &[u8]) -> Option<TopicId> {
    Some(TopicId(u32::from_le_bytes(value.try_into().ok()?)))
}

fn little_endian(bytes: &[u8]) -> Option<usize> {
    let number = bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    usize::try_from(number).ok()
}

/// The width of the types that the queue's tables use.
fn width(table: &TableMapEvent<'_>, column: usize) -> Option<Width> {
    let meta = table.get_column_metadata(column)?;
    let byte = |at: usize| meta.get(at).map(|byte| usize::from(*byte));
    Some(match table.get_raw_column_type(column).ok()?? {
        ColumnType::MYSQL_TYPE_TINY => Width::Fixed(1),
        ColumnType::MYSQL_TYPE_SHORT => Width::Fixed(2),
        ColumnType::MYSQL_TYPE_LONG => Width::Fixed(4),
        ColumnType::MYSQL_TYPE_LONGLONG => Width::Fixed(8),
        // Five bytes, and half a byte for each digit of the second's fraction.
        ColumnType::MYSQL_TYPE_DATETIME2 => Width::Fixed(5 + byte(0)?.div_ceil(2)),
        ColumnType::MYSQL_TYPE_VARCHAR => {
            Width::Prefixed(if byte(0)? | byte(1)? << 8 < 256 { 1 } else { 2 })
        }
        // A BINARY: its real type, and its length, which is below 256.
        ColumnType::MYSQL_TYPE_STRING if byte(0)? == 254 => Width::Prefixed(1),
        ColumnType::MYSQL_TYPE_BLOB => Width::Prefixed(byte(0)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_measured_and_passed_over() {
        let widths = [Width::Fixed(4), Width::Prefixed(1), Width::Prefixed(4)];
        let mut rows: &[u8] = &[
            0b000, 7, 0, 0, 0, 2, b'a', b'b', 1, 0, 0, 0, b'x', // a key and a body
            0b010, 9, 1, 0, 0, 0, 0, 0, 0, // no key, an empty body
        ];
        assert_eq!(take_row(&mut rows, &widths), Some(TopicId(7)));
        assert_eq!(take_row(&mut rows, &widths), Some(TopicId(265)));
        assert!(rows.is_empty());
    }

    #[test]
    fn a_row_that_is_cut_short_is_not_understood() {
        let widths = [Width::Fixed(4), Width::Prefixed(1)];
        let mut row: &[u8] = &[0, 7, 0, 0, 0, 9, b'a'];
        assert_eq!(take_row(&mut row, &widths), None);
    }
}
