//! Rows that have served their time.

use std::time::Duration;

use super::{Statement, execute};
use crate::connection::Connection;
use crate::error::Result;

/// KEY (`keep_until`): removes up to `limit` archived messages whose time is over.
///
/// # Errors
/// A database failure.
pub async fn archive(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_archive WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute(conn, "prune the archive", statement).await
}

/// KEY (`used_at`): removes up to `limit` lanes that no producer has used for `idle`. A producer
/// that still comes back finds its lane gone and opens another.
///
/// # Errors
/// A database failure.
pub async fn lanes(conn: &mut impl Connection, idle: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_lane WHERE used_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY used_at LIMIT ?",
    )
    .number(idle.as_secs())
    .number(limit);
    execute(conn, "prune the lanes", statement).await
}

/// KEY (state, id), and PRIMARY of the claims: removes up to `limit` workers that ended `ago` or
/// longer and have no claim left (history H7).
///
/// # Errors
/// A database failure.
pub async fn workers(conn: &mut impl Connection, ago: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_worker WHERE state IN ('dead', 'stopped') \
         AND ended_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         AND NOT EXISTS (SELECT 1 FROM queue_claim c WHERE c.worker_id = queue_worker.id) \
         ORDER BY id LIMIT ?",
    )
    .number(ago.as_secs())
    .number(limit);
    execute(conn, "prune the workers", statement).await
}
