//! Enqueuing into the hot table.

use super::lane::{self, LaneId};
use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::model::{Moment, NewMessage, Result, TopicId};

/// The most rows in one INSERT: more would not raise throughput, only enlarge the packet.
pub const ROWS_PER_INSERT: usize = 1000;

/// Bytes of a row besides body, headers and keys, rounded up, to estimate a packet's size.
const ROW_OVERHEAD: usize = 128;

/// PRIMARY: inserts the messages, in order, as one statement.
///
/// # Errors
/// Headers that cannot be stored.
pub async fn insert(
    conn: &mut impl Connection,
    topic: TopicId,
    messages: &[NewMessage],
) -> Result<()> {
    tracing::trace!(step = "insert");
    execute(conn, "enqueue", statement(topic, messages, None)?).await?;
    Ok(())
}

/// PRIMARY: inserts the messages, in order, and advances the lane from `seq - 1` to `seq`, in one
/// statement. The server refuses the whole statement if the lane is at another number. If the
/// lane's row is gone, the statement creates it again.
///
/// # Errors
/// As [`insert`]; a database failure if the lane is at another number.
pub async fn insert_in_lane(
    conn: &mut impl Connection,
    topic: TopicId,
    messages: &[NewMessage],
    lane: LaneId,
    seq: u64,
) -> Result<()> {
    tracing::trace!(step = "insert_in_lane");
    execute(conn, "enqueue", statement(topic, messages, Some((lane, seq)))?).await?;
    Ok(())
}

fn statement(
    topic: TopicId,
    messages: &[NewMessage],
    lane: Option<(LaneId, u64)>,
) -> Result<Statement<'_>> {
    let shape = Shape::of(messages);
    let kept = (messages.is_empty() || is_kept(messages.len())) && shape.is_one_text(messages);
    let mut statement = Statement::new(text(messages, shape, lane.is_some())).once(!kept);
    for message in messages {
        statement = statement
            .number(topic.0)
            .number(message.priority.stored())
            .bytes(message.msg_id.as_bytes());
        statement = shape.bind(statement, message)?;
    }
    if let Some((lane, seq)) = lane {
        let name = lane.name.as_bytes();
        statement = statement
            .number(lane.kind.priority())
            .number(lane.row.0)
            .number(seq)
            .bytes(name.to_vec())
            .bytes(name.to_vec())
            .number(seq.saturating_sub(1));
    }
    Ok(statement)
}

/// Which columns the INSERT of some messages has. Most messages have neither keys nor headers nor
/// an expiry, and each value costs client and server. Each shape includes the columns of the one
/// before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Bare,
    Keyed,
    Expiring,
    Unique,
}

impl Shape {
    pub(super) fn of(messages: &[NewMessage]) -> Self {
        let is_bare = |message: &NewMessage| {
            message.key.is_none() && message.biz_id.is_none() && message.headers.0.is_empty()
        };
        if messages.iter().any(|message| message.key_until_done().is_some()) {
            Self::Unique
        } else if messages.iter().any(|message| message.expires.is_some()) {
            Self::Expiring
        } else if messages.iter().all(is_bare) {
            Self::Bare
        } else {
            Self::Keyed
        }
    }

    /// Returns whether the statement text depends only on the number of messages.
    pub(super) fn is_one_text(self, messages: &[NewMessage]) -> bool {
        let text = |message: &NewMessage| message.expires.map(Moment::sql);
        matches!(self, Self::Bare | Self::Keyed)
            || messages.windows(2).all(|two| text(&two[0]) == text(&two[1]))
    }

    pub(super) fn columns(self) -> &'static str {
        match self {
            Self::Bare => "",
            Self::Keyed => "ordering_key, biz_id, headers, ",
            Self::Expiring => "ordering_key, biz_id, headers, expires_at, ",
            Self::Unique => "ordering_key, biz_id, headers, expires_at, unique_key, ",
        }
    }

    /// Appends the rest of a row of VALUES: these columns and the body.
    pub(super) fn row(self, text: &mut String, message: &NewMessage) {
        if self != Self::Bare {
            text.push_str("?, ?, ?, ");
        }
        if matches!(self, Self::Expiring | Self::Unique) {
            text.push_str(message.expires.map_or("NULL", Moment::sql));
            text.push_str(", ");
        }
        if self == Self::Unique {
            text.push_str("?, ");
        }
        text.push_str("?)");
    }

    /// Binds the values of such a row.
    pub(super) fn bind<'m>(
        self,
        mut statement: Statement<'m>,
        message: &'m NewMessage,
    ) -> Result<Statement<'m>> {
        if self != Self::Bare {
            statement = statement
                .maybe_bytes(message.key.as_deref())
                .maybe_bytes(message.biz_id.as_deref())
                .maybe_bytes(message.headers.to_stored()?)
                .numbers(message.expires.map(Moment::micros));
        }
        if self == Self::Unique {
            statement = statement.maybe_bytes(message.key_until_done());
        }
        Ok(statement.bytes(message.body.as_slice()))
    }

    /// Fills these columns with NULL for a lane's row.
    fn of_lane(self) -> &'static str {
        match self {
            Self::Bare => "",
            Self::Keyed => "NULL, NULL, NULL, ",
            Self::Expiring => "NULL, NULL, NULL, NULL, ",
            Self::Unique => "NULL, NULL, NULL, NULL, NULL, ",
        }
    }
}

