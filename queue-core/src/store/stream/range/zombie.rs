//! Ranges whose worker has ended.

use std::time::Duration;

use super::{COLUMNS, Range};
use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{FailedRun, RangeId, Result, WorkerId};
use crate::store::moves::WITH_FAILED_RUN;
use crate::store::rescue::{Charge, LONE_CRASH, may_take};
use crate::store::{execute_surely, load, load_surely};

/// A range whose worker has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zombie {
    /// The range.
    pub range: Range,
    /// Whether its worker was declared dead; otherwise it stopped in order, or its row is gone.
    pub crashed: bool,
}

row! { Zombie { range, crashed } }

/// KEY (state, id) of the workers, joined to KEY (`worker_id`, `claim_no`): lists up to `limit`
/// ranges after `after` whose worker is dead or has stopped.
pub async fn zombies(
    conn: &mut impl Connection,
    after: RangeId,
    limit: u32,
) -> Result<Vec<Zombie>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS}, w.state = 'dead' AS crashed \
         FROM queue_worker w JOIN queue_range r ON r.worker_id = w.id \
         WHERE w.state IN ('dead', 'stopped') AND r.id > ? ORDER BY r.id LIMIT ?"
    ));
    let statement = statement.number(after.0).number(limit);
    load(conn, "rescue: find zombie ranges", statement).await
}

/// PRIMARY, each joined to PRIMARY of the workers: lists up to `limit` ranges after `after` whose
/// worker has no row. Reads every range, so it runs rarely.
pub async fn orphans(
    conn: &mut impl Connection,
    after: RangeId,
    limit: u32,
) -> Result<Vec<Zombie>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS}, FALSE AS crashed \
         FROM queue_range r LEFT JOIN queue_worker w ON w.id = r.worker_id \
         WHERE r.worker_id <> 0 AND w.id IS NULL AND r.id > ? ORDER BY r.id LIMIT ?"
    ));
    let statement = statement.number(after.0).number(limit);
    load(conn, "rescue: find orphan ranges", statement).await
}

/// A range of a group that limits the run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// The range.
    pub range: Range,
    /// How long its mark may stay in place: the group's longest run plus its worker's lease.
    pub may_take: Duration,
}

/// PRIMARY, each joined to PRIMARY of the workers and of the topics: lists up to `limit` claimed
/// ranges after `after` of groups that limit the run time, however old they are.
pub async fn timed(conn: &mut impl Connection, after: RangeId, limit: u32) -> Result<Vec<Timed>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS}, t.max_run_time_ms, w.lease_ms FROM queue_range r \
         JOIN queue_topic t ON t.id = r.group_id JOIN queue_worker w ON w.id = r.worker_id \
         WHERE t.max_run_time_ms IS NOT NULL AND r.id > ? ORDER BY r.id LIMIT ?"
    ));
    let statement = statement.number(after.0).number(limit);
    load(conn, "rescue: look how long ranges are held", statement).await
}

row! { Timed { range, may_take: may_take } }

/// PRIMARY: takes a range back from its worker, charged with what happened. 0 rows: the worker no
/// longer owns it.
pub async fn free(conn: &mut impl Connection, range: &Range, charge: Charge) -> Result<usize> {
    let (suspicion, crash) = match charge {
        Charge::Nothing => (0_u32, 0_u32),
        Charge::Suspicion => (1, 0),
        Charge::Crash => (0, 1),
    };
    let statement = match charge {
        Charge::Crash => {
            Statement::new(format!("UPDATE queue_range SET history = {WITH_FAILED_RUN}, "))
                .bytes(FailedRun::line_end(LONE_CRASH))
        }
        _ => Statement::new("UPDATE queue_range SET "),
    };
    let statement = statement
        .sql(
            "worker_id = 0, claim_no = 0, conn_id = 0, suspicions = suspicions + ?, \
             crashes = crashes + ? WHERE id = ? AND worker_id = ? AND claim_no = ?",
        )
        .number(suspicion)
        .number(crash);
    let statement = super::owned_by(statement, range.id, range.fence);
    execute_surely(conn, "rescue: free the range", statement).await
}

/// PRIMARY: locks the range, if its worker still owns it and no other session has it locked.
pub async fn try_lock(conn: &mut impl Connection, range: &Range) -> Result<Option<Range>> {
    locked(conn, "rescue: lock the range", range, "FOR UPDATE SKIP LOCKED").await
}

/// PRIMARY: locks the range, if its worker still owns it. Waits for transactions of the worker's
/// handlers that ack a message of it, so that it is certain which are acked.
pub async fn lock(conn: &mut impl Connection, range: &Range) -> Result<Option<Range>> {
    locked(conn, "settle: lock the range", range, "FOR UPDATE").await
}

async fn locked(
    conn: &mut impl Connection,
    operation: &'static str,
    range: &Range,
    how: &str,
) -> Result<Option<Range>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r \
         WHERE r.id = ? AND r.worker_id = ? AND r.claim_no = ? {how}"
    ));
    let statement = super::owned_by(statement, range.id, range.fence);
    let rows: Vec<Range> = load_surely(conn, operation, statement).await?;
    Ok(rows.into_iter().next())
}

/// PRIMARY, plain: counts the messages of the range, if its worker still owns it.
pub async fn left_of(conn: &mut impl Connection, range: &Range) -> Result<u64> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r \
         WHERE r.id = ? AND r.worker_id = ? AND r.claim_no = ?"
    ));
    let statement = super::owned_by(statement, range.id, range.fence);
    let rows: Vec<Range> = load_surely(conn, "rescue: count what is left", statement).await?;
    Ok(rows.first().map_or(0, |range| range.hi.0 - range.mark.0))
}

/// KEY (`worker_id`, `claim_no`): counts the messages of the worker's ranges.
pub async fn messages_of(conn: &mut impl Connection, worker: WorkerId) -> Result<u64> {
    let statement = Statement::new(
        "SELECT CAST(COALESCE(SUM(hi - mark), 0) AS SIGNED) AS n \
         FROM queue_range FORCE INDEX (queue_range_worker) WHERE worker_id = ?",
    )
    .number(worker.0);
    let rows: Vec<u64> = load(conn, "count the messages it held", statement).await?;
    Ok(rows.first().copied().unwrap_or(0))
}
