//! Ready messages that a person deals with: purged, moved to another topic, looked through.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Nullable, Unsigned};

use super::moves::equal;
use super::row_set::RowSet;
use super::{Statement, execute, first_inserted, load};
use crate::connection::Connection;
use crate::error::Result;
use crate::message::{Headers, MsgId, Priority, RowId};
use crate::topic::TopicId;

/// Ready messages of one topic and priority, locked by this transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedReady {
    /// Their topic.
    pub topic: TopicId,
    /// Their priority.
    pub priority: Priority,
    /// The rows.
    pub rows: RowSet,
    /// The messages, in the order of their rows.
    pub msg_ids: Vec<MsgId>,
}

/// KEY (id): the highest row that there is; what comes later has a higher one.
///
/// # Errors
/// A database failure.
pub async fn last(conn: &mut impl Connection) -> Result<RowId> {
    let statement = Statement::new("SELECT COALESCE(MAX(id), 0) AS id FROM queue_message");
    let rows: Vec<Id> = load(conn, "read the last row", statement).await?;
    Ok(RowId(rows.first().map_or(0, |row| row.id)))
}

#[derive(QueryableByName)]
struct Id {
    #[diesel(sql_type = Unsigned<BigInt>)]
    id: u64,
}

/// PRIMARY, forced: locks the next ready messages of a topic and priority behind the row `after`,
/// up to the row `last`, at most `limit`. Those that somebody else has locked are passed over: a
/// claim is taking them.
///
/// # Errors
/// A database failure.
pub async fn lock(
    conn: &mut impl Connection,
    (topic, priority): (TopicId, Priority),
    (after, last): (RowId, RowId),
    limit: u32,
) -> Result<LockedReady> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Binary)]
        msg_id: Vec<u8>,
    }
    let statement = Statement::new(
        "SELECT id, msg_id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         AND priority = ? AND id > ? AND id <= ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT ? FOR UPDATE SKIP LOCKED",
    )
    .number(topic.0)
    .number(priority.stored())
    .number(after.0)
    .number(last.0)
    .number(limit);
    let rows: Vec<Row> = load(conn, "lock ready messages", statement).await?;
    Ok(LockedReady {
        topic,
        priority,
        rows: rows.iter().map(|row| RowId(row.id)).collect(),
        msg_ids: rows.iter().filter_map(|row| MsgId::from_bytes(&row.msg_id)).collect(),
    })
}

impl LockedReady {
    /// The condition on exactly these rows, of a table that the statement calls `m`.
    fn condition(&self) -> Statement<'static> {
        let (condition, ids) = self.rows.condition();
        Statement::new(format!(" WHERE m.topic_id = ? AND m.priority = ? AND {condition}"))
            .number(self.topic.0)
            .number(self.priority.stored())
            .numbers(ids)
    }
}

/// PRIMARY, forced: deletes locked messages, at most 512, and frees the unique keys they hold.
///
/// # Errors
/// [`crate::Error::Counts`]; a database failure.
pub async fn purge(conn: &mut impl Connection, locked: &LockedReady) -> Result<()> {
    const OPERATION: &str = "purge";
    let keys = Statement::new(
        "DELETE u FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN \
         queue_unique u FORCE INDEX (PRIMARY) ON u.topic_id = m.topic_id \
         AND u.unique_key = m.unique_key AND u.msg_id = m.msg_id",
    );
    execute(conn, OPERATION, keys.followed_by(locked.condition())).await?;
    let rows = Statement::new("DELETE m FROM queue_message m FORCE INDEX (PRIMARY)");
    let deleted = execute(conn, OPERATION, rows.followed_by(locked.condition())).await?;
    equal(OPERATION, locked.rows.len(), deleted)
}

/// PRIMARY, forced: moves locked messages, at most 512, to another topic, behind what is ready
/// there in their priority, in their order; the lowest row they got. Their counts of failures
/// and crashes go with them, a unique key does not: it is freed, as it is one of the topic they
/// leave. No floor is published: the rows are new ones, as an enqueue's are.
///
/// # Errors
/// [`crate::Error::Counts`]; a database failure.
pub async fn relocate(
    conn: &mut impl Connection,
    locked: &LockedReady,
    to: TopicId,
) -> Result<RowId> {
    const OPERATION: &str = "move";
    const CARRIED: &str = "priority, msg_id, delivery_no, failures, crashes, suspicions, \
         enqueued_at, expires_at, ordering_key, biz_id, headers, history, body";
    let insert = Statement::new(format!(
        "INSERT INTO queue_message (topic_id, {CARRIED}) SELECT ?, {CARRIED} \
         FROM queue_message m FORCE INDEX (PRIMARY)"
    ))
    .number(to.0)
    .followed_by(locked.condition())
    .sql(" ORDER BY m.id");
    equal(OPERATION, locked.rows.len(), execute(conn, OPERATION, insert).await?)?;
    let first = RowId(first_inserted(conn, OPERATION).await?);
    purge(conn, locked).await?;
    Ok(first)
}

/// A message of the hot table, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its row.
    pub row: RowId,
    /// The message id.
    pub msg_id: MsgId,
    /// Server time at which it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// Server time from which on nobody wants it.
    pub expires_at: Option<DateTime<Utc>>,
    /// Ordering key.
    pub key: Option<Vec<u8>>,
    /// Business idempotency key.
    pub biz_id: Option<Vec<u8>>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
}

/// PRIMARY, forced: the next messages of a topic and priority behind the row `after`, ready or
/// claimed, at most `limit`; locks nothing.
///
/// # Errors
/// A database failure.
pub async fn read(
    conn: &mut impl Connection,
    (topic, priority): (TopicId, Priority),
    after: RowId,
    limit: u32,
) -> Result<Vec<Stored>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Binary)]
        msg_id: Vec<u8>,
        #[diesel(sql_type = Datetime)]
        enqueued_at: NaiveDateTime,
        #[diesel(sql_type = Nullable<Datetime>)]
        expires_at: Option<NaiveDateTime>,
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
        "SELECT id, msg_id, enqueued_at, expires_at, ordering_key, biz_id, headers, body \
         FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = ? AND priority = ? AND id > ? \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(topic.0)
    .number(priority.stored())
    .number(after.0)
    .number(limit);
    let rows: Vec<Row> = load(conn, "read messages", statement).await?;
    let stored = |row: Row| Stored {
        row: RowId(row.id),
        msg_id: MsgId::from_bytes(&row.msg_id).unwrap_or_else(|| MsgId(uuid::Uuid::nil())),
        enqueued_at: row.enqueued_at.and_utc(),
        expires_at: row.expires_at.map(|at| at.and_utc()),
        key: row.ordering_key,
        biz_id: row.biz_id,
        headers: Headers::from_stored(row.headers.as_deref()),
        body: row.body,
    };
    Ok(rows.into_iter().map(stored).collect())
}
