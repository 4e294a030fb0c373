//! The claimers of the articles that led to this product, with only their syntax repaired. Each
//! claims by `CONNECTION_ID()`, reads back the rows that it owns, and settles a whole batch at
//! once, which is faster than the articles' own settling row by row.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Value};
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::{DrainTask, Tally, ems, is_conflict};
use crate::arena::raw;
use crate::claimer::Claimer;

/// The wait after a claim that found nothing.
const IDLE: Duration = Duration::from_millis(5);

pub(super) async fn drain(
    task: &DrainTask,
    url: &ServerUrl,
    tally: &Tally,
    drained: &CancellationToken,
) -> anyhow::Result<()> {
    let mut conn = raw(url).await?;
    while !drained.is_cancelled() {
        tally.begin();
        match round(&mut conn, task).await.map_err(anyhow::Error::from) {
            Ok(0) => tokio::time::sleep(IDLE).await,
            Ok(settled) => tally.settle(settled),
            // The articles do not mention conflicts; without a retry the claimer would end here.
            Err(error) if is_conflict(&error) => {
                conn.query_drop("ROLLBACK").await?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Claims a batch, reads it, settles it.
async fn round(conn: &mut Conn, task: &DrainTask) -> Result<u64, Error> {
    let batch = task.batch;
    let ids: Vec<u32> = match task.by {
        Claimer::Seed001 => return ems::pull(conn, batch).await,
        Claimer::Seed003 => {
            conn.query_drop(format!(
                "UPDATE bench_003 SET status = 'run', update_times = UNIX_TIMESTAMP(), \
                 conn_id = CONNECTION_ID() WHERE conn_id = 0 AND status = 'n' LIMIT {batch}"
            ))
            .await?;
            let rows: Vec<(u32, Vec<u8>)> = conn
                .query(
                    "SELECT id, data_string FROM bench_003 \
                     WHERE biz = 1000 AND conn_id = CONNECTION_ID() AND status = 'run'",
                )
                .await?;
            rows.into_iter().map(|row| row.0).collect()
        }
        Claimer::Seed004ForUpdate => select_for_update(conn, batch).await?,
        _ => {
            conn.query_drop(format!(
                "UPDATE bench_004 SET status = 'claimed', owner = CONNECTION_ID() \
                 WHERE owner = 0 AND status = 'unsent' LIMIT {batch}"
            ))
            .await?;
            read_004(conn).await?
        }
    };
    settle(conn, task.by, &ids).await?;
    Ok(ids.len() as u64)
}

/// The SELECT that seed 004 warns of: every other session waits between the SELECT and the COMMIT.
async fn select_for_update(conn: &mut Conn, batch: usize) -> Result<Vec<u32>, Error> {
    conn.query_drop("BEGIN").await?;
    let ids: Vec<u32> = conn
        .query(format!(
            "SELECT id FROM bench_004 WHERE owner = 0 AND status = 'unsent' LIMIT {batch} FOR UPDATE"
        ))
        .await?;
    if !ids.is_empty() {
        let sql = format!(
            "UPDATE bench_004 SET status = 'claimed', owner = CONNECTION_ID() WHERE id IN ({})",
            places(&ids)
        );
        conn.exec_drop(sql, values(&ids)).await?;
    }
    conn.query_drop("COMMIT").await?;
    read_004(conn).await
}

async fn read_004(conn: &mut Conn) -> Result<Vec<u32>, Error> {
    let sql = "SELECT id, body FROM bench_004 WHERE owner = CONNECTION_ID() AND status = 'claimed'";
    let rows: Vec<(u32, Vec<u8>)> = conn.query(sql).await?;
    Ok(rows.into_iter().map(|row| row.0).collect())
}

async fn settle(conn: &mut Conn, by: Claimer, ids: &[u32]) -> Result<(), Error> {
    if ids.is_empty() {
        return Ok(());
    }
    let sql = match by {
        Claimer::Seed003 => format!(
            "UPDATE bench_003 SET status = 'y', update_times = UNIX_TIMESTAMP() \
             WHERE id IN ({}) AND conn_id = CONNECTION_ID() AND status = 'run'",
            places(ids)
        ),
        _ => format!(
            "UPDATE bench_004 SET status = 'sent' \
             WHERE id IN ({}) AND owner = CONNECTION_ID() AND status = 'claimed'",
            places(ids)
        ),
    };
    conn.exec_drop(sql, values(ids)).await
}

fn places(ids: &[u32]) -> String {
    vec!["?"; ids.len()].join(", ")
}

fn values(ids: &[u32]) -> Vec<Value> {
    ids.iter().map(|id| (*id).into()).collect()
}
