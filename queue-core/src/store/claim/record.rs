//! The rows that record claims.

use super::Fence;
use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{ClaimNo, ConnId, Priority, Result, RowId, TopicId, WorkerId};
use crate::store::row_set::{KEYS, RowSet};
use crate::store::{execute, load, load_surely};

/// A claim, as recorded: the key range that holds all its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The worker and claim number.
    pub fence: Fence,
    /// The topic of its rows.
    pub topic: TopicId,
    /// The priority of its rows.
    pub priority: Priority,
    /// Its lowest row.
    pub lo: RowId,
    /// Its highest row.
    pub hi: RowId,
    /// How many rows it had when it was made.
    pub n: u32,
    /// The connection that made it.
    pub conn: ConnId,
}

row! { Claim { fence, topic, priority, lo, hi, n, conn } }

/// PRIMARY (`worker_id`, `claim_no`): records a claim, in the transaction that makes it.
pub async fn record(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    priority: Priority,
    rows: &RowSet,
) -> Result<()> {
    let Some((lo, hi)) = rows.bounds() else { return Ok(()) };
    let statement = Statement::new(
        "INSERT INTO queue_claim \
         (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, CONNECTION_ID(), UTC_TIMESTAMP(6))",
    )
    .number(fence.worker.0)
    .number(fence.claim_no.0)
    .number(topic.0)
    .number(priority.stored())
    .number(lo.0)
    .number(hi.0)
    .number(rows.len() as u64);
    execute(conn, "claim: record it", statement).await?;
    Ok(())
}

/// PRIMARY (`worker_id`, `claim_no`), forced: forgets claims that have no rows left. Their numbers
/// are joined from a list, however few: a killed DELETE of one table may say that it found nothing.
pub async fn forget(
    conn: &mut impl Connection,
    worker: WorkerId,
    claims: &[ClaimNo],
) -> Result<usize> {
    let numbers = claims.iter().map(|claim| RowId(claim.0)).collect::<RowSet>();
    let statement = Statement::new(format!(
        "DELETE c FROM {KEYS} STRAIGHT_JOIN queue_claim c FORCE INDEX (PRIMARY) \
         ON c.worker_id = ? AND c.claim_no = k.id"
    ))
    .bytes(numbers.json())
    .number(worker.0);
    execute(conn, "settle: forget empty claims", statement).await
}

/// KEY (`topic_id`, priority, hi), forced, plain, one dive: finds the highest row that any claim
/// has.
pub async fn frontier(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: Priority,
) -> Result<Option<RowId>> {
    let statement = Statement::new(
        "SELECT hi FROM queue_claim FORCE INDEX (queue_claim_frontier) \
         WHERE topic_id = ? AND priority = ? \
         ORDER BY topic_id DESC, priority DESC, hi DESC LIMIT 1",
    )
    .number(topic.0)
    .number(priority.stored());
    let rows: Vec<RowId> = load(conn, "see how far claims have come", statement).await?;
    Ok(rows.first().copied())
}

/// PRIMARY (`worker_id`, `claim_no`): reads the worker's claims from `from` on. A worker that has
/// made many claims knows how far back to look; reading the dead entries of earlier ones would only
/// cost time.
pub async fn of_worker(
    conn: &mut impl Connection,
    worker: WorkerId,
    from: ClaimNo,
) -> Result<Vec<Claim>> {
    let statement = Statement::new(
        "SELECT worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id FROM queue_claim \
         WHERE worker_id = ? AND claim_no >= ? ORDER BY claim_no",
    )
    .number(worker.0)
    .number(from.0);
    load_surely(conn, "read the worker's claims", statement).await
}
