//! Messages that become ready later: delayed ones, and retries.

mod insert;
mod read;
mod waiting;

pub use self::insert::insert;
pub use self::read::{Scheduled, ScheduledPosition, read};
pub use self::waiting::{Waiting, find, list, reschedule};

use std::time::Duration;

use chrono::NaiveDateTime;

use super::moves::equal;
use super::row_set::{KEYS, RowSet};
use super::{Statement, execute, execute_surely, first_inserted, load};
use crate::connection::{Connection, row};
use crate::model::{MsgId, Priority, Result, RowId, TopicId};

/// A due message, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its row among the scheduled.
    pub row: RowId,
    /// Its topic.
    pub topic: TopicId,
    /// Its priority.
    pub priority: Priority,
    /// How long it had been due when it was locked.
    pub late: Duration,
    /// The bytes of its body.
    pub bytes: u64,
    /// The message, if its topic is searchable.
    pub searchable: Option<MsgId>,
}

/// How far back the search for due messages reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// What has been due for five seconds at most. Messages promoted before leave dead entries at
    /// the head of the index while any older transaction is open; this does not read them again.
    Recent,
    /// Everything, including messages that committed long after their due time.
    All,
}

/// A century, in seconds: longer than anything has been due.
const EVER: u64 = 100 * 366 * 24 * 3600;

impl Reach {
    fn seconds(self) -> u64 {
        match self {
            Self::Recent => 5,
            Self::All => EVER,
        }
    }
}

/// PRIMARY (`due_at`, id), plain, one dive: reads how long until the next message is due; zero if
/// one is due now, `None` if there is none.
pub async fn next_due(conn: &mut impl Connection, reach: Reach) -> Result<Option<Duration>> {
    let statement = Statement::new(
        "SELECT due_at, UTC_TIMESTAMP(6) AS now FROM queue_scheduled FORCE INDEX (PRIMARY) \
         WHERE due_at >= UTC_TIMESTAMP(6) - INTERVAL ? SECOND ORDER BY due_at, id LIMIT 1",
    )
    .number(reach.seconds());
    let rows: Vec<(NaiveDateTime, NaiveDateTime)> =
        load(conn, "promote: look for due messages", statement).await?;
    Ok(rows.first().map(|(due, now)| (*due - *now).to_std().unwrap_or(Duration::ZERO)))
}

/// PRIMARY (`due_at`, id): locks up to `limit` due messages, passing over those that another
/// promoter has locked.
pub async fn lock_due(conn: &mut impl Connection, reach: Reach, limit: u32) -> Result<Vec<Due>> {
    // The topic by a subquery: a join would lock it too.
    let statement = Statement::new(
        "SELECT id, topic_id, priority, due_at, UTC_TIMESTAMP(6) AS now, \
         CAST(LENGTH(body) AS SIGNED) AS bytes, (SELECT IF(t.searchable_ms IS NULL, NULL, \
         queue_scheduled.msg_id) FROM queue_topic t WHERE t.id = queue_scheduled.topic_id) \
         AS searchable \
         FROM queue_scheduled FORCE INDEX (PRIMARY) \
         WHERE due_at BETWEEN UTC_TIMESTAMP(6) - INTERVAL ? SECOND AND UTC_TIMESTAMP(6) \
         ORDER BY due_at, id LIMIT ? FOR UPDATE SKIP LOCKED",
    )
    .number(reach.seconds())
    .number(limit);
    load(conn, "promote: lock due messages", statement).await
}

row! { Due { row, topic, priority, late: late, bytes, searchable } }

fn late((due, now): (NaiveDateTime, NaiveDateTime)) -> Duration {
    (now - due).to_std().unwrap_or(Duration::ZERO)
}

/// KEY (id), forced: moves locked rows, at most 512, to the hot table, in order of their due time,
/// and returns the lowest row they got there. The age of a delayed message counts from its due
/// time: otherwise its delay would look like a delay of the queue.
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn promote(conn: &mut impl Connection, rows: &RowSet) -> Result<RowId> {
    const CARRIED: &str = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, \
         expires_at, ordering_key, biz_id, unique_key, headers, history, body";
    const OPERATION: &str = "promote";
    let (condition, ids) = rows.condition();
    let insert = Statement::new(format!(
        "INSERT INTO queue_message (enqueued_at, {CARRIED}) \
         SELECT IF(delivery_no = 0, due_at, enqueued_at), {CARRIED} FROM queue_scheduled \
         FORCE INDEX (queue_scheduled_id) WHERE {condition} ORDER BY due_at, id"
    ))
    .numbers(ids);
    equal(OPERATION, rows.len(), execute_surely(conn, OPERATION, insert).await?)?;
    let first = RowId(first_inserted(conn, OPERATION).await?);
    let delete = Statement::new(format!(
        "DELETE s FROM {KEYS} STRAIGHT_JOIN queue_scheduled s FORCE INDEX (queue_scheduled_id) \
         ON s.id = k.id"
    ))
    .bytes(rows.json());
    equal(OPERATION, rows.len(), execute(conn, OPERATION, delete).await?)?;
    Ok(first)
}
