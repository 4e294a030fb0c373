//! Ready messages that an operator purges, moves to another topic or reads.

use super::moves::equal;
use super::row_set::RowSet;
use super::stored::{STORED, Stored};
use super::{Statement, execute_surely, first_inserted, load};
use crate::connection::Connection;
use crate::model::{MsgId, Priority, Result, RowId, TopicId};

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

/// KEY (id): finds the highest row; rows that are added later are higher.
pub async fn last(conn: &mut impl Connection) -> Result<RowId> {
    let statement = Statement::new("SELECT COALESCE(MAX(id), 0) AS id FROM queue_message");
    let rows: Vec<RowId> = load(conn, "read the last row", statement).await?;
    Ok(rows.first().copied().unwrap_or(RowId(0)))
}

/// PRIMARY, forced: locks the next ready messages of a topic and priority after the row `after`, up
/// to the row `last`, at most `limit`. Passes over rows that another session has locked: a claim is
/// taking them.
pub async fn lock(
    conn: &mut impl Connection,
    (topic, priority): (TopicId, Priority),
    (after, last): (RowId, RowId),
    limit: u32,
) -> Result<LockedReady> {
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
    let locked: Vec<(RowId, MsgId)> = load(conn, "lock ready messages", statement).await?;
    let (rows, msg_ids): (Vec<_>, Vec<_>) = locked.into_iter().unzip();
    Ok(LockedReady { topic, priority, rows: RowSet::new(rows), msg_ids })
}

impl LockedReady {
    /// Builds the condition on exactly these rows, of a table that the statement calls `m`.
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
/// [`crate::Error::Counts`].
pub async fn purge(conn: &mut impl Connection, locked: &LockedReady) -> Result<()> {
    const OPERATION: &str = "purge";
    let keys = Statement::new(
        "DELETE u FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN \
         queue_unique u FORCE INDEX (PRIMARY) ON u.topic_id = m.topic_id \
         AND u.unique_key = m.unique_key AND u.msg_id = m.msg_id",
    );
    execute_surely(conn, OPERATION, keys.followed_by(locked.condition())).await?;
    let rows = Statement::new("DELETE m FROM queue_message m FORCE INDEX (PRIMARY)");
    let deleted = execute_surely(conn, OPERATION, rows.followed_by(locked.condition())).await?;
    equal(OPERATION, locked.rows.len(), deleted)
}

/// PRIMARY, forced: moves locked messages, at most 512, to another topic, in their order, behind
/// the ready messages of their priority there, and returns the lowest row they got. Their counts of
/// failures and crashes go with them. A unique key does not: it belongs to the topic they leave,
/// and is freed. No floor is published: the rows are new, as an enqueue's are.
///
/// # Errors
/// [`crate::Error::Counts`].
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
    equal(OPERATION, locked.rows.len(), execute_surely(conn, OPERATION, insert).await?)?;
    let first = RowId(first_inserted(conn, OPERATION).await?);
    purge(conn, locked).await?;
    Ok(first)
}

/// PRIMARY, forced: reads the next messages of a topic and priority after the row `after`, ready or
/// claimed, at most `limit`; locks nothing.
pub async fn read(
    conn: &mut impl Connection,
    (topic, priority): (TopicId, Priority),
    after: RowId,
    limit: u32,
) -> Result<Vec<Stored>> {
    let statement = Statement::new(format!(
        "SELECT {STORED} FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id > ? ORDER BY topic_id, priority, id LIMIT ?"
    ))
    .number(topic.0)
    .number(priority.stored())
    .number(after.0)
    .number(limit);
    load(conn, "read messages", statement).await
}
