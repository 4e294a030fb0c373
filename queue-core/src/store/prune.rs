//! Pruning rows whose time is over.

use std::time::Duration;

use super::lane::LaneKind;
use super::row_set::RowSet;
use super::{Statement, execute, execute_surely, load};
use crate::connection::Connection;
use crate::model::{Result, RowId, TopicId};

/// KEY (`keep_until`): removes up to `limit` archived messages whose time is over.
pub async fn archive(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_archive WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute_surely(conn, "prune the archive", statement).await
}

/// KEY (`keep_until`): removes up to `limit` biz ids whose time is over from the ledger.
pub async fn ledger(conn: &mut impl Connection, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_ledger WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?",
    )
    .number(limit);
    execute_surely(conn, "prune the ledger", statement).await
}

/// KEY (`keep_until`), plain, then PRIMARY: forgets up to `limit` message ids whose dedupe window
/// is over, except those that another session has locked.
pub async fn dedupe(conn: &mut impl Connection, limit: u32) -> Result<Pruned> {
    over(conn, "prune the message ids", "queue_dedupe", "msg_id", limit).await
}

/// KEY (`keep_until`), plain, then PRIMARY: frees up to `limit` unique keys whose time is over,
/// except those that another session has locked. Keys held until their message is done have no time
/// limit.
pub async fn unique(conn: &mut impl Connection, limit: u32) -> Result<Pruned> {
    over(conn, "prune the unique keys", "queue_unique", "unique_key", limit).await
}

/// The result of one step of pruning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Rows whose time is over, locked or not; if they reach the limit, there may be more.
    pub found: usize,
    /// Those of them that were removed.
    pub removed: usize,
}

/// Removes rows of `table` whose time is over. A producer locks such rows until its transaction
/// ends, first the row and then its entry in the other index. So they are looked for without locks,
/// and then locked and removed by their keys.
async fn over(
    conn: &mut impl Connection,
    operation: &'static str,
    table: &'static str,
    column: &'static str,
    limit: u32,
) -> Result<Pruned> {
    let find = Statement::new(format!(
        "SELECT topic_id, HEX({column}) AS hex FROM {table} FORCE INDEX ({table}_keep_until) \
         WHERE keep_until < UTC_TIMESTAMP(6) ORDER BY keep_until LIMIT ?"
    ));
    // MySQL 9.7 refuses to lock next to a JSON_TABLE unless it is materialized as a derived table:
    // the LIMIT, larger than any list, ensures that (*run*).
    let keys = format!(
        "(SELECT j.topic, j.hex FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS \
         (topic INT UNSIGNED PATH '$[0]', hex VARCHAR(510) PATH '$[1]')) j LIMIT 1000000) k \
         STRAIGHT_JOIN {table} t \
         FORCE INDEX (PRIMARY) ON t.topic_id = k.topic AND t.{column} = UNHEX(k.hex) \
         WHERE t.keep_until < UTC_TIMESTAMP(6)"
    );
    let json = |rows: &[(TopicId, String)]| {
        let pairs = rows.iter().map(|(topic, hex)| format!("[{},\"{hex}\"]", topic.0));
        format!("[{}]", pairs.collect::<Vec<_>>().join(",")).into_bytes()
    };
    let rows: Vec<(TopicId, String)> = load(conn, operation, find.number(limit)).await?;
    let found = rows.len();
    if rows.is_empty() {
        return Ok(Pruned::default());
    }
    let lock = Statement::new(format!(
        "SELECT t.topic_id, HEX(t.{column}) AS hex FROM {keys} FOR UPDATE SKIP LOCKED"
    ));
    let locked: Vec<(TopicId, String)> = load(conn, operation, lock.bytes(json(&rows))).await?;
    if locked.is_empty() {
        return Ok(Pruned { found, removed: 0 });
    }
    let delete = Statement::new(format!("DELETE t FROM {keys}")).bytes(json(&locked));
    Ok(Pruned { found, removed: execute(conn, operation, delete).await? })
}

/// PRIMARY: removes up to `limit` lanes of this kind that no producer has used for `idle`. A
/// producer that still comes back creates its row again. They are looked for without locks, so that
/// this never waits for a lane in use.
pub async fn lanes(
    conn: &mut impl Connection,
    kind: LaneKind,
    idle: Duration,
    limit: u32,
) -> Result<usize> {
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
    let rows: Vec<RowId> = load(conn, OPERATION, statement).await?;
    let mut pruned = 0;
    for piece in rows.into_iter().collect::<RowSet>().pieces() {
        let (condition, ids) = piece.condition();
        let statement = Statement::new(format!(
            "DELETE m FROM queue_message m FORCE INDEX (PRIMARY) WHERE {IDLE} AND {condition}"
        ));
        let statement = statement.number(kind.priority()).number(idle.as_secs()).numbers(ids);
        pruned += execute_surely(conn, OPERATION, statement).await?;
    }
    Ok(pruned)
}

/// KEY (state, id), PRIMARY of the claims and KEY (`worker_id`, …) of the ranges: removes up to
/// `limit` workers that ended at least `ago` before now and have no claim and no range left
/// (history H7).
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
    execute_surely(conn, "prune the workers", statement).await
}