/// Builds the INSERT of the messages. A lane's row sets its id explicitly, so each message's row
/// must have a NULL id.
fn text(messages: &[NewMessage], shape: Shape, in_lane: bool) -> String {
    let numbers = if in_lane { ["id, claim_no, ", "NULL, 0, "] } else { [""; 2] };
    let mut text = format!(
        "INSERT INTO queue_message (topic_id, priority, {}msg_id, enqueued_at, {}body) VALUES ",
        numbers[0],
        shape.columns()
    );
    text.reserve(80 * messages.len() + 512);
    for message in messages {
        text.push_str("(?, ?, ");
        text.push_str(numbers[1]);
        text.push_str("?, UTC_TIMESTAMP(6), ");
        shape.row(&mut text, message);
        text.push_str(", ");
    }
    if in_lane {
        text.push_str(lane::ROW);
        text.push_str(shape.of_lane());
        text.push_str("'')");
        text.push_str(lane::ADVANCE);
    } else {
        text.truncate(text.len() - 2);
    }
    text
}

/// Returns the largest number of messages up to `n` whose INSERT stays prepared; 0 for 0.
#[must_use]
pub fn rows_kept_at_most(n: usize) -> usize {
    (1..=n.min(ROWS_PER_INSERT)).rev().find(|rows| is_kept(*rows)).unwrap_or(0)
}

/// Returns whether the INSERT of this many messages stays prepared: the batch sizes that users
/// usually choose, and few others. Each row of a prepared statement costs the server some 4 KB.
pub(super) fn is_kept(messages: usize) -> bool {
    let round = [1, 10, 100, 1000].map(|power| [1, 2, 5].map(|digit| digit * power));
    messages.is_power_of_two()
        || messages <= ROWS_PER_INSERT && round.as_flattened().contains(&messages)
}

/// Bytes of the INSERT's text besides its rows, and of the protocol besides the text.
const STATEMENT_OVERHEAD: u64 = 1024;

/// No index: reads how many bytes of rows the server takes in one packet.
pub async fn packet_limit(conn: &mut impl Connection) -> Result<usize> {
    let statement = Statement::new("SELECT @@max_allowed_packet AS bytes");
    let rows: Vec<u64> = load(conn, "read the server's packet size", statement).await?;
    let bytes = rows.first().map_or(0, |bytes| bytes.saturating_sub(STATEMENT_OVERHEAD));
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Estimates how many bytes `message` takes in the packet.
pub(crate) fn packet_share(message: &NewMessage) -> usize {
    let optional = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let headers: usize =
        message.headers.0.iter().map(|(name, value)| name.len() + 2 * value.len()).sum();
    let keys = optional(&message.key) + optional(&message.biz_id);
    let unique = message.key_until_done().map_or(0, <[u8]>::len);
    ROW_OVERHEAD + message.body.len() + keys + unique + headers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn round_numbers_and_powers_of_two_stay_prepared() {
        let kept: Vec<_> = (1..=2000).filter(|n| is_kept(*n)).collect();
        let (round, powers) = ([5, 10, 20, 50, 100, 200, 500, 1000], (0..11).map(|at| 1 << at));
        let mut expected: Vec<usize> = powers.chain(round).collect();
        expected.sort_unstable();
        assert_eq!(kept, expected);
        assert_eq!([0, 1, 3, 499, 999, 9999].map(rows_kept_at_most), [0, 1, 2, 256, 512, 1000]);
    }

    #[test]
    fn columns_that_no_message_needs_are_left_out() {
        let bare = "INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, body) \
             VALUES (?, ?, ?, UTC_TIMESTAMP(6), ?), (?, ?, ?, UTC_TIMESTAMP(6), ?)";
        let messages = [NewMessage::new("a"), NewMessage::new("b")];
        assert_eq!(text(&messages, Shape::of(&messages), false), bare);
        let full = "INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, \
             ordering_key, biz_id, headers, body) \
             VALUES (?, ?, ?, UTC_TIMESTAMP(6), ?, ?, ?, ?)";
        let messages = [NewMessage::new("b").with_key("k")];
        assert_eq!(text(&messages, Shape::of(&messages), false), full);
        let expiring = "INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, \
             ordering_key, biz_id, headers, expires_at, body) VALUES (?, ?, ?, UTC_TIMESTAMP(6), \
             ?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, ?), (?, ?, ?, UTC_TIMESTAMP(6), \
             ?, ?, ?, NULL, ?)";
        let messages =
            [NewMessage::new("a").with_expiry(Duration::from_secs(1)), NewMessage::new("b")];
        assert_eq!(text(&messages, Shape::of(&messages), false), expiring);
        assert!(!Shape::Expiring.is_one_text(&messages));
    }
}
