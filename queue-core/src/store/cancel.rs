//! Cancelling a message of the hot table: asking its worker to stop, and taking the message away.

use std::time::Duration;

use diesel::dsl::DuplicatedKeys;
use diesel::prelude::*;

use super::claim::Fence;
use super::{Statement, execute_surely, load, select_surely, write, write_surely};
use crate::connection::{Connection, row};
use crate::model::{DeliveryNo, MsgId, Priority, Result, RowId, TopicId, WorkerId};
use crate::schema::functions::now;
use crate::schema::queue_cancellation::dsl;

/// How long a request to a worker is valid. A caller that waits for the answer renews the request
/// in time; without its caller, a request must not discard the message hours later.
pub const ASKED_FOR: Duration = Duration::from_secs(30);

/// A row, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedRow {
    /// Its priority; a suspect's differs from the one it was enqueued with.
    pub priority: Priority,
    /// The claim that holds it; worker 0 if it is ready.
    pub fence: Fence,
    /// How often it was claimed.
    pub delivery_no: DeliveryNo,
    /// Whether it was enqueued to hold a unique key.
    pub is_unique: bool,
}

/// KEY (id), forced: locks the message, if it is still in its row and no other session has locked
/// it.
pub async fn lock(
    conn: &mut impl Connection,
    topic: TopicId,
    row: RowId,
    id: MsgId,
) -> Result<Option<LockedRow>> {
    let statement = Statement::new(
        "SELECT priority, worker_id, claim_no, delivery_no, unique_key IS NOT NULL AS is_unique \
         FROM queue_message FORCE INDEX (queue_message_id) \
         WHERE id = ? AND topic_id = ? AND msg_id = ? FOR UPDATE SKIP LOCKED",
    )
    .number(row.0)
    .number(topic.0)
    .bytes(id.as_bytes().to_vec());
    let rows: Vec<LockedRow> = load(conn, "cancel: lock the message", statement).await?;
    Ok(rows.into_iter().next())
}

row! { LockedRow { priority, fence, delivery_no, is_unique } }

/// KEY (id), forced, plain: returns whether the message is still in its row, locked or not.
pub async fn is_there(
    conn: &mut impl Connection,
    topic: TopicId,
    row: RowId,
    id: MsgId,
) -> Result<bool> {
    let statement = Statement::new(
        "SELECT id FROM queue_message FORCE INDEX (queue_message_id) \
         WHERE id = ? AND topic_id = ? AND msg_id = ?",
    )
    .number(row.0)
    .number(topic.0)
    .bytes(id.as_bytes().to_vec());
    let rows: Vec<RowId> = load(conn, "cancel: look for the message", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY: asks the worker that holds the message, or claims it later, to stop handling it, for
/// [`ASKED_FOR`]. Every worker reads the request with its next [pulse](super::floor::pulse).
/// `taken_from` is the worker whose claim was taken away while its handler may still run.
pub async fn ask(
    conn: &mut impl Connection,
    row: RowId,
    taken_from: Option<WorkerId>,
) -> Result<()> {
    let request = (dsl::requested_at.eq(now()), dsl::worker_id.eq(taken_from.unwrap_or(NO_WORKER)));
    let statement = diesel::insert_into(dsl::queue_cancellation)
        .values((dsl::row_id.eq(row), request.clone()))
        .on_conflict(DuplicatedKeys)
        .do_update()
        .set(request);
    write(conn, "cancel: ask the worker", statement).await?;
    Ok(())
}

/// PRIMARY: records that a living worker lost a claim for another reason than a cancellation. The
/// claim's handlers may still run, and if the worker dies within the next minute, any of their
/// messages may be the cause. The rescue counts this as one message that was [taken](taken_from).
pub async fn taken_away(conn: &mut impl Connection, worker: WorkerId) -> Result<()> {
    ask(conn, RowId(NO_ROW | worker.0), Some(worker)).await
}

/// The worker of a request whose message was not taken away.
const NO_WORKER: WorkerId = WorkerId(0);

/// Above every row number. Together with a worker's number, it stands for the claims that this
/// worker has lost.
const NO_ROW: u64 = 1 << 62;

/// PRIMARY: returns whether the message was taken away from its worker.
pub async fn was_taken(conn: &mut impl Connection, row: RowId) -> Result<bool> {
    let query =
        dsl::queue_cancellation.find(row).filter(dsl::worker_id.ne(NO_WORKER)).select(dsl::row_id);
    let rows: Vec<RowId> = select_surely(conn, "cancel: look who has taken it", query).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY: withdraws a request, unless the message was taken away in the meantime: its handler may
/// still run and has to stop.
pub async fn ask_no_more(conn: &mut impl Connection, row: RowId) -> Result<()> {
    let request = dsl::queue_cancellation.find(row).filter(dsl::worker_id.eq(NO_WORKER));
    let statement = diesel::delete(request);
    write_surely(conn, "cancel: ask no more", statement).await?;
    Ok(())
}

/// PRIMARY, all of a few rows: counts the messages that were recently taken away from the worker.
pub async fn taken_from(conn: &mut impl Connection, worker: WorkerId) -> Result<usize> {
    let query = dsl::queue_cancellation.filter(dsl::worker_id.eq(worker)).select(dsl::row_id);
    let rows: Vec<RowId> = select_surely(conn, "rescue: count what was cancelled", query).await?;
    Ok(rows.len())
}

/// PRIMARY, a few rows, and PRIMARY of `queue_worker`: forgets up to `limit` requests that are
/// older than `time`, whose callers have gone. A message that was taken away stays recorded until
/// its worker has sent a beat at least `time` later, or until the worker is declared dead, because
/// the rescue [counts](taken_from) it.
pub async fn prune(conn: &mut impl Connection, time: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_cancellation \
         WHERE requested_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         AND NOT EXISTS (SELECT 1 FROM queue_worker w WHERE w.id = queue_cancellation.worker_id \
           AND w.state = 'alive' AND w.beat_at < queue_cancellation.requested_at + INTERVAL ? SECOND) \
         LIMIT ?",
    )
    .number(time.as_secs())
    .number(time.as_secs())
    .number(limit);
    execute_surely(conn, "prune the cancellations", statement).await
}
