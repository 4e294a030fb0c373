//! Claiming by an UPDATE that comes first and a SELECT that reads back what it has marked: the
//! seeds' way. Claimers wait for each other.

use super::{COLUMNS, Fence, MessageRow, Place, own, span};
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Delivery, Result, RowId, TopicId};
use crate::store::row_set::RowSet;
use crate::store::{execute_surely, load, load_surely};

/// PRIMARY, forced: the seeds' claim, one `UPDATE … LIMIT` keyed on `CONNECTION_ID()`: marks up to
/// `limit` ready rows of one priority in order of id, from `from` on. Read them back with
/// [`owned`].
///
/// It waits for every row that another session has locked. On MariaDB it also locks the first row
/// behind the range, so it fails with [`Fault::LockWait`](crate::Fault::LockWait) while a producer
/// has not committed that one.
pub async fn own_first(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: Place,
    limit: u32,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_message FORCE INDEX (PRIMARY) SET conn_id = CONNECTION_ID(), \
         worker_id = ?, claim_no = ?, delivery_no = delivery_no + 1 \
         WHERE topic_id = ? AND priority = ? AND id BETWEEN ? AND ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(fence.worker.0)
    .number(fence.claim_no.0)
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(place.from.0 + span(limit))
    .number(limit);
    execute_surely(conn, "claim: own the first ready rows", statement).await
}

/// PRIMARY, forced: marks up to `limit` ready rows of one priority, waiting for rows that another
/// claimer has locked. Read them back with [`owned`].
///
/// Unlike [`own_first`] it does not wait for the open transaction of a producer: the rows are named
/// by a plain read, which sees only what is committed, and marked by their keys if they are still
/// ready.
pub async fn own_ready(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: Place,
    limit: u32,
) -> Result<usize> {
    let statement = Statement::new(
        "SELECT id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id BETWEEN ? AND ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT ?",
    )
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(place.from.0 + span(limit))
    .number(limit);
    let ready: Vec<RowId> = load(conn, "claim: read ready rows", statement).await?;
    let rows: RowSet = ready.into_iter().collect();
    own(conn, fence, topic, place.priority, &rows).await
}

/// PRIMARY, forced: the rows that [`own_first`] or [`own_ready`] marked. Every one of them lies at
/// `place` or after it and bears this fence, which is never used twice.
pub async fn owned(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: Place,
    limit: u32,
) -> Result<Vec<Delivery>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id BETWEEN ? AND ? \
         AND conn_id = CONNECTION_ID() AND worker_id = ? AND claim_no = ? \
         ORDER BY topic_id, priority, id LIMIT ?"
    ))
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(place.from.0 + span(limit))
    .number(fence.worker.0)
    .number(fence.claim_no.0)
    .number(limit);
    let rows: Vec<MessageRow> = load_surely(conn, "claim: read the rows", statement).await?;
    Ok(rows.into_iter().map(|row| row.into_delivery(topic, fence.claim_no, 0)).collect())
}
