//! Rows that have served their time.

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};

use super::lane::LaneKind;
use super::row_set::RowSet;
use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::error::Result;
use crate::message::RowId;

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

/// KEY (`keep_until`): removes up to `limit` biz ids whose time is over from the ledger.
///
/// # Errors
/// A database failure.
pub async fn ledger(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_ledger WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute(conn, "prune the ledger", statement).await
}

/// KEY (`keep_until`): forgets up to `limit` message ids whose dedupe window is over.
///
/// # Errors
/// A database failure.
pub async fn dedupe(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_dedupe WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute(conn, "prune the message ids", statement).await
}

/// KEY (`keep_until`): frees up to `limit` unique keys whose time is over. Those that are held
/// until their message is done have none.
///
/// # Errors
/// A database failure.
pub async fn unique(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_unique WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute(conn, "prune the unique keys", statement).await
}

/// PRIMARY: removes up to `limit` lanes of this kind that no producer has used for `idle`. A
/// producer that still comes back makes its row anew. They are looked for without locks, so that no
/// lane in use is waited for.
///
/// # Errors
/// A database failure.
pub async fn lanes(
    conn: &mut impl Connection,
    kind: LaneKind,
    idle: Duration,
    limit: u32,
) -> Result<usize> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
    const OPERATION: &str = "prune the lanes";
    const IDLE: &str = "topic_id = 0 AND priority = ? \
         AND enqueued_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND";
    let statement = Statement::new(format!(
        "SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE {IDLE} \
         ORDER BY topic_id, priority, id LIMIT ?"
    ))
    .number(kind.priority())
    .number(idle.as_secs())
    .number(limit);
    let rows: Vec<Row> = load(conn, OPERATION, statement).await?;
    let mut pruned = 0;
    for piece in rows.iter().map(|row| RowId(row.id)).collect::<RowSet>().pieces() {
        let (condition, ids) = piece.condition();
        let statement = Statement::new(format!(
            "DELETE m FROM queue_message m FORCE INDEX (PRIMARY) WHERE {IDLE} AND {condition}"
        ));
        let statement = statement.number(kind.priority()).number(idle.as_secs()).numbers(ids);
        pruned += execute(conn, OPERATION, statement).await?;
    }
    Ok(pruned)
}

/// KEY (state, id), PRIMARY of the claims and KEY (`worker_id`, …) of the ranges: removes up to
/// `limit` workers that ended `ago` or longer and have no claim and no range left (history H7).
///
/// # Errors
/// A database failure.
pub async fn workers(conn: &mut impl Connection, ago: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_worker WHERE state IN ('dead', 'stopped') \
         AND ended_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         AND NOT EXISTS (SELECT 1 FROM queue_claim c WHERE c.worker_id = queue_worker.id) \
         AND NOT EXISTS (SELECT 1 FROM queue_range r WHERE r.worker_id = queue_worker.id) \
         ORDER BY id LIMIT ?",
    )
    .number(ago.as_secs())
    .number(limit);
    execute(conn, "prune the workers", statement).await
}
