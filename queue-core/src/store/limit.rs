//! The limits of topics. Each topic with limits has a gate, which its claims pass one after the
//! other, and a slot for each message that was claimed through it. Where only the number of running
//! messages is limited, claims pass by the gate: see [`share`](super::share).
//!
//! A slot counts only while its claim still owns the message's row. So anything that ends the claim
//! (an ack, a retry, a rescue) also frees the slot without knowing of slots: none can leak. The
//! next claim removes the free ones.

use std::collections::HashSet;
use std::time::Duration;

use diesel::dsl::DuplicatedKeys;
use diesel::prelude::*;

use super::claim::{Fence, ScanPosition};
use super::row_set::{KEYS, RowSet};
use super::{Statement, execute, execute_surely, load, load_surely, select, write, write_surely};
use crate::connection::{Connection, row};
use crate::model::{Priority, Result, RowId, TopicId};
use crate::schema::functions::now;
use crate::schema::{queue_limit, queue_share, queue_slot};

/// A message that was claimed under a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its row.
    pub row: RowId,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Whether it is still claimed.
    pub is_held: bool,
}

row! { Slot { row, key, is_held } }

/// A ready message that may be claimed if its key is below its limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Where it lies.
    pub place: ScanPosition,
    /// Its key.
    pub key: Option<Vec<u8>>,
}

row! { Candidate { place, key } }

/// PRIMARY: waits for the topic's gate and locks it until the transaction ends; returns false if
/// there is none, because no claim has passed it yet.
pub async fn lock(conn: &mut impl Connection, topic: TopicId) -> Result<bool> {
    let query = queue_limit::table.find(topic).select(queue_limit::topic_id).for_update();
    let rows: Vec<TopicId> = select(conn, "claim: lock the gate", query).await?;
    Ok(rows.contains(&topic))
}

/// PRIMARY, plain: reads how far ahead of now earlier messages have used up the topic's rate. This
/// statement comes after the lock: a statement's now is the time it began, before it waited.
pub async fn lead(conn: &mut impl Connection, topic: TopicId) -> Result<Duration> {
    let statement = Statement::new(
        "SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), spent_until) AS lead_us \
         FROM queue_limit WHERE topic_id = ?",
    )
    .number(topic.0);
    let rows: Vec<i64> = load(conn, "claim: read the rate", statement).await?;
    let lead_us = rows.first().and_then(|us| u64::try_from(*us).ok()).unwrap_or(0);
    Ok(Duration::from_micros(lead_us))
}

/// PRIMARY: creates the topic's gate, unless another session has just created it.
pub async fn make(conn: &mut impl Connection, topic: TopicId) -> Result<()> {
    let statement = diesel::insert_into(queue_limit::table)
        .values((queue_limit::topic_id.eq(topic), queue_limit::spent_until.eq(now())))
        .on_conflict(DuplicatedKeys)
        .do_update()
        .set(queue_limit::topic_id.eq(queue_limit::topic_id));
    write(conn, "claim: make the gate", statement).await?;
    Ok(())
}

/// PRIMARY: uses up this much more time of the rate.
pub async fn spend(conn: &mut impl Connection, topic: TopicId, time: Duration) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_limit SET spent_until = GREATEST(spent_until, UTC_TIMESTAMP(6)) \
         + INTERVAL ? MICROSECOND WHERE topic_id = ?",
    )
    .number(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
    .number(topic.0);
    execute_surely(conn, "claim: spend of the rate", statement).await?;
    Ok(())
}

/// PRIMARY: makes the rate used up until `lead` from now, and no longer.
pub async fn shorten(conn: &mut impl Connection, topic: TopicId, lead: Duration) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_limit SET spent_until = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND \
         WHERE topic_id = ?",
    )
    .number(u64::try_from(lead.as_micros()).unwrap_or(u64::MAX))
    .number(topic.0);
    execute_surely(conn, "claim: shorten what is used up", statement).await?;
    Ok(())
}

