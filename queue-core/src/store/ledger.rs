//! The ledger: the biz ids that were handled within their topic's window.

use std::time::Duration;

use super::moves::equal;
use super::row_set::{LIST_LIMIT, placeholders};
use super::settle::ClaimedRows;
use super::{Statement, execute_surely, load, load_surely};
use crate::connection::{Connection, row};
#[cfg(feature = "simulation")]
use crate::model::LONGEST;
use crate::model::{Moment, Result, TopicId};

/// A biz id in the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The biz id.
    pub biz_id: Vec<u8>,
    /// Whether its time is over and it is not pruned yet: it counts as gone.
    pub expired: bool,
}

row! { Entry { biz_id, expired } }

/// PRIMARY, forced, plain: finds which of the biz ids the ledger has.
pub async fn look(
    conn: &mut impl Connection,
    topic: TopicId,
    biz_ids: &[&[u8]],
) -> Result<Vec<Entry>> {
    const OPERATION: &str = "look into the ledger";
    let mut entries = Vec::new();
    for some in biz_ids.chunks(LIST_LIMIT) {
        // Padded with the last one, so that there are few statement texts and they stay prepared.
        let n = some.len().next_power_of_two();
        let padded = some.iter().chain(some.last().into_iter().cycle()).take(n);
        let mut statement = Statement::new(format!(
            "SELECT biz_id, keep_until < UTC_TIMESTAMP(6) AS expired \
             FROM queue_ledger FORCE INDEX (PRIMARY) \
             WHERE topic_id = ? AND group_id = 0 AND biz_id IN ({})",
            placeholders(n)
        ))
        .number(topic.0);
        for biz_id in padded {
            statement = statement.bytes(*biz_id);
        }
        let found: Vec<Entry> = if n == 1 {
            // A read by whole key: an id it does not find is not there.
            load(conn, OPERATION, statement).await?
        } else {
            load_surely(conn, OPERATION, statement).await?
        };
        entries.extend(found);
    }
    Ok(entries)
}

/// PRIMARY of the messages, forced: enters the biz ids of rows that are about to be acked under
/// their fence. An id that is there already is kept for the whole window again, from now on.
///
/// Every row must have a biz id. A row that the claim no longer owns enters nothing; the ack that
/// follows in the same transaction counts.
pub async fn enter(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    window: Duration,
) -> Result<()> {
    let operation = "settle: enter into the ledger";
    for statement in claimed.statements(&insert(window)) {
        execute_surely(conn, operation, statement.followed_by(again(window))).await?;
    }
    Ok(())
}

/// As [`enter`], but each biz id must be new: if two transactions enter the same one, the second
/// waits for the first, and is refused.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure; [`crate::Error::Counts`] if the claim no
/// longer owns one of the rows.
pub async fn enter_once(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    window: Duration,
) -> Result<()> {
    let operation = "settle: enter into the ledger";
    let entered = claimed.execute_surely(conn, operation, insert(window)).await?;
    equal(operation, claimed.rows.len(), entered)
}

fn insert(window: Duration) -> Statement<'static> {
    into_ledger(window).sql(" FROM queue_message FORCE INDEX (PRIMARY)")
}

/// The INSERT of [`enter`], without the source of its rows.
pub(super) fn into_ledger(window: Duration) -> Statement<'static> {
    Statement::new(
        "INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until) \
         SELECT topic_id, 0, biz_id, msg_id, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
    )
    .number(micros(window))
}

/// Makes [`into_ledger`] keep a biz id that is there already for the whole window again.
pub(super) fn again(window: Duration) -> Statement<'static> {
    Statement::new(
        " ON DUPLICATE KEY UPDATE keep_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND",
    )
    .number(micros(window))
}

fn micros(window: Duration) -> u64 {
    Moment::After(window).micros()
}

/// PRIMARY, forced: removes a biz id whose time is over, so that it can be entered again.
pub async fn drop_expired(
    conn: &mut impl Connection,
    topic: TopicId,
    biz_id: &[u8],
) -> Result<usize> {
    let statement = Statement::new(
        "DELETE l FROM queue_ledger l FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND group_id = 0 AND biz_id = ? AND keep_until < UTC_TIMESTAMP(6)",
    )
    .number(topic.0)
    .bytes(biz_id);
    execute_surely(conn, "settle: drop an expired biz id", statement).await
}

/// PRIMARY: enters a message by its id, for ten years. Handlers of a simulation record their
/// messages with it.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure.
#[cfg(feature = "simulation")]
pub async fn enter_alone(
    conn: &mut impl Connection,
    topic: TopicId,
    msg_id: crate::MsgId,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_ledger (topic_id, group_id, biz_id, msg_id, keep_until) \
         VALUES (?, 0, ?, ?, UTC_TIMESTAMP(6) + INTERVAL ? SECOND)",
    )
    .number(topic.0)
    .bytes(msg_id.as_bytes())
    .bytes(msg_id.as_bytes())
    .number(LONGEST.as_secs());
    super::execute(conn, "enter into the ledger", statement).await?;
    Ok(())
}
