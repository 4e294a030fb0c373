//! What people ask: depth, age, the messages themselves. Nothing here scans a backlog: counts
//! stop at a cap.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, TinyInt, Unsigned};
use serde::Serialize;

use super::{Statement, execute_surely, load, load_surely};
use crate::connection::Connection;
use crate::model::{Headers, MsgId, Priority, Result, RowId, TopicId};

/// How far depths are counted: 10 k rows take 2.6 ms where an exact count of 10 M takes 1.7 s.
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
/// dead; every count stops at the cap, and the oldest row is a dive for each priority.
pub async fn depth(conn: &mut impl Connection, topic: TopicId) -> Result<Depth> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        unsettled: i64,
        #[diesel(sql_type = BigInt)]
        claimed: i64,
        #[diesel(sql_type = BigInt)]
        scheduled: i64,
        #[diesel(sql_type = BigInt)]
        dead: i64,
        #[diesel(sql_type = Nullable<BigInt>)]
        oldest_age_ms: Option<i64>,
    }
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
    let rows: Vec<Row> = load(conn, "read the topic's depth", statement).await?;
    Ok(rows.first().map_or_else(Depth::default, |row| Depth {
        unsettled: row.unsettled.unsigned_abs(),
        claimed: row.claimed.unsigned_abs(),
        scheduled: row.scheduled.unsigned_abs(),
        dead: row.dead.unsigned_abs(),
        oldest_age_ms: row.oldest_age_ms.map(|ms| u64::try_from(ms).unwrap_or(0)),
    }))
}

/// A message as people look at it.
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

/// PRIMARY: the first `limit` messages of the topic in order of handling; locks nothing.
pub async fn peek(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<Vec<Peeked>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Binary)]
        msg_id: Vec<u8>,
        #[diesel(sql_type = Unsigned<TinyInt>)]
        priority: u8,
        #[diesel(sql_type = Unsigned<BigInt>)]
        conn_id: u64,
        #[diesel(sql_type = Unsigned<Integer>)]
        delivery_no: u32,
        #[diesel(sql_type = Unsigned<Integer>)]
        failures: u32,
        #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
        enqueued_at: NaiveDateTime,
        #[diesel(sql_type = Nullable<Binary>)]
        ordering_key: Option<Vec<u8>>,
        #[diesel(sql_type = Nullable<Binary>)]
        biz_id: Option<Vec<u8>>,
        #[diesel(sql_type = Nullable<Binary>)]
        headers: Option<Vec<u8>>,
        #[diesel(sql_type = Binary)]
        body: Vec<u8>,
    }
    let statement = Statement::new(
        "SELECT id, msg_id, priority, conn_id, delivery_no, failures, enqueued_at, ordering_key, \
         biz_id, LEFT(headers, 65537) AS headers, body FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(topic.0)
    .number(limit);
    let rows: Vec<Row> = load(conn, "peek", statement).await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(rows
        .into_iter()
        .map(|row| Peeked {
            row: RowId(row.id),
            msg_id: MsgId::from_bytes(&row.msg_id).unwrap_or_else(|| MsgId(uuid::Uuid::nil())),
            priority: Priority::from_stored(row.priority).plain(),
            suspect: Priority::from_stored(row.priority).is_suspect(),
            conn_id: Some(row.conn_id).filter(|id| *id != 0),
            delivery_no: row.delivery_no,
            failures: row.failures,
            enqueued_at: row.enqueued_at.and_utc(),
            key: row.ordering_key.map(text),
            biz_id: row.biz_id.map(text),
            headers: Headers::from_stored(row.headers.as_deref()),
            body: row.body,
        })
        .collect())
}

/// PRIMARY, and KEYs of the others: removes up to `limit` messages of a topic from one table, for
/// deleting the topic. Claimed rows go too; their owners find themselves fenced.
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

/// PRIMARY of the messages, the KEYs that begin with `topic_id` of the others: whether the table
/// holds a message of the topic. Locks it, and so waits for transactions that have written one: a
/// plain read would pass over what they commit next.
///
/// # Errors
/// A database failure; a lock wait while such a transaction is open.
pub async fn holds(
    conn: &mut impl Connection,
    table: MessageTable,
    topic: TopicId,
) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        _id: u64,
    }
    let (table, key) = table.by_topic();
    let statement = Statement::new(format!(
        "SELECT id AS _id FROM {table} FORCE INDEX ({key}) WHERE topic_id = ? LIMIT 1 FOR UPDATE"
    ));
    let statement = statement.number(topic.0);
    let rows: Vec<Row> = load_surely(conn, "look whether the topic is empty", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY of the messages, the KEYs that begin with `topic_id` of the others: the lowest topic
/// beyond `after` that the table has a message of.
pub async fn next_topic(
    conn: &mut impl Connection,
    table: MessageTable,
    after: TopicId,
) -> Result<Option<TopicId>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<Integer>)]
        topic_id: u32,
    }
    let (table, key) = table.by_topic();
    let statement = Statement::new(format!(
        "SELECT topic_id FROM {table} FORCE INDEX ({key}) WHERE topic_id > ? \
         ORDER BY topic_id LIMIT 1"
    ));
    let statement = statement.number(after.0);
    let rows: Vec<Row> = load(conn, "look for messages without a topic", statement).await?;
    Ok(rows.first().map(|row| TopicId(row.topic_id)))
}

/// The tables that hold messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MessageTable {
    /// Ready and claimed.
    Ready,
    /// Waiting for their time.
    Scheduled,
    /// Dead letters.
    Dead,
    /// Finished ones that the topic keeps.
    Archive,
}

impl MessageTable {
    /// Every one of them.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Scheduled, Self::Dead, Self::Archive];

    /// The table, and its index that begins with the topic.
    fn by_topic(self) -> (&'static str, &'static str) {
        match self {
            Self::Ready => ("queue_message", "PRIMARY"),
            Self::Scheduled => ("queue_scheduled", "queue_scheduled_topic"),
            Self::Dead => ("queue_dead", "queue_dead_topic"),
            Self::Archive => ("queue_archive", "queue_archive_topic"),
        }
    }

    /// Its name for people and scripts.
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
