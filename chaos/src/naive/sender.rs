//! Inserts rows; an insert without an answer is repeated, as most programs do.

use std::time::Duration;

use diesel::sql_types::Binary;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl, SimpleAsyncConnection};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::{NaiveArgs, connect};
use crate::record::{Enqueued, Event, Record};
use crate::tag::Tag;
use crate::task::Task;

pub(super) async fn run(
    args: &NaiveArgs,
    url: &ServerUrl,
    record: &Record,
    drain: &CancellationToken,
) -> anyhow::Result<()> {
    let mut rng = SmallRng::seed_from_u64(args.seed ^ args.identity.actor.0);
    let mut conn = None;
    for seq in 0.. {
        if drain.is_cancelled() {
            return Ok(());
        }
        let first = Tag { sender: args.identity.actor, seq };
        let body = serde_json::to_vec(&Task::random(&mut rng, args.work_ms, true))?;
        record.note(&Event::Invoke { first, n: 1 })?;
        loop {
            if conn.is_none() {
                conn = connect(url, drain).await;
            }
            let Some(open) = &mut conn else { return Ok(()) };
            match insert(open, first, &body).await {
                Ok(()) => break,
                Err(_) => conn = None,
            }
        }
        record.note(&Event::Enqueue { first, n: 1, outcome: Enqueued::Stored })?;
        tokio::time::sleep(Duration::from_secs_f64(1.0 / args.rate)).await;
    }
    Ok(())
}

/// Runs one transaction, as an application would.
async fn insert(conn: &mut AsyncMysqlConnection, tag: Tag, body: &[u8]) -> diesel::QueryResult<()> {
    conn.batch_execute("BEGIN").await?;
    diesel::sql_query("INSERT INTO naive_queue (msg_id, body) VALUES (?, ?)")
        .bind::<Binary, _>(tag.msg_id().as_bytes().to_vec())
        .bind::<Binary, _>(body.to_vec())
        .execute(conn)
        .await?;
    conn.batch_execute("COMMIT").await
}
