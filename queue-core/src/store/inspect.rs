//! What operators inspect: depth, age, the messages themselves. Nothing here scans a backlog:
//! counts stop at a cap.

use chrono::{DateTime, Utc};
use diesel::deserialize;
use diesel::mysql::Mysql;
use diesel::row::Row;
use serde::Serialize;

use super::moment::maybe_age;
use super::{Statement, execute_surely, load, load_surely};
use crate::connection::{Columns, Connection, FromRow, row};
use crate::model::{Headers, MsgId, Priority, Result, RowId, TopicId};

/// Where counts of depth stop: 10 k rows take 2.6 ms where an exact count of 10 M takes 1.7 s.
pub const DEPTH_CAP: u64 = 10_000;

/// What a topic holds, each count at most [`DEPTH_CAP`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Depth {
    /// Waiting to be claimed, or claimed: rows of the hot table.
    pub unsettled: u64,
    /// Claimed, by the claims' own count when they were made: an upper bound.
    pub claimed: u64,
    /// Waiting to become ready.
    pub scheduled: u64,
    /// Dead letters.
    pub dead: u64,
    /// How long the oldest row has been there, in milliseconds; `None` when there is none.
    pub oldest_age_ms: Option<u64>,
}

/// PRIMARY of the messages and claims, the KEYs that begin with `topic_id` of the scheduled and the
/// dead: counts what the topic holds; every count stops at the cap, and the oldest row takes a dive
/// for each priority.
pub async fn depth(conn: &mut impl Connection, topic: TopicId) -> Result<Depth> {
    const DIVE: &str = "(SELECT enqueued_at FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? ORDER BY topic_id, priority, id LIMIT 1)";
    let mut oldest = format!("{DIVE} UNION ALL ").repeat(Priority::all().count());
    oldest.push_str(&DIVE.replace("priority = ?", "priority >= ?"));
    let sql = format!(
        "SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM queue_message FORCE INDEX (PRIMARY) \
          WHERE topic_id = ? LIMIT {DEPTH_CAP}) m) AS unsettled, \
         (SELECT CAST(COALESCE(SUM(n), 0) AS SIGNED) FROM queue_claim WHERE topic_id = ?) AS claimed, \
         (SELECT COUNT(*) FROM (SELECT 1 FROM queue_scheduled WHERE topic_id = ? \
          LIMIT {DEPTH_CAP}) s) AS scheduled, \
         (SELECT COUNT(*) FROM (SELECT 1 FROM queue_dead WHERE topic_id = ? LIMIT {DEPTH_CAP}) d) AS dead, \
         (SELECT TIMESTAMPDIFF(MICROSECOND, MIN(enqueued_at), UTC_TIMESTAMP(6)) DIV 1000 \
          FROM ({oldest}) o) AS oldest_age_ms"
    );
    let mut statement = Statement::new(sql).numbers([u64::from(topic.0); 4]);
    for priority in Priority::all().chain([Priority::FIRST.suspect()]) {
        statement = statement.number(topic.0).number(priority.stored());
    }
    let rows: Vec<Depth> = load(conn, "read the topic's depth", statement).await?;
    Ok(rows.first().copied().unwrap_or_default())
}

row! { Depth { unsettled, claimed, scheduled, dead, oldest_age_ms: maybe_age } }

/// A message as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Peeked {
    /// Its row.
    pub row: RowId,
    /// The message id.
    pub msg_id: MsgId,
    /// Its priority.
    pub priority: Priority,
    /// Whether it is claimed alone because workers crashed on it.
    pub suspect: bool,
    /// The connection that claimed it; `None` when it is ready.
    pub conn_id: Option<u64>,
    /// How often it has been claimed.
    pub delivery_no: u32,
    /// Failed handlings so far.
    pub failures: u32,
    /// Server time at which it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// Ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Business idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biz_id: Option<String>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// The body.
    #[serde(skip)]
    pub body: Vec<u8>,
}

