//! `CALL queue_send` or `queue_send_all` in a loop, by the bare driver, prepared: as in any
//! language.

use std::time::Instant;

use futures_util::future::try_join_all;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::Enqueue;
use crate::arena::{Arena, bytes};
use crate::figure::{Sample, rate};

const ENQUEUE: &str = "CALL queue_send(?, ?, NULL)";
const SEND_ALL: &str = "CALL queue_send_all(?, ?)";

pub(super) async fn run(arena: &Arena, enqueue: Enqueue) -> anyhow::Result<Sample> {
    let connections = try_join_all((0..enqueue.connections).map(|_| arena.raw())).await?;
    let start = Instant::now();
    let loops = connections.into_iter().map(|conn| {
        let topic = arena.topic.name.as_str().to_owned();
        tokio::spawn(async move { until(start, enqueue, conn, &topic).await })
    });
    let mut messages = 0;
    for enqueued in try_join_all(loops).await? {
        messages += enqueued?;
    }
    Ok(Sample::of([rate(messages, start.elapsed())]))
}

async fn until(
    start: Instant,
    enqueue: Enqueue,
    mut conn: Conn,
    topic: &str,
) -> anyhow::Result<u64> {
    let many = enqueue.batch > 1;
    let statement = conn.prep(if many { SEND_ALL } else { ENQUEUE }).await?;
    let list = batch(enqueue);
    let mut messages = 0;
    while start.elapsed() < enqueue.time {
        if many {
            conn.query_drop("START TRANSACTION").await?;
        }
        let given = if many { list.clone() } else { bytes(enqueue.body) };
        conn.exec_drop(&statement, (topic, given)).await?;
        if many {
            conn.query_drop("COMMIT").await?;
        }
        messages += enqueue.batch as u64;
    }
    Ok(messages)
}

/// Returns the batch in the form that `queue_send_all` takes.
fn batch(enqueue: Enqueue) -> Vec<u8> {
    let message = serde_json::json!({ "body": "x".repeat(enqueue.body) });
    serde_json::Value::from(vec![message; enqueue.batch]).to_string().into_bytes()
}
