//! Messages whose time has not come, one by one.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, TinyInt, Unsigned};
use serde::Serialize;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Moment, MsgId, Priority, Result, RowId, TopicId};
use crate::store::row_set::RowSet;
use crate::store::{execute_surely, load, load_surely};

/// A message whose time has not come, as people look at it.
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
    /// Failed handlings so far: above zero it waits to be tried again.
    pub failures: u32,
    /// Business idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biz_id: Option<String>,
    /// Why it failed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

/// KEY (`msg_id`), forced, plain: the rows of the message; one, unless its sender has given several
/// messages one id. A locking read of what is not there would lock the place where it would be, at
/// the end of the index, where everybody inserts (REPEATABLE READ, both servers' default).
pub async fn find(conn: &mut impl Connection, topic: TopicId, id: MsgId) -> Result<RowSet> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
    let statement = Statement::new(
        "SELECT id FROM queue_scheduled FORCE INDEX (queue_scheduled_msg) \
         WHERE msg_id = ? AND topic_id = ?",
    )
    .bytes(id.as_bytes().to_vec())
    .number(topic.0);
    const OPERATION: &str = "look for the scheduled message";
    let rows: Vec<Row> = load_surely(conn, OPERATION, statement).await?;
    Ok(rows.into_iter().map(|row| RowId(row.id)).collect())
}

/// UNIQUE (id), forced: gives scheduled messages another time; how many were there.
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

/// KEY (`topic_id`), whose entries lie in the order of the primary key: the topic's next messages,
/// at most `limit`.
pub async fn list(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<Vec<Waiting>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Binary)]
        msg_id: Vec<u8>,
        #[diesel(sql_type = Unsigned<TinyInt>)]
        priority: u8,
        #[diesel(sql_type = Datetime)]
        due_at: NaiveDateTime,
        #[diesel(sql_type = Datetime)]
        enqueued_at: NaiveDateTime,
        #[diesel(sql_type = Unsigned<Integer>)]
        failures: u32,
        #[diesel(sql_type = Nullable<Binary>)]
        biz_id: Option<Vec<u8>>,
        #[diesel(sql_type = Nullable<Binary>)]
        last_error: Option<Vec<u8>>,
    }
    let statement = Statement::new(
        "SELECT id, msg_id, priority, due_at, enqueued_at, failures, biz_id, last_error \
         FROM queue_scheduled FORCE INDEX (queue_scheduled_topic) WHERE topic_id = ? \
         ORDER BY due_at, id LIMIT ?",
    )
    .number(topic.0)
    .number(limit);
    let rows: Vec<Row> = load(conn, "list the scheduled messages", statement).await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(rows
        .into_iter()
        .map(|row| Waiting {
            row: RowId(row.id),
            msg_id: MsgId::from_bytes(&row.msg_id).unwrap_or_else(|| MsgId(uuid::Uuid::nil())),
            priority: Priority::from_stored(row.priority),
            due_at: row.due_at.and_utc(),
            enqueued_at: row.enqueued_at.and_utc(),
            failures: row.failures,
            biz_id: row.biz_id.map(text),
            last_error: row.last_error.map(text),
        })
        .collect())
}