/// PRIMARY of both tables, forced, plain: reads the topic's slots: one for each claimed message,
/// and those that the next claim removes.
pub async fn slots(conn: &mut impl Connection, topic: TopicId) -> Result<Vec<Slot>> {
    let statement = Statement::new(
        "SELECT id, slot_key, 0 AS held FROM queue_slot FORCE INDEX (PRIMARY) WHERE topic_id = ? \
         UNION ALL SELECT h.id, h.slot_key, 1 FROM queue_slot h FORCE INDEX (PRIMARY) \
         STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) \
         ON m.topic_id = h.topic_id AND m.priority = h.priority AND m.id = h.id \
         AND m.worker_id = h.worker_id AND m.claim_no = h.claim_no WHERE h.topic_id = ?",
    )
    .number(topic.0)
    .number(topic.0);
    let rows: Vec<Slot> = load_surely(conn, "claim: read the slots", statement).await?;
    let (held, mut all): (Vec<_>, Vec<_>) = rows.into_iter().partition(|slot| slot.is_held);
    let held: HashSet<RowId> = held.into_iter().map(|slot| slot.row).collect();
    for slot in &mut all {
        slot.is_held = held.contains(&slot.row);
    }
    Ok(all)
}

/// PRIMARY, forced: removes slots.
pub async fn free(conn: &mut impl Connection, topic: TopicId, rows: &RowSet) -> Result<usize> {
    let statement = Statement::new(format!(
        "DELETE h FROM {KEYS} STRAIGHT_JOIN queue_slot h FORCE INDEX (PRIMARY) \
         ON h.topic_id = ? AND h.id = k.id"
    ))
    .bytes(rows.json())
    .number(topic.0);
    execute(conn, "claim: free slots", statement).await
}

/// PRIMARY of the messages, forced: takes slots for rows that this transaction has made the claim's
/// own.
pub async fn take(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    priority: Priority,
    rows: &RowSet,
) -> Result<usize> {
    let statement = Statement::new(format!(
        "INSERT INTO queue_slot (topic_id, id, priority, worker_id, claim_no, slot_key) \
         SELECT m.topic_id, m.id, m.priority, m.worker_id, m.claim_no, m.ordering_key \
         FROM {KEYS} STRAIGHT_JOIN queue_message m FORCE INDEX (PRIMARY) \
         ON m.topic_id = ? AND m.priority = ? AND m.id = k.id \
         AND m.worker_id = ? AND m.claim_no = ?"
    ))
    .bytes(rows.json())
    .number(topic.0)
    .number(priority.stored())
    .number(fence.worker.0)
    .number(fence.claim_no.0);
    execute(conn, "claim: take slots", statement).await
}

/// PRIMARY, forced, plain: reads up to `limit` ready messages from `place` on, in order of priority
/// and id.
pub async fn candidates(
    conn: &mut impl Connection,
    topic: TopicId,
    place: ScanPosition,
    limit: u32,
) -> Result<Vec<Candidate>> {
    let statement = Statement::new(
        "SELECT priority, id, ordering_key FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND worker_id = 0 \
         AND ((priority = ? AND id >= ?) OR (priority > ? AND priority <= ?)) \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(place.priority.stored())
    .number(Priority::LAST.stored())
    .number(limit);
    load(conn, "claim: read the candidates", statement).await
}

/// PRIMARY, forced, plain, one dive: reads the lowest ready suspect, the one that is claimed next.
pub async fn suspect(conn: &mut impl Connection, topic: TopicId) -> Result<Option<Candidate>> {
    let statement = Statement::new(
        "SELECT priority, id, ordering_key FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority >= ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT 1",
    )
    .number(topic.0)
    .number(Priority::FIRST.suspect().stored());
    let rows: Vec<Candidate> = load(conn, "claim: look for a suspect", statement).await?;
    Ok(rows.into_iter().next())
}

/// PRIMARY of each table: forgets the shares of a topic whose limits change. Otherwise a worker
/// that has claimed nothing since could still use its share once the topic has the old limit
/// again, although other workers have claimed without limits in between.
pub async fn forget_shares(conn: &mut impl Connection, topic: TopicId) -> Result<()> {
    // Waits for a deal that is under way.
    lock(conn, topic).await?;
    let shares = diesel::delete(queue_share::table.filter(queue_share::topic_id.eq(topic)));
    write_surely(conn, "forget the topic's shares", shares).await?;
    Ok(())
}

/// PRIMARY of each table: forgets the gate, the slots and the shares of a topic that is being
/// deleted, in the order in which claims lock them.
pub async fn delete(conn: &mut impl Connection, topic: TopicId) -> Result<()> {
    let gate = diesel::delete(queue_limit::table.find(topic));
    write_surely(conn, "delete the topic's gate", gate).await?;
    let slots = diesel::delete(queue_slot::table.filter(queue_slot::topic_id.eq(topic)));
    write_surely(conn, "delete the topic's slots", slots).await?;
    let shares = diesel::delete(queue_share::table.filter(queue_share::topic_id.eq(topic)));
    write_surely(conn, "delete the topic's shares", shares).await?;
    Ok(())
}
