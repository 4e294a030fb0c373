//! Checkpoints of long handlers.

use std::time::Duration;

use super::settle::ClaimedRows;
use super::{Statement, execute_surely, load};
use crate::connection::{Connection, row};
use crate::model::{Checkpoint, Delivery, Result, Saved, WorkerId};

/// PRIMARY of the messages, forced: saves the checkpoint of a delivery, if its claim still holds
/// the message; returns 0 if not. An earlier delivery never replaces a later one's checkpoint.
pub async fn save(
    conn: &mut impl Connection,
    worker: WorkerId,
    delivery: &Delivery,
    checkpoint: &Checkpoint,
) -> Result<usize> {
    // Both servers set columns from left to right, so the ones that decide are set last.
    const NEWER: &str = "VALUES(enqueued_at) <> queue_checkpoint.enqueued_at \
         OR VALUES(delivery_no) >= queue_checkpoint.delivery_no";
    let columns = ["saved_at", "progress", "state"];
    let newer =
        columns.map(|one| format!("{one} = IF({NEWER}, VALUES({one}), queue_checkpoint.{one}), "));
    let statement = Statement::new(format!(
        "INSERT INTO queue_checkpoint \
             (topic_id, msg_id, enqueued_at, delivery_no, saved_at, progress, state) \
             SELECT topic_id, msg_id, enqueued_at, delivery_no, UTC_TIMESTAMP(6), ?, ? \
             FROM queue_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = ? AND m.priority = ? \
             AND m.id = ? AND m.worker_id = ? AND m.claim_no = ? ON DUPLICATE KEY UPDATE {}\
             delivery_no = IF({NEWER}, VALUES(delivery_no), queue_checkpoint.delivery_no), \
             enqueued_at = VALUES(enqueued_at)",
        newer.concat()
    ))
    .maybe_number(checkpoint.progress.map(|progress| u64::from(progress.get())))
    .bytes(checkpoint.state.clone())
    .number(delivery.topic_id.0)
    .number(delivery.priority.stored())
    .number(delivery.row.0)
    .number(worker.0)
    .number(delivery.claim_no.0);
    execute_surely(conn, "save the checkpoint", statement).await
}

/// PRIMARY of the messages and the checkpoints, forced: reads the message's checkpoint, unless it
/// belongs to an earlier message with the same id.
pub async fn read(conn: &mut impl Connection, delivery: &Delivery) -> Result<Option<Saved>> {
    let statement = Statement::new(
        "SELECT k.delivery_no, k.saved_at, k.progress, k.state FROM queue_message m \
         FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_checkpoint k FORCE INDEX (PRIMARY) \
         ON k.topic_id = m.topic_id AND k.msg_id = m.msg_id AND k.enqueued_at = m.enqueued_at \
         WHERE m.topic_id = ? AND m.priority = ? AND m.id = ?",
    )
    .number(delivery.topic_id.0)
    .number(delivery.priority.stored())
    .number(delivery.row.0);
    let rows: Vec<Saved> = load(conn, "read the checkpoint", statement).await?;
    Ok(rows.into_iter().next())
}

row! { Saved { delivery_no, at, checkpoint } }
row! { Checkpoint { progress, state } }

/// PRIMARY of the messages, forced, joined to PRIMARY: removes the checkpoints of messages that are
/// about to be done.
pub async fn forget(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<()> {
    let prefix = Statement::new(
        "DELETE k FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_checkpoint k \
         FORCE INDEX (PRIMARY) ON k.topic_id = m.topic_id AND k.msg_id = m.msg_id",
    );
    for statement in claimed.statements_of("m.", &prefix) {
        execute_surely(conn, "settle: forget the checkpoints", statement).await?;
    }
    Ok(())
}

/// KEY (`saved_at`): removes up to `limit` checkpoints that were saved longer than `time` ago.
pub async fn prune(conn: &mut impl Connection, time: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_checkpoint WHERE saved_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY saved_at LIMIT ?",
    )
    .number(time.as_secs())
    .number(limit);
    execute_surely(conn, "prune the checkpoints", statement).await
}
