//! Messages that are not due yet, one by one.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{Moment, MsgId, Priority, Result, RowId, TopicId};
use crate::store::row_set::RowSet;
use crate::store::{execute_surely, load, load_surely};

/// A message that is not due yet, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// Its row among the scheduled.
    pub row: RowId,
    /// The message id.
    pub msg_id: MsgId,
    /// Its priority.
    pub priority: Priority,
    /// Server time at which it becomes ready.
    pub due_at: DateTime<Utc>,
    /// Server time at which it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// Failed handlings so far: if above zero, it is a retry.
    pub failures: u32,
    /// Business idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biz_id: Option<String>,
    /// Its last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// KEY (`msg_id`), forced, plain: finds the rows of the message; one, unless its sender gave
/// several messages one id. A locking read of a missing key would lock the gap where it would be,
/// at the end of the index, where every producer inserts (REPEATABLE READ, both servers' default).
pub async fn find(conn: &mut impl Connection, topic: TopicId, id: MsgId) -> Result<RowSet> {
    let statement = Statement::new(
        "SELECT id FROM queue_scheduled FORCE INDEX (queue_scheduled_msg) \
         WHERE msg_id = ? AND topic_id = ?",
    )
    .bytes(id.as_bytes().to_vec())
    .number(topic.0);
    const OPERATION: &str = "look for the scheduled message";
    let rows: Vec<RowId> = load_surely(conn, OPERATION, statement).await?;
    Ok(rows.into_iter().collect())
}

/// UNIQUE (id), forced: changes the due time of scheduled messages; returns how many were there.
pub async fn reschedule(
    conn: &mut impl Connection,
    rows: &RowSet,
    deliver: Moment,
) -> Result<usize> {
    let (condition, ids) = rows.condition();
    let statement = Statement::new(format!(
        "UPDATE queue_scheduled FORCE INDEX (queue_scheduled_id) SET due_at = {} WHERE {condition}",
        deliver.due_sql()
    ))
    .number(deliver.micros())
    .numbers(ids);
    execute_surely(conn, "reschedule", statement).await
}

/// KEY (`topic_id`), whose entries lie in the order of the primary key: reads the topic's next
/// messages, at most `limit`.
pub async fn list(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<Vec<Waiting>> {
    let statement = Statement::new(
        "SELECT id, msg_id, priority, due_at, enqueued_at, failures, biz_id, last_error \
         FROM queue_scheduled FORCE INDEX (queue_scheduled_topic) WHERE topic_id = ? \
         ORDER BY due_at, id LIMIT ?",
    )
    .number(topic.0)
    .number(limit);
    load(conn, "list the scheduled messages", statement).await
}

row! {
    Waiting { row, msg_id, priority, due_at, enqueued_at, failures, biz_id, last_error }
}
