//! Seed 001, as in its source: under the group's lock it writes a row of the group's log for each
//! message, then reads the messages, then runs an UPDATE of each row. The source keeps the lock and
//! the highest offset in Redis; here the server keeps them.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error};

/// Claims a batch, reads it, and acks it message by message.
pub(super) async fn pull(conn: &mut Conn, batch: usize) -> Result<u64, Error> {
    conn.query_drop("DO GET_LOCK('bench_001', 60)").await?;
    let log = claim(conn, batch as u64).await;
    conn.query_drop("DO RELEASE_LOCK('bench_001')").await?;
    let log = log?;
    let (Some(first), Some(last)) = (log.first(), log.last()) else { return Ok(0) };
    let sql = "SELECT physics_offset, json_body FROM bench_001_msg \
         WHERE topic_name = 'bench' AND physics_offset BETWEEN ? AND ?";
    let _: Vec<(u64, Vec<u8>)> = conn.exec(sql, (first.0, last.0)).await?;
    for (_, id) in &log {
        let sql = "UPDATE bench_001_log SET state = 2, update_time = NOW() WHERE id = ?";
        conn.exec_drop(sql, (id,)).await?;
    }
    Ok(log.len() as u64)
}

/// Returns the offsets of the next messages, and their rows of the group's log.
async fn claim(conn: &mut Conn, batch: u64) -> Result<Vec<(u64, u64)>, Error> {
    let end: Option<u64> = conn
        .query_first("SELECT MAX(physics_offset) FROM bench_001_msg WHERE topic_name = 'bench'")
        .await?
        .flatten();
    let done: Option<u64> =
        conn.query_first("SELECT MAX(physics_offset) FROM bench_001_log").await?.flatten();
    let next = done.unwrap_or(0) + 1;
    let mut log = Vec::new();
    for offset in next..next.saturating_add(batch).min(end.unwrap_or(0) + 1) {
        let sql = "INSERT INTO bench_001_log (topic_name, physics_offset, group_name, client_id, \
             state) VALUES ('bench', ?, 'g', CONNECTION_ID(), 1)";
        conn.exec_drop(sql, (offset,)).await?;
        log.push((offset, conn.last_insert_id().unwrap_or(0)));
    }
    Ok(log)
}
