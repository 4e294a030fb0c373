//! The inbox of a stream: its rows in the hot table, until the sequencer moves them to the log.

use chrono::{DateTime, Utc};

use crate::connection::{Connection, Statement, row};
use crate::model::{MsgId, Offset, PartitionNo, Priority, Result, RowId, TopicId};
use crate::store::moves::equal;
use crate::store::row_set::{KEYS, RowSet};
use crate::store::{execute, execute_surely, load_surely};

/// A committed message that has no offset yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsequenced {
    /// Its priority.
    pub priority: Priority,
    /// Its row.
    pub row: RowId,
    /// The partition, chosen by its key, or by its row if it has no key.
    pub partition: PartitionNo,
    /// The bytes of its body.
    pub bytes: u64,
}

/// Rows of one priority that go to one partition, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The stream.
    pub stream: TopicId,
    /// Their priority.
    pub priority: Priority,
    /// The rows.
    pub rows: RowSet,
    /// The bytes of their bodies.
    pub bytes: u64,
}

/// PRIMARY, forced, plain, one dive: returns whether no message waits for its offset.
pub async fn is_empty(conn: &mut impl Connection, stream: TopicId) -> Result<bool> {
    let statement = Statement::new(
        "SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         ORDER BY topic_id, priority, id LIMIT 1",
    )
    .number(stream.0);
    let rows: Vec<RowId> = load_surely(conn, "look into the inbox", statement).await?;
    Ok(rows.is_empty())
}

/// PRIMARY, forced, plain, so that all rows are of one snapshot: when a later message of a producer
/// is among them, so are its earlier ones (history H14). Reads up to `limit` rows, in order, of a
/// stream with this many partitions.
pub async fn scan(
    conn: &mut impl Connection,
    stream: TopicId,
    partitions: u32,
    limit: u32,
) -> Result<Vec<Unsequenced>> {
    let statement = Statement::new(
        "SELECT priority, id, \
         CAST(COALESCE(CRC32(ordering_key), id) MOD ? AS UNSIGNED) AS partition_no, \
         CAST(LENGTH(body) + COALESCE(LENGTH(headers), 0) AS SIGNED) AS bytes \
         FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(partitions)
    .number(stream.0)
    .number(limit);
    load_surely(conn, "sequence: read the inbox", statement).await
}

row! { Unsequenced { priority, row, partition, bytes } }

/// PRIMARY, forced: copies rows to the end of a partition, in order, from `base` on.
///
/// Consecutive rows get their offset by subtraction: no other row can lie within. Others are looked
/// up one by one in a numbered list.
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn append(
    conn: &mut impl Connection,
    run: &Run,
    partition: PartitionNo,
    base: Offset,
) -> Result<()> {
    const OPERATION: &str = "sequence: append to the log";
    const INTO: &str = "INSERT INTO queue_log (topic_id, partition_no, offset_no, msg_id, \
         enqueued_at, sequenced_at, expires_at, ordering_key, biz_id, headers, body) ";
    const CARRIED: &str = "m.msg_id, m.enqueued_at, UTC_TIMESTAMP(6), m.expires_at, \
         m.ordering_key, m.biz_id, m.headers, m.body";
    let Some((lo, hi)) = run.rows.bounds() else { return Ok(()) };
    let (stream, priority) = (run.stream.0, run.priority.stored());
    let is_consecutive = hi.0 - lo.0 == run.rows.len() as u64 - 1;
    let appended = if is_consecutive {
        let statement = Statement::new(format!(
            "{INTO}SELECT m.topic_id, ?, m.id - ? + ?, {CARRIED} \
             FROM queue_message m FORCE INDEX (PRIMARY) \
             WHERE m.topic_id = ? AND m.priority = ? AND m.id BETWEEN ? AND ? ORDER BY m.id"
        ))
        .number(partition.0)
        .number(lo.0)
        .number(base.0)
        .number(stream)
        .number(priority)
        .number(lo.0)
        .number(hi.0);
        execute_surely(conn, OPERATION, statement).await?
    } else {
        let statement = Statement::new(format!(
            "{INTO}SELECT m.topic_id, ?, k.place - 1 + ?, {CARRIED} \
             FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS \
             (place FOR ORDINALITY, id BIGINT UNSIGNED PATH '$')) k \
             STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) \
             ON m.topic_id = ? AND m.priority = ? AND m.id = k.id"
        ))
        .number(partition.0)
        .number(base.0)
        .bytes(run.rows.json())
        .number(stream)
        .number(priority);
        execute(conn, OPERATION, statement).await?
    };
    equal(OPERATION, run.rows.len(), appended)
}

/// A message of the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InInbox {
    pub(crate) msg_id: MsgId,
    pub(crate) enqueued_at: DateTime<Utc>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) biz_id: Option<Vec<u8>>,
    /// In their stored form.
    pub(crate) headers: Option<Vec<u8>>,
    pub(crate) body: Vec<u8>,
}

row! { InInbox { msg_id, enqueued_at, expires_at, key, biz_id, headers, body } }

/// PRIMARY, forced, plain: reads rows, in order.
///
/// # Errors
/// [`crate::Error::Counts`].
pub(crate) async fn read(conn: &mut impl Connection, run: &Run) -> Result<Vec<InInbox>> {
    const OPERATION: &str = "sequence: read messages of the inbox";
    const COLUMNS: &str = "SELECT m.msg_id, m.enqueued_at, m.expires_at, m.ordering_key, \
         m.biz_id, m.headers, m.body FROM ";
    let Some((lo, hi)) = run.rows.bounds() else { return Ok(Vec::new()) };
    let is_consecutive = hi.0 - lo.0 == run.rows.len() as u64 - 1;
    let place = [u64::from(run.stream.0), u64::from(run.priority.stored())];
    let statement = if is_consecutive {
        Statement::new(format!(
            "{COLUMNS}queue_message m FORCE INDEX (PRIMARY) \
             WHERE m.topic_id = ? AND m.priority = ? AND m.id BETWEEN ? AND ? ORDER BY m.id"
        ))
        .numbers(place)
        .numbers([lo.0, hi.0])
    } else {
        Statement::new(format!(
            "{COLUMNS}{KEYS} STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) \
             ON m.topic_id = ? AND m.priority = ? AND m.id = k.id ORDER BY m.id"
        ))
        .bytes(run.rows.json())
        .numbers(place)
    };
    let rows: Vec<InInbox> = load_surely(conn, OPERATION, statement).await?;
    equal(OPERATION, run.rows.len(), rows.len())?;
    Ok(rows)
}

/// PRIMARY, forced: removes rows that have been copied to the log, key by key: given a range, MySQL
/// 9.7 may read, and lock, all of a small inbox, and then waits for a producer that has not
/// committed (*run*: until 1205).
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn remove(conn: &mut impl Connection, run: &Run) -> Result<()> {
    const OPERATION: &str = "sequence: empty the inbox";
    let statement = Statement::new(format!(
        "DELETE m FROM {KEYS} STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) \
         ON m.topic_id = ? AND m.priority = ? AND m.id = k.id"
    ))
    .bytes(run.rows.json())
    .number(run.stream.0)
    .number(run.priority.stored());
    equal(OPERATION, run.rows.len(), execute(conn, OPERATION, statement).await?)
}
