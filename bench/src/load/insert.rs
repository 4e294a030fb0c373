//! The raw limit of writing: INSERT in a loop, by the bare driver, prepared.

use std::time::Instant;

use futures_util::future::try_join_all;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Value};
use rowmq_core::MsgId;

use super::{Commit, Insert, Table};
use crate::arena::{Arena, bytes};
use crate::figure::{Sample, rate};

pub(super) async fn run(arena: &Arena, insert: Insert) -> anyhow::Result<Sample> {
    let sql = statement(insert);
    let connections = try_join_all((0..insert.connections).map(|_| arena.raw())).await?;
    let start = Instant::now();
    let loops = connections.into_iter().map(|conn| {
        let (sql, topic) = (sql.clone(), arena.topic.id.0);
        tokio::spawn(async move { until(start, insert, conn, &sql, topic).await })
    });
    let mut rows = 0;
    for inserted in try_join_all(loops).await? {
        rows += inserted?;
    }
    Ok(Sample::of([rate(rows, start.elapsed())]))
}

async fn until(
    start: Instant,
    insert: Insert,
    mut conn: Conn,
    sql: &str,
    topic: u32,
) -> anyhow::Result<u64> {
    let statement = conn.prep(sql).await?;
    let mut rows = 0;
    while start.elapsed() < insert.time {
        let values: Vec<Value> = (0..insert.rows).flat_map(|_| row(insert, topic)).collect();
        if insert.commit == Commit::Transaction {
            conn.query_drop("BEGIN").await?;
        }
        conn.exec_drop(&statement, values).await?;
        if insert.commit == Commit::Transaction {
            conn.query_drop("COMMIT").await?;
        }
        rows += insert.rows as u64;
    }
    Ok(rows)
}

fn statement(insert: Insert) -> String {
    let (columns, row) = match insert.table {
        Table::Bare => ("bench_bare (body)", "(?)"),
        Table::Queue => (
            "queue_message (topic_id, priority, msg_id, enqueued_at, body)",
            "(?, ?, ?, UTC_TIMESTAMP(6), ?)",
        ),
    };
    format!("INSERT INTO {columns} VALUES {}", vec![row; insert.rows].join(", "))
}

fn row(insert: Insert, topic: u32) -> Vec<Value> {
    let body = bytes(insert.body).into();
    match insert.table {
        Table::Bare => vec![body],
        Table::Queue => {
            vec![topic.into(), 5.into(), MsgId::new().as_bytes().into(), body]
        }
    }
}
