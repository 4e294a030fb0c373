//! Claiming as the seeds do: an UPDATE first, then a SELECT that reads back the rows it marked.
//! Claimers wait for each other.

use super::{COLUMNS, Fence, MessageRow, ScanPosition, own, span};
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Delivery, Result, RowId, TopicId};
use crate::store::row_set::RowSet;
use crate::store::{execute_surely, load, load_surely};

/// PRIMARY, forced: claims as the seeds do, by one `UPDATE … LIMIT` keyed on `CONNECTION_ID()`:
/// marks up to `limit` ready rows of one priority in order of id, from `from` on. [`owned`] reads
/// them back.
///
/// It waits for every row that another session has locked. On MariaDB it also locks the first row
/// behind the range, so it fails with [`Fault::LockWait`](crate::Fault::LockWait) while a producer
/// has that row uncommitted.
pub async fn own_first(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: ScanPosition,
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
/// claimer has locked. [`owned`] reads them back.
///
/// Unlike [`own_first`] it does not wait for a producer's open transaction: a plain read, which
/// sees only committed rows, finds the rows, and the UPDATE marks them by their keys if they are
/// still ready.
pub async fn own_ready(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: ScanPosition,
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

/// PRIMARY, forced: reads the rows that [`own_first`] or [`own_ready`] marked. Each lies at `place`
/// or after it and bears this fence, which is never used twice.
pub async fn owned(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: ScanPosition,
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
