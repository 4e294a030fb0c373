//! Rescue: taking the claims of a dead worker back, row by row under its fence.

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Integer, Unsigned};
use diesel_async::AsyncMysqlConnection;

use super::claim::{Claim, ClaimRow};
use super::settle::ClaimedRows;
use super::{Statement, execute, load};
use crate::error::Result;
use crate::message::{Priority, RowId};

/// A row that a dead worker held, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zombie {
    /// The row.
    pub row: RowId,
    /// Crashes of workers that held it alone.
    pub crashes: u32,
    /// Crashes of workers that held it among others.
    pub suspicions: u32,
}

/// A claim whose worker has no use of it any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZombieClaim {
    /// The claim.
    pub claim: Claim,
    /// Its worker was declared dead; else it stopped in order, or its row is gone.
    pub crashed: bool,
}

/// PRIMARY (worker_id, claim_no), joined to PRIMARY of the workers: up to `limit` claims whose
/// worker is dead, has stopped or is unknown (history H7).
///
/// # Errors
/// A database failure.
pub async fn zombie_claims(
    conn: &mut AsyncMysqlConnection,
    limit: u32,
) -> Result<Vec<ZombieClaim>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(embed)]
        claim: ClaimRow,
        #[diesel(sql_type = Integer)]
        crashed: i32,
    }
    let statement = Statement::new(
        "SELECT c.worker_id, c.claim_no, c.topic_id, c.priority, c.lo, c.hi, c.n, c.conn_id, \
         COALESCE(w.state = 'dead', FALSE) AS crashed \
         FROM queue_claim c LEFT JOIN queue_worker w ON w.id = c.worker_id \
         WHERE w.id IS NULL OR w.state <> 'alive' ORDER BY c.worker_id, c.claim_no LIMIT ?",
    )
    .number(limit);
    let rows: Vec<Row> = load(conn, "rescue: find zombie claims", statement).await?;
    let zombie = |row: Row| ZombieClaim { claim: row.claim.into(), crashed: row.crashed != 0 };
    Ok(rows.into_iter().map(zombie).collect())
}

/// PRIMARY (worker_id, claim_no), joined to PRIMARY of workers and topics: claims of live workers
/// that have outlived their topic's longest run by more than the worker's lease.
///
/// # Errors
/// A database failure.
pub async fn overdue_claims(conn: &mut AsyncMysqlConnection, limit: u32) -> Result<Vec<Claim>> {
    let statement = Statement::new(
        "SELECT c.worker_id, c.claim_no, c.topic_id, c.priority, c.lo, c.hi, c.n, c.conn_id \
         FROM queue_claim c JOIN queue_topic t ON t.id = c.topic_id \
         JOIN queue_worker w ON w.id = c.worker_id \
         WHERE t.max_run_time_ms IS NOT NULL AND c.claimed_at < UTC_TIMESTAMP(6) \
         - INTERVAL (t.max_run_time_ms + w.lease_ms) * 1000 MICROSECOND \
         ORDER BY c.worker_id, c.claim_no LIMIT ?",
    )
    .number(limit);
    let rows: Vec<ClaimRow> = load(conn, "rescue: find overdue claims", statement).await?;
    Ok(rows.into_iter().map(Claim::from).collect())
}

/// PRIMARY, the claim's key range: locks its rows that nobody has locked.
///
/// # Errors
/// A database failure.
pub async fn lock_zombies(conn: &mut AsyncMysqlConnection, claim: &Claim) -> Result<Vec<Zombie>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
        #[diesel(sql_type = Unsigned<Integer>)]
        crashes: u32,
        #[diesel(sql_type = Unsigned<Integer>)]
        suspicions: u32,
    }
    let statement = in_range("SELECT id, crashes, suspicions FROM queue_message", claim)
        .sql(" ORDER BY topic_id, priority, id FOR UPDATE SKIP LOCKED");
    let rows: Vec<Row> = load(conn, "rescue: lock the rows", statement).await?;
    Ok(rows
        .into_iter()
        .map(|row| Zombie { row: RowId(row.id), crashes: row.crashes, suspicions: row.suspicions })
        .collect())
}

/// PRIMARY, the claim's key range, plain: rows that still bear the claim's fence, be they locked
/// by a settle under way or not.
///
/// # Errors
/// A database failure.
pub async fn rows_left(conn: &mut AsyncMysqlConnection, claim: &Claim) -> Result<u64> {
    #[derive(QueryableByName)]
    struct Count {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }
    let statement = in_range("SELECT COUNT(*) AS n FROM queue_message", claim);
    let rows: Vec<Count> = load(conn, "rescue: count what is left", statement).await?;
    Ok(rows.first().map_or(0, |row| row.n.unsigned_abs()))
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

/// What a rescued row is charged with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing: its worker did not crash.
    Nothing,
    /// Its worker crashed while it held other rows too.
    Suspicion,
    /// Its worker crashed while it held this row alone.
    Crash,
}

/// PRIMARY: makes locked rows ready again at `priority`, charged with what happened.
///
/// # Errors
/// A database failure.
pub async fn free(
    conn: &mut AsyncMysqlConnection,
    claimed: &ClaimedRows,
    priority: Priority,
    charge: Charge,
) -> Result<usize> {
    let (suspicion, crash) = match charge {
        Charge::Nothing => (0_u32, 0_u32),
        Charge::Suspicion => (1, 0),
        Charge::Crash => (0, 1),
    };
    // The values of SET come before those of the condition.
    let statement = Statement::new(
        "UPDATE queue_message SET conn_id = 0, worker_id = 0, claim_no = 0, priority = ?, \
         suspicions = suspicions + ?, crashes = crashes + ?",
    )
    .number(priority.stored())
    .number(suspicion)
    .number(crash)
    .followed_by(claimed.statement(""));
    execute(conn, "rescue: free the rows", statement).await
}

/// PRIMARY of the topics: after how many lone crashes the topic dead-letters a message.
///
/// # Errors
/// A database failure.
pub async fn max_crashes(conn: &mut AsyncMysqlConnection, claim: &Claim) -> Result<u32> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<Integer>)]
        max_crashes: u32,
    }
    let statement =
        Statement::new("SELECT max_crashes FROM queue_topic WHERE id = ?").number(claim.topic.0);
    let rows: Vec<Row> = load(conn, "rescue: read the topic", statement).await?;
    Ok(rows.first().map_or(u32::MAX, |row| row.max_crashes))
}
