//! Checkpoints of long handlers.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{Binary, Integer, Nullable, TinyInt, Unsigned};

use super::settle::ClaimedRows;
use super::{Statement, execute, load};
use crate::checkpoint::{Checkpoint, Percent, Saved};
use crate::connection::Connection;
use crate::error::Result;
use crate::message::{Delivery, DeliveryNo, MsgId, WorkerId};
use crate::topic::TopicId;

/// PRIMARY of the messages, forced: saves the checkpoint of a delivery, if its claim still has the
/// message; 0 if not. A later delivery's is never replaced by an earlier one's.
///
/// # Errors
/// A database failure.
pub async fn save(
    conn: &mut impl Connection,
    worker: WorkerId,
    delivery: &Delivery,
    checkpoint: &Checkpoint,
) -> Result<usize> {
    // Set from left to right, on both servers: delivery_no is the last that is asked.
    let statement = Statement::new(
        "INSERT INTO queue_checkpoint (topic_id, msg_id, delivery_no, saved_at, progress, state) \
         SELECT topic_id, msg_id, delivery_no, UTC_TIMESTAMP(6), ?, ? FROM queue_message m \
         FORCE INDEX (PRIMARY) WHERE m.topic_id = ? AND m.priority = ? AND m.id = ? \
         AND m.worker_id = ? AND m.claim_no = ? ON DUPLICATE KEY UPDATE \
         saved_at = IF(VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(saved_at), queue_checkpoint.saved_at), \
         progress = IF(VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(progress), queue_checkpoint.progress), \
         state = IF(VALUES(delivery_no) >= queue_checkpoint.delivery_no, VALUES(state), queue_checkpoint.state), \
         delivery_no = GREATEST(VALUES(delivery_no), queue_checkpoint.delivery_no)",
    )
    .maybe_number(checkpoint.progress.map(|progress| u64::from(progress.get())))
    .bytes(checkpoint.state.clone())
    .number(delivery.topic_id.0)
    .number(delivery.priority.stored())
    .number(delivery.row.0)
    .number(worker.0)
    .number(delivery.claim_no.0);
    execute(conn, "save the checkpoint", statement).await
}

/// PRIMARY: the message's checkpoint.
///
/// # Errors
/// A database failure.
pub async fn read(conn: &mut impl Connection, topic: TopicId, id: MsgId) -> Result<Option<Saved>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<Integer>)]
        delivery_no: u32,
        #[diesel(sql_type = Datetime)]
        saved_at: NaiveDateTime,
        #[diesel(sql_type = Nullable<Unsigned<TinyInt>>)]
        progress: Option<u8>,
        #[diesel(sql_type = Binary)]
        state: Vec<u8>,
    }
    let statement = Statement::new(
        "SELECT delivery_no, saved_at, progress, state FROM queue_checkpoint \
         WHERE topic_id = ? AND msg_id = ?",
    )
    .number(topic.0)
    .bytes(id.as_bytes().to_vec());
    let rows: Vec<Row> = load(conn, "read the checkpoint", statement).await?;
    Ok(rows.into_iter().next().map(|row| Saved {
        checkpoint: Checkpoint { state: row.state, progress: row.progress.map(Percent::new) },
        delivery_no: DeliveryNo(row.delivery_no),
        at: row.saved_at.and_utc(),
    }))
}

/// PRIMARY of the messages, forced, joined to PRIMARY: removes the checkpoints of messages that are
/// about to be done.
///
/// # Errors
/// A database failure.
pub async fn forget(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<()> {
    let prefix = Statement::new(
        "DELETE k FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_checkpoint k \
         FORCE INDEX (PRIMARY) ON k.topic_id = m.topic_id AND k.msg_id = m.msg_id",
    );
    for statement in claimed.statements_of("m.", &prefix) {
        execute(conn, "settle: forget the checkpoints", statement).await?;
    }
    Ok(())
}

/// KEY (`saved_at`): removes up to `limit` checkpoints that were saved longer than `time` ago.
///
/// # Errors
/// A database failure.
pub async fn prune(conn: &mut impl Connection, time: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_checkpoint WHERE saved_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY saved_at LIMIT ?",
    )
    .number(time.as_secs())
    .number(limit);
    execute(conn, "prune the checkpoints", statement).await
}
