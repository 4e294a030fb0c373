//! Messages into the hot table.

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};

use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::error::Result;
use crate::message::NewMessage;
use crate::topic::TopicId;

/// The most rows in one INSERT: beyond it throughput gains nothing and the packet only grows.
pub const ROWS_PER_INSERT: usize = 1000;

/// Bytes of a row beside body, headers and keys, rounded up: for adding up a packet's size.
const ROW_OVERHEAD: usize = 128;

const INSERT: &str = "INSERT INTO queue_message \
     (topic_id, priority, msg_id, enqueued_at, ordering_key, biz_id, headers, body) VALUES ";
const ROW: &str = "(?, ?, ?, UTC_TIMESTAMP(6), ?, ?, ?, ?)";

/// PRIMARY: inserts the messages, in order, as one statement.
///
/// # Errors
/// Headers that cannot be stored; a database failure.
pub async fn insert(
    conn: &mut impl Connection,
    topic: TopicId,
    messages: &[NewMessage],
) -> Result<()> {
    let mut rows = format!("{ROW}, ").repeat(messages.len());
    rows.truncate(rows.len().saturating_sub(2));
    let once = !messages.len().is_power_of_two();
    let mut statement = Statement::new(INSERT).sql(&rows).once(once);
    for message in messages {
        statement = statement
            .number(topic.0)
            .number(message.priority.stored())
            .bytes(message.msg_id.as_bytes())
            .maybe_bytes(message.key.as_deref())
            .maybe_bytes(message.biz_id.as_deref())
            .maybe_bytes(message.headers.to_stored()?)
            .bytes(message.body.as_slice());
    }
    execute(conn, "enqueue", statement).await?;
    Ok(())
}

/// What the text of an INSERT takes beside its rows, and the protocol beside the text.
const STATEMENT_OVERHEAD: u64 = 1024;

/// No index: how many bytes of rows the server takes in one packet.
///
/// # Errors
/// A database failure.
pub async fn packet_limit(conn: &mut impl Connection) -> Result<usize> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        bytes: u64,
    }
    let statement = Statement::new("SELECT @@max_allowed_packet AS bytes");
    let rows: Vec<Row> = load(conn, "read the server's packet size", statement).await?;
    let bytes = rows.first().map_or(0, |row| row.bytes.saturating_sub(STATEMENT_OVERHEAD));
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// About how many bytes `message` takes in the packet.
pub(crate) fn packet_share(message: &NewMessage) -> usize {
    let optional = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
    let headers: usize =
        message.headers.0.iter().map(|(name, value)| name.len() + 2 * value.len()).sum();
    ROW_OVERHEAD + message.body.len() + optional(&message.key) + optional(&message.biz_id) + headers
}
