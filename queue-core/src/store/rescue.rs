//! Rescue: taking back the claims of a dead worker, row by row under its fence.

use std::time::Duration;

use diesel::prelude::*;

use super::claim::{Claim, Fence};
use super::moves::WITH_FAILED_RUN;
use super::settle::ClaimedRows;
use super::{Statement, load, select};
use crate::connection::{Connection, row};
use crate::model::trace::Traced;
use crate::model::{FailedRun, Priority, Result, RowId};
use crate::schema::queue_topic;

/// The number of crashes shared with other messages after which a message is claimed alone.
///
/// After the first crash all rows of the worker become ready together, so that a killed consumer's
/// work is claimed again at once. A message of a second crash is isolated. With a limit of one, a
/// fleet would handle the rows of every killed consumer one by one.
pub(crate) const SHARED_CRASHES: u32 = 2;

/// A row that a dead worker held, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zombie {
    /// The row.
    pub row: RowId,
    /// Its message, and which delivery of it this was.
    pub delivery: Traced,
    /// Crashes of workers that held it alone.
    pub crashes: u32,
    /// Crashes of workers that held it among others.
    pub suspicions: u32,
}

/// A claim whose worker has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZombieClaim {
    /// The claim.
    pub claim: Claim,
    /// Whether its worker was declared dead; otherwise it stopped in order, or its row is gone.
    pub crashed: bool,
}

row! { ZombieClaim { claim, crashed } }

/// KEY (state, id) of the workers, joined to PRIMARY of the claims: lists up to `limit` claims
/// after `after` whose worker is dead or has stopped.
pub async fn zombie_claims(
    conn: &mut impl Connection,
    after: Fence,
    limit: u32,
) -> Result<Vec<ZombieClaim>> {
    let statement = Statement::new(format!(
        "SELECT {CLAIM}, w.state = 'dead' AS crashed \
         FROM queue_worker w JOIN queue_claim c ON c.worker_id = w.id \
         WHERE w.state IN ('dead', 'stopped') AND {AFTER} LIMIT ?"
    ));
    let statement = bind_after(statement, after).number(limit);
    load(conn, "rescue: find zombie claims", statement).await
}

/// PRIMARY (`worker_id`, `claim_no`), each joined to PRIMARY of the workers: lists up to `limit`
/// claims after `after` whose worker has no row (history H7). Reads every claim, so it runs rarely.
pub async fn orphan_claims(
    conn: &mut impl Connection,
    after: Fence,
    limit: u32,
) -> Result<Vec<ZombieClaim>> {
    let statement = Statement::new(format!(
        "SELECT {CLAIM}, FALSE AS crashed \
         FROM queue_claim c LEFT JOIN queue_worker w ON w.id = c.worker_id \
         WHERE w.id IS NULL AND {AFTER} LIMIT ?"
    ));
    let statement = bind_after(statement, after).number(limit);
    load(conn, "rescue: find orphan claims", statement).await
}

/// A claim of a topic that limits the run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimedClaim {
    /// The claim.
    pub claim: Claim,
    /// How long it may be held: the topic's longest run plus its worker's lease.
    pub may_take: Duration,
}

/// PRIMARY (`worker_id`, `claim_no`), joined to PRIMARY of workers and topics: lists up to `limit`
/// claims after `after` of topics that limit the run time. It does not read their age: a step of
/// the server's clock must not make them old.
pub async fn timed_claims(
    conn: &mut impl Connection,
    after: Fence,
    limit: u32,
) -> Result<Vec<TimedClaim>> {
    let statement = Statement::new(format!(
        "SELECT {CLAIM}, t.max_run_time_ms, w.lease_ms \
         FROM queue_claim c JOIN queue_topic t ON t.id = c.topic_id \
         JOIN queue_worker w ON w.id = c.worker_id \
         WHERE t.max_run_time_ms IS NOT NULL AND {AFTER} LIMIT ?"
    ));
    let statement = bind_after(statement, after).number(limit);
    load(conn, "rescue: look how long claims are held", statement).await
}

row! { TimedClaim { claim, may_take: may_take } }

/// Computes how long a message may be held: the longest run of its topic plus the lease of its
/// worker, both in milliseconds.
pub(in crate::store) fn may_take((max_run_time, lease): (u64, u64)) -> Duration {
    Duration::from_millis(max_run_time.saturating_add(lease))
}

