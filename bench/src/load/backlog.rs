//! Claims behind a backlog, timed one by one: whether a larger backlog makes them slower.

use std::time::{Duration, Instant};

use anyhow::Context;
use hdrhistogram::Histogram;
use mysql_async::prelude::Queryable;
use rowmq_core::model::{OnDone, Settlement};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};

use super::{Backlog, Beside, Claimer};
use crate::arena::Arena;
use crate::figure::{Name, Sample, quantile, rate};

/// Claims before the first that is timed: statements are prepared, the first pages read.
const WARM_UP: usize = 20;

/// How long the server may take to write what a fill left in memory.
const FLUSH_LIMIT: Duration = Duration::from_secs(300);

/// Pages of 16 KiB that do not count.
const FEW_PAGES: u64 = 500;

/// Settings that make the server write at once, as fast as it can.
const FLUSHING: [(&str, u32); 4] = [
    ("innodb_io_capacity_max", 40_000),
    ("innodb_io_capacity", 20_000),
    ("innodb_max_dirty_pages_pct_lwm", 0),
    ("innodb_max_dirty_pages_pct", 0),
];

/// How many rows one statement copies.
const COPY: u64 = 20_000;

pub(super) async fn run(arena: &Arena, backlog: Backlog) -> anyhow::Result<Sample> {
    pile(arena, backlog.backlog, backlog.body).await?;
    beside(arena, backlog.beside).await?;
    flush(arena).await?;
    let worker = Worker::start(WorkerOptions::new(arena.url().clone(), "bench")).await?;
    let limit = u32::try_from(backlog.batch)?;
    let mut times = Histogram::<u64>::new(3)?;
    let (mut claimed, start) = (0, Instant::now());
    for n in 0..WARM_UP + backlog.claims {
        let at = Instant::now();
        let found = worker.claim(arena.topic.id, limit).await?.deliveries;
        if n >= WARM_UP {
            times.record(u64::try_from(at.elapsed().as_nanos())?)?;
        }
        let settle = found
            .iter()
            .map(|delivery| Settled::new(delivery, Settlement::Ack, OnDone::Delete))
            .collect();
        worker.settle(settle).await?;
        claimed += found.len() as u64;
    }
    let rate = rate(claimed, start.elapsed());
    worker.stop().await?;
    Ok(Sample::of([quantile(Name::P99, &times), quantile(Name::P50, &times), rate]))
}

/// Makes the server write what the fill has left in memory. After ten million rows it would
/// otherwise write for minutes, which slows down any claim (to 2.7 times the median).
pub(super) async fn flush(arena: &Arena) -> anyhow::Result<()> {
    let mut conn = arena.raw().await?;
    let mut usual = Vec::new();
    for (name, value) in FLUSHING {
        let before: Option<f64> = conn.query_first(format!("SELECT @@{name}")).await?;
        usual.push((name, before.with_context(|| format!("The server does not know {name}"))?));
        conn.query_drop(format!("SET GLOBAL {name} = {value}")).await?;
    }
    for _ in 0..FLUSH_LIMIT.as_secs() {
        let dirty: Option<(String, u64)> =
            conn.query_first("SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'").await?;
        if dirty.is_none_or(|(_, pages)| pages < FEW_PAGES) {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    for (name, value) in usual.into_iter().rev() {
        conn.query_drop(format!("SET GLOBAL {name} = {value}")).await?;
    }
    Ok(())
}

/// Fills the topic. Large backlogs are copied within the server: sending them would take longer
/// than everything else.
pub(super) async fn pile(arena: &Arena, backlog: u64, body: usize) -> anyhow::Result<()> {
    let sent = backlog.min(COPY);
    arena.fill(Claimer::Consumer, sent, body).await?;
    let insert = "INSERT INTO queue_message (topic_id, priority, msg_id, enqueued_at, body) \
                  SELECT topic_id, priority, msg_id, enqueued_at, body FROM queue_message";
    copy(arena, insert, backlog - sent).await
}

/// Copies the topic's messages into another table.
pub(super) async fn beside(arena: &Arena, beside: Beside) -> anyhow::Result<()> {
    let (table, columns, values, rows) = match beside {
        Beside::Nothing => return Ok(()),
        Beside::Finished(rows) => (
            "queue_archive",
            "outcome, settled_at, keep_until",
            "'done', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 DAY",
            rows,
        ),
        Beside::Scheduled(rows) => {
            ("queue_scheduled", "due_at", "UTC_TIMESTAMP(6) + INTERVAL 1 HOUR", rows)
        }
        Beside::Dead(rows) => (
            "queue_dead",
            "cause, last_error, died_at",
            "'handler', CONCAT('error ', id MOD 20), UTC_TIMESTAMP(6)",
            rows,
        ),
    };
    let insert = format!(
        "INSERT INTO {table} ({columns}, topic_id, priority, msg_id, delivery_no, failures, crashes, \
         suspicions, enqueued_at, body) SELECT {values}, topic_id, priority, msg_id, 0, 0, 0, 0, \
         enqueued_at, body FROM queue_message"
    );
    copy(arena, &insert, rows).await
}

async fn copy(arena: &Arena, insert: &str, rows: u64) -> anyhow::Result<()> {
    let mut conn = arena.raw().await?;
    let mut left = rows;
    while left > 0 {
        let some = COPY.min(left);
        conn.query_drop(format!("{insert} LIMIT {some}")).await?;
        left -= some;
    }
    Ok(())
}