/// PRIMARY: reads the first `limit` messages of the topic in order of handling; locks nothing.
pub async fn peek(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<Vec<Peeked>> {
    let statement = Statement::new(
        "SELECT id, msg_id, priority, conn_id, delivery_no, failures, enqueued_at, ordering_key, \
         biz_id, LEFT(headers, 65537) AS headers, body FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(topic.0)
    .number(limit);
    load(conn, "peek", statement).await
}

impl FromRow for Peeked {
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> deserialize::Result<Self> {
        let (row, msg_id, priority): (RowId, MsgId, Priority) = columns.take()?;
        Ok(Self {
            row,
            msg_id,
            priority: priority.plain(),
            suspect: priority.is_suspect(),
            conn_id: Some(columns.take()?).filter(|id| *id != 0),
            delivery_no: columns.take()?,
            failures: columns.take()?,
            enqueued_at: columns.take()?,
            key: columns.take()?,
            biz_id: columns.take()?,
            headers: columns.take()?,
            body: columns.take()?,
        })
    }
}

/// PRIMARY, and KEYs of the others: removes up to `limit` messages of a topic from one table, for
/// deleting the topic. Claimed rows are removed too, which fences their workers.
pub async fn purge_some(
    conn: &mut impl Connection,
    table: MessageTable,
    topic: TopicId,
    limit: u32,
) -> Result<usize> {
    let sql = match table {
        MessageTable::Ready => "DELETE FROM queue_message WHERE topic_id = ? LIMIT ?",
        MessageTable::Scheduled => "DELETE FROM queue_scheduled WHERE topic_id = ? LIMIT ?",
        MessageTable::Dead => "DELETE FROM queue_dead WHERE topic_id = ? LIMIT ?",
        MessageTable::Archive => "DELETE FROM queue_archive WHERE topic_id = ? LIMIT ?",
    };
    let statement = Statement::new(sql).number(topic.0).number(limit);
    execute_surely(conn, "purge the topic", statement).await
}

/// PRIMARY of the messages, the KEYs that begin with `topic_id` of the others: returns whether the
/// table holds a message of the topic. It locks the row, and so waits for transactions that have
/// written one: a plain read would miss what they are about to commit.
///
/// # Errors
/// A database failure; a lock wait while such a transaction is open.
pub async fn holds(
    conn: &mut impl Connection,
    table: MessageTable,
    topic: TopicId,
) -> Result<bool> {
    let (table, key) = table.by_topic();
    let statement = Statement::new(format!(
        "SELECT id AS _id FROM {table} FORCE INDEX ({key}) WHERE topic_id = ? LIMIT 1 FOR UPDATE"
    ));
    let statement = statement.number(topic.0);
    let rows: Vec<RowId> = load_surely(conn, "look whether the topic is empty", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY of the messages, the KEYs that begin with `topic_id` of the others: finds the lowest
/// topic above `after` of which the table has a message.
pub async fn next_topic(
    conn: &mut impl Connection,
    table: MessageTable,
    after: TopicId,
) -> Result<Option<TopicId>> {
    let (table, key) = table.by_topic();
    let statement = Statement::new(format!(
        "SELECT topic_id FROM {table} FORCE INDEX ({key}) WHERE topic_id > ? \
         ORDER BY topic_id LIMIT 1"
    ));
    let statement = statement.number(after.0);
    let rows: Vec<TopicId> = load(conn, "look for messages without a topic", statement).await?;
    Ok(rows.first().copied())
}

/// The tables that hold messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageTable {
    /// Ready and claimed.
    Ready,
    /// Waiting for their due time.
    Scheduled,
    /// Dead letters.
    Dead,
    /// Finished messages that the topic keeps.
    Archive,
}

impl MessageTable {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Scheduled, Self::Dead, Self::Archive];

    /// Returns the table, and its index that begins with the topic.
    fn by_topic(self) -> (&'static str, &'static str) {
        match self {
            Self::Ready => ("queue_message", "PRIMARY"),
            Self::Scheduled => ("queue_scheduled", "queue_scheduled_topic"),
            Self::Dead => ("queue_dead", "queue_dead_topic"),
            Self::Archive => ("queue_archive", "queue_archive_topic"),
        }
    }

    /// Returns its name for users and scripts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Scheduled => "scheduled",
            Self::Dead => "dead",
            Self::Archive => "archive",
        }
    }
}