const CLAIM: &str = "c.worker_id, c.claim_no, c.topic_id, c.priority, c.lo, c.hi, c.n, c.conn_id";

/// Continues after a place in the order, so that claims that cannot be freed do not hide others.
const AFTER: &str = "(c.worker_id > ? OR (c.worker_id = ? AND c.claim_no > ?)) \
     ORDER BY c.worker_id, c.claim_no";

fn bind_after(statement: Statement<'static>, after: Fence) -> Statement<'static> {
    statement.number(after.worker.0).number(after.worker.0).number(after.claim_no.0)
}

/// PRIMARY, the claim's key range: locks its rows that no other session has locked.
pub async fn lock_zombies(conn: &mut impl Connection, claim: &Claim) -> Result<Vec<Zombie>> {
    let statement =
        in_range("SELECT id, msg_id, delivery_no, crashes, suspicions FROM queue_message", claim)
            .sql(" ORDER BY topic_id, priority, id FOR UPDATE SKIP LOCKED");
    load(conn, "rescue: lock the rows", statement).await
}

row! { Zombie { row, delivery, crashes, suspicions } }
row! { Traced { msg_id, delivery_no } }

/// PRIMARY, the claim's key range, plain: counts the rows that still bear the claim's fence,
/// whether a settle under way has locked them or not.
pub async fn rows_left(conn: &mut impl Connection, claim: &Claim) -> Result<u64> {
    // Twice before the claim is forgotten, for the reason given at `load_surely`.
    match count_left(conn, claim).await? {
        0 => count_left(conn, claim).await,
        left => Ok(left),
    }
}

async fn count_left(conn: &mut impl Connection, claim: &Claim) -> Result<u64> {
    let statement = in_range("SELECT COUNT(*) AS n FROM queue_message", claim);
    let rows: Vec<u64> = load(conn, "rescue: count what is left", statement).await?;
    Ok(rows.first().copied().unwrap_or(0))
}

fn in_range(prefix: &'static str, claim: &Claim) -> Statement<'static> {
    Statement::new(prefix)
        .sql(
            " FORCE INDEX (PRIMARY) WHERE topic_id = ? AND priority = ? AND id BETWEEN ? AND ? \
             AND worker_id = ? AND claim_no = ?",
        )
        .number(claim.topic.0)
        .number(claim.priority.stored())
        .number(claim.lo.0)
        .number(claim.hi.0)
        .number(claim.fence.worker.0)
        .number(claim.fence.claim_no.0)
}

/// What a rescued row is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing: its worker did not crash.
    Nothing,
    /// Its worker crashed while it held other rows too.
    Suspicion,
    /// Its worker crashed while it held this row alone.
    Crash,
}

/// The error in the history of a crash that is charged.
pub(crate) const LONE_CRASH: &str = "its worker crashed while it ran alone";

/// PRIMARY, forced: makes locked rows ready again at `priority`, charged with what happened. A
/// crash that counts is recorded in the history.
pub async fn free(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    priority: Priority,
    charge: Charge,
) -> Result<usize> {
    let (suspicion, crash) = match charge {
        Charge::Nothing => (0_u32, 0_u32),
        Charge::Suspicion => (1, 0),
        Charge::Crash => (0, 1),
    };
    // The history first: both servers set columns from left to right, and it names the worker.
    let prefix = match charge {
        Charge::Crash => Statement::new(format!(
            "UPDATE queue_message FORCE INDEX (PRIMARY) SET history = {WITH_FAILED_RUN}, "
        ))
        .bytes(FailedRun::line_end(LONE_CRASH)),
        _ => Statement::new("UPDATE queue_message FORCE INDEX (PRIMARY) SET "),
    };
    let prefix = prefix
        .sql(
            "conn_id = 0, worker_id = 0, claim_no = 0, \
             priority = ?, suspicions = suspicions + ?, crashes = crashes + ?",
        )
        .number(priority.stored())
        .number(suspicion)
        .number(crash);
    claimed.execute_surely(conn, "rescue: free the rows", prefix).await
}

/// PRIMARY of the topics: reads after how many lone crashes the topic dead-letters a message.
pub async fn max_crashes(conn: &mut impl Connection, claim: &Claim) -> Result<u32> {
    let query = queue_topic::table.find(claim.topic).select(queue_topic::max_crashes);
    let rows: Vec<u32> = select(conn, "rescue: read the topic", query).await?;
    Ok(rows.first().copied().unwrap_or(u32::MAX))
}
