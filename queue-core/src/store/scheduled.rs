//! Messages that become ready later: retries now, delays with the delivery guarantees.

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Integer, TinyInt, Unsigned};

use super::moves::equal;
use super::row_set::{KEYS, RowSet};
use super::{Statement, execute, first_inserted, load};
use crate::connection::Connection;
use crate::error::Result;
use crate::message::{Priority, RowId};
use crate::topic::TopicId;

/// A due message, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its row among the scheduled.
    pub row: RowId,
    /// Its topic.
    pub topic: TopicId,
    /// Its priority.
    pub priority: Priority,
}

/// PRIMARY (`due_at`, id), plain: whether any message is due. One statement instead of the three of
/// a transaction that finds nothing.
///
/// # Errors
/// A database failure.
pub async fn any_due(conn: &mut impl Connection) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>, column_name = "id")]
        _id: u64,
    }
    let statement = Statement::new(
        "SELECT id FROM queue_scheduled FORCE INDEX (PRIMARY) \
         WHERE due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, id LIMIT 1",
    );
    let rows: Vec<Row> = load(conn, "promote: look for due messages", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY (`due_at`, id): locks up to `limit` due messages, passing over those that another
/// promoter has locked.
///
/// # Errors
/// A database failure.
pub async fn lock_due(conn: &mut impl Connection, limit: u32) -> Result<Vec<Due>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Unsigned<Integer>)]
        topic_id: u32,
        #[diesel(sql_type = Unsigned<TinyInt>)]
        priority: u8,
    }
    let statement = Statement::new(
        "SELECT id, topic_id, priority FROM queue_scheduled FORCE INDEX (PRIMARY) \
         WHERE due_at <= UTC_TIMESTAMP(6) ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED",
    )
    .number(limit);
    let rows: Vec<Row> = load(conn, "promote: lock due messages", statement).await?;
    Ok(rows
        .into_iter()
        .map(|row| Due {
            row: RowId(row.id),
            topic: TopicId(row.topic_id),
            priority: Priority::from_stored(row.priority),
        })
        .collect())
}

/// KEY (id), forced: moves locked rows, at most 512, to the hot table, in order of their due time,
/// and returns the lowest row they got there.
///
/// # Errors
/// [`crate::Error::Counts`]; a database failure.
pub async fn promote(conn: &mut impl Connection, rows: &RowSet) -> Result<RowId> {
    const CARRIED: &str = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, \
         enqueued_at, ordering_key, biz_id, headers, history, body";
    const OPERATION: &str = "promote";
    let (condition, ids) = rows.condition();
    let insert = Statement::new(format!(
        "INSERT INTO queue_message ({CARRIED}) SELECT {CARRIED} FROM queue_scheduled \
         FORCE INDEX (queue_scheduled_id) WHERE {condition} ORDER BY due_at, id"
    ))
    .numbers(ids);
    equal(OPERATION, rows.len(), execute(conn, OPERATION, insert).await?)?;
    let first = RowId(first_inserted(conn, OPERATION).await?);
    let delete = Statement::new(format!(
        "DELETE s FROM {KEYS} STRAIGHT_JOIN queue_scheduled s FORCE INDEX (queue_scheduled_id) \
         ON s.id = k.id"
    ))
    .bytes(rows.json());
    equal(OPERATION, rows.len(), execute(conn, OPERATION, delete).await?)?;
    Ok(first)
}
