//! Replacing a waiting message by another.

use std::time::Duration;

use super::{Holder, Location};
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Moment, MsgId, NewMessage, Result, RowId, TopicId};
use crate::store::moves::equal;
use crate::store::{execute_surely, load};

const OPERATION: &str = "enqueue: replace the message";

/// PRIMARY of the messages or UNIQUE (id) of the scheduled, forced: gives the message that holds
/// the key the content of `message`, if it still waits where it was stored, has never been claimed,
/// and no session is about to claim or move it. `max_wait`: how long after its enqueue it is due at
/// the latest. Returns whether it was replaced.
///
/// # Errors
/// Headers that cannot be stored.
pub async fn replace(
    conn: &mut impl Connection,
    topic: TopicId,
    holder: &Holder,
    message: &NewMessage,
    max_wait: Option<Duration>,
) -> Result<bool> {
    let Some(location) = holder.location else { return Ok(false) };
    let Some((table, key)) = location.key(topic) else { return Ok(false) };
    if !locked(conn, topic, holder, location).await? {
        return Ok(false);
    }
    let expiry = message.expires.map_or("NULL", Moment::sql);
    let mut statement = Statement::new(format!(
        "UPDATE {table} SET ordering_key = ?, biz_id = ?, headers = ?, body = ?, \
         expires_at = {expiry}"
    ))
    .once(true)
    .maybe_bytes(message.key.as_deref().map(<[u8]>::to_vec))
    .maybe_bytes(message.biz_id.as_deref().map(<[u8]>::to_vec))
    .maybe_bytes(message.headers.to_stored()?)
    .bytes(message.body.clone())
    .numbers(message.expires.map(Moment::micros));
    if let Location::Scheduled(_) = location {
        // A message without a due time is due now: it may expire before the first one's due time.
        let deliver = message.deliver.unwrap_or(Moment::After(Duration::ZERO));
        let due = deliver.due_sql();
        let due = match max_wait {
            None => format!(", due_at = {due}"),
            Some(_) => format!(
                ", due_at = GREATEST(UTC_TIMESTAMP(6), \
                 LEAST({due}, enqueued_at + INTERVAL ? MICROSECOND))"
            ),
        };
        let due = Statement::new(due)
            .number(deliver.micros())
            .numbers(max_wait.map(|wait| Moment::After(wait).micros()));
        statement = statement.followed_by(due);
    }
    let statement = statement.followed_by(key);
    equal(OPERATION, 1, execute_surely(conn, OPERATION, statement).await?)?;
    Ok(true)
}

/// Locks the message, unless it no longer waits or another session has locked it.
async fn locked(
    conn: &mut impl Connection,
    topic: TopicId,
    holder: &Holder,
    location: Location,
) -> Result<bool> {
    let Some((table, key)) = location.key(topic) else { return Ok(false) };
    let statement = Statement::new(format!("SELECT id AS _id FROM {table}"))
        .followed_by(key)
        .sql(location.unclaimed())
        .sql(" AND msg_id = ? AND delivery_no = 0 FOR UPDATE SKIP LOCKED")
        .bytes(holder.msg_id.as_bytes().to_vec());
    let rows: Vec<RowId> = load(conn, OPERATION, statement).await?;
    Ok(!rows.is_empty())
}

impl Location {
    /// Returns the table with its index, and the condition for one row; `None` if the row is not
    /// known.
    fn key(self, topic: TopicId) -> Option<(&'static str, Statement<'static>)> {
        match self {
            Self::Ready(priority, row) => Some((
                "queue_message FORCE INDEX (PRIMARY)",
                Statement::new(" WHERE topic_id = ? AND priority = ? AND id = ?")
                    .number(topic.0)
                    .number(priority.stored())
                    .number(row.0),
            )),
            Self::Scheduled(row) => Some((
                "queue_scheduled FORCE INDEX (queue_scheduled_id)",
                Statement::new(" WHERE id = ? AND topic_id = ?").number(row.0).number(topic.0),
            )),
            Self::Redriven => None,
        }
    }

    fn unclaimed(self) -> &'static str {
        match self {
            Self::Ready(..) => " AND worker_id = 0",
            Self::Scheduled(_) | Self::Redriven => "",
        }
    }
}

/// PRIMARY: gives the key to another message, and to the account that enqueues it. When the
/// previous message ends, the key is unaffected.
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn take_over(
    conn: &mut impl Connection,
    topic: TopicId,
    key: &[u8],
    msg_id: MsgId,
) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_unique SET msg_id = ?, repeats = 0, keep_until = NULL, account = DEFAULT \
         WHERE topic_id = ? AND unique_key = ?",
    )
    .bytes(msg_id.as_bytes().to_vec())
    .number(topic.0)
    .bytes(key.to_vec());
    equal(OPERATION, 1, execute_surely(conn, OPERATION, statement).await?)
}
