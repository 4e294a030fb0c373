//! Unique keys: which message holds each key, and until when.
//!
//! Lock order: a producer waits for a key first, and then locks at most one row of a message,
//! skipping the row if it is locked. A worker that ends messages, and the rescue, do not wait for
//! keys: they skip locked keys and try them again later. The last step of a transactional handler
//! waits for its keys while its rows are locked, and so does a redrive. A producer that enqueues
//! several keys one after another in one transaction can still deadlock with such a handler, with a
//! redrive and with other such producers: the server then rolls one of them back.

mod release;
mod replace;

pub use self::release::{drop_of_scheduled, holding, lock, release, take_again};
pub use self::replace::{replace, take_over};

use std::time::Duration;

use super::row_set::{LIST_LIMIT, placeholders};
use super::{Statement, execute, execute_surely, load_surely};
use crate::connection::{Connection, row};
use crate::model::{Moment, MsgId, NewMessage, Priority, Result, RowId, TopicId};

/// A key that a message asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WantedKey<'m> {
    /// The key.
    pub key: &'m [u8],
    /// The message.
    pub msg_id: MsgId,
    /// How long it is held; `None`: until the message is done.
    pub time: Option<Duration>,
}

/// A key that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The key.
    pub key: Vec<u8>,
    /// The message that holds it.
    pub msg_id: MsgId,
    /// Where the message was stored, if it may be replaced.
    pub location: Option<Location>,
}

/// Where a message is that may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// Among the ready.
    Ready(Priority, RowId),
    /// Among the scheduled.
    Scheduled(RowId),
    /// It was redriven, and can no longer be replaced. It is stored as row 0, which no table has.
    Redriven,
}

/// PRIMARY: takes the keys, each of which must be named once; returns the holders of those that
/// could not be taken. A key whose time is over is free. If another open transaction has taken a
/// key, this waits for that transaction to end. Like [`dedupe::enter`](super::dedupe::enter), it
/// also updates rows that are already there.
pub async fn take(
    conn: &mut impl Connection,
    topic: TopicId,
    wanted: &[WantedKey<'_>],
) -> Result<Vec<Holder>> {
    tracing::trace!(step = "take");
    let mut sorted = wanted.to_vec();
    // Sorted, so that two batches lock common keys in the same order and do not deadlock.
    sorted.sort_unstable();
    let mut held = Vec::new();
    for some in sorted.chunks(LIST_LIMIT) {
        let rows = vec!["(?, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)"; some.len()];
        let mut statement = Statement::new(format!(
            "INSERT INTO queue_unique (topic_id, unique_key, msg_id, keep_until) VALUES {} \
             ON DUPLICATE KEY UPDATE \
             repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1), \
             msg_id = IF(keep_until < UTC_TIMESTAMP(6), VALUES(msg_id), msg_id), \
             priority = IF(keep_until < UTC_TIMESTAMP(6), NULL, priority), \
             ready_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, ready_id), \
             scheduled_id = IF(keep_until < UTC_TIMESTAMP(6), NULL, scheduled_id), \
             keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until)",
            rows.join(", ")
        ))
        .once(!super::enqueue::is_kept(some.len()));
        for one in some {
            statement = statement
                .number(topic.0)
                .bytes(one.key.to_vec())
                .bytes(one.msg_id.as_bytes().to_vec())
                .maybe_number(one.time.map(|time| Moment::After(time).micros()));
        }
        if execute(conn, "enqueue: take the unique keys", statement).await? > some.len() {
            held.extend(holders(conn, topic, some).await?);
        }
    }
    Ok(held)
}

/// PRIMARY, forced: reads the holders of the keys that this transaction asked for and did not get.
async fn holders(
    conn: &mut impl Connection,
    topic: TopicId,
    wanted: &[WantedKey<'_>],
) -> Result<Vec<Holder>> {
    let n = wanted.len().next_power_of_two();
    let mut statement = Statement::new(format!(
        "SELECT unique_key, msg_id, priority, ready_id, scheduled_id FROM queue_unique \
         FORCE INDEX (PRIMARY) WHERE topic_id = ? AND unique_key IN ({}) AND repeats > 0",
        placeholders(n)
    ))
    .number(topic.0);
    for one in wanted.iter().chain(wanted.last().into_iter().cycle()).take(n) {
        statement = statement.bytes(one.key.to_vec());
    }
    load_surely(conn, "enqueue: take the unique keys", statement).await
}

row! { Holder { key, msg_id, location: stored_at } }

fn stored_at(place: (Option<Priority>, Option<RowId>, Option<RowId>)) -> Option<Location> {
    match place {
        (_, Some(RowId(0)), _) => Some(Location::Redriven),
        (Some(priority), Some(row), _) => Some(Location::Ready(priority, row)),
        (_, _, Some(row)) => Some(Location::Scheduled(row)),
        _ => None,
    }
}

/// PRIMARY: remembers where the message that holds the key was stored: in the row that the
/// preceding INSERT on this connection made.
pub async fn place(
    conn: &mut impl Connection,
    topic: TopicId,
    key: &[u8],
    stored: &NewMessage,
) -> Result<()> {
    let (place, other) = match stored.deliver {
        Some(_) => ("scheduled_id", "ready_id"),
        None => ("ready_id", "scheduled_id"),
    };
    let statement = Statement::new(format!(
        "UPDATE queue_unique SET {place} = LAST_INSERT_ID(), {other} = NULL, \
         priority = ? WHERE topic_id = ? AND unique_key = ?"
    ))
    .number(stored.priority.stored())
    .number(topic.0)
    .bytes(key.to_vec());
    execute_surely(conn, "enqueue: remember the row", statement).await?;
    Ok(())
}

/// PRIMARY: frees up to `limit` keys of a topic that is being deleted.
pub async fn forget_some(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_unique WHERE topic_id = ? LIMIT ?")
        .number(topic.0)
        .number(limit);
    execute_surely(conn, "purge the topic", statement).await
}
