//! Delayed messages that fall due one by one, beside many that do not: how late each becomes ready,
//! and what the waiting costs.

use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::DateTime;
use hdrhistogram::Histogram;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::{NewMessage, enqueue_to};
use tokio::time::Instant;

use super::Delays;
use crate::actor::{Company, Task};
use crate::arena::{Arena, bytes};
use crate::figure::{Figure, Name, Sample, count, quantile};
use crate::process;

/// How many rows one statement copies.
const COPY: u64 = 20_000;

/// Later than any load ends.
const FAR: Duration = Duration::from_secs(7200);

/// How long the janitor has to start before it is measured, and how long after messages are
/// scheduled the first one is due.
const START: Duration = Duration::from_secs(4);

/// How often the load checks whether a message has become ready.
const LOOK: Duration = Duration::from_millis(1);

/// How long after the last message was due the load may take.
const LIMIT: Duration = Duration::from_secs(30);

/// The server's clock, in microseconds.
const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

pub(super) async fn run(arena: &Arena, delays: Delays) -> anyhow::Result<Sample> {
    let mut conn = arena.raw().await?;
    fill(arena, &mut conn, delays).await?;
    let company = Company::muster(arena.url(), std::iter::once(Task::Sweep)).await?;
    tokio::time::sleep(START).await;
    let [statements, cpu] = idle(arena, &company, delays.idle).await?;
    let messages = schedule(arena, &mut conn, delays).await?;
    let times = watch(arena, &mut conn, messages, delays).await?;
    company.dismiss().await?;
    let (p50, p99) = (quantile(Name::P50, &times), quantile(Name::P99, &times));
    Ok(Sample::of([p50, p99, statements, cpu]))
}

/// Adds messages that are due in hours; most are copied within the server.
async fn fill(arena: &Arena, conn: &mut Conn, delays: Delays) -> anyhow::Result<()> {
    const CARRIED: &str = "topic_id, priority, msg_id, delivery_no, failures, crashes, suspicions, \
         enqueued_at, body";
    let first = COPY.min(delays.pending);
    let far = |_| NewMessage::new(bytes(delays.body)).with_delay(FAR);
    enqueue(arena, (0..first).map(far).collect()).await?;
    let mut rows = first;
    while rows < delays.pending {
        let more = COPY.min(delays.pending - rows);
        conn.query_drop(format!(
            "INSERT INTO queue_scheduled (due_at, {CARRIED}) \
             SELECT due_at + INTERVAL {rows} MICROSECOND, {CARRIED} FROM queue_scheduled LIMIT {more}"
        ))
        .await?;
        rows += more;
    }
    Ok(())
}

async fn enqueue(arena: &Arena, messages: Vec<NewMessage>) -> anyhow::Result<()> {
    let mut conn = connect(arena.url(), SessionKind::Plain).await?;
    enqueue_to(&mut conn, &arena.topic, &messages).await?;
    Ok(())
}

/// Adds messages that soon fall due at the rate; the business id of each is its due time.
async fn schedule(arena: &Arena, conn: &mut Conn, delays: Delays) -> anyhow::Result<u64> {
    let messages = u64::from(delays.rate) * delays.time.as_secs();
    let now: Option<i64> = conn.query_first(format!("SELECT {NOW}")).await?;
    let now = now.and_then(DateTime::from_timestamp_micros).context("The server has no clock")?;
    let due = |n: u64| {
        let at = now + START + Duration::from_micros(n * 1_000_000 / u64::from(delays.rate));
        NewMessage::new(bytes(delays.body))
            .with_deliver_at(at)
            .with_biz_id(at.timestamp_micros().to_string())
    };
    enqueue(arena, (0..messages).map(due).collect()).await?;
    Ok(messages)
}

/// Keeps checking from outside, and measures each message's lateness by the server's clock.
async fn watch(
    arena: &Arena,
    conn: &mut Conn,
    messages: u64,
    delays: Delays,
) -> anyhow::Result<Histogram<u64>> {
    let look = conn
        .prep(format!(
            "SELECT id, CAST(CAST(biz_id AS CHAR) AS UNSIGNED), {NOW} FROM queue_message \
             WHERE topic_id = ? AND priority = 5 AND id > ? ORDER BY id"
        ))
        .await?;
    let mut times = Histogram::<u64>::new(3)?;
    let (mut last, end) = (0, Instant::now() + START + delays.time + LIMIT);
    while times.len() < messages {
        ensure!(Instant::now() < end, "{} of {messages} messages became ready", times.len());
        let rows: Vec<(u64, u64, u64)> = conn.exec(&look, (arena.topic.id.0, last)).await?;
        for (id, due, now) in rows {
            times.record(now.saturating_sub(due) * 1000)?;
            last = id;
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(times)
}

/// Measures the statements of the server and the sweeper's share of a core while nothing is due.
async fn idle(arena: &Arena, company: &Company, time: Duration) -> anyhow::Result<[Figure; 2]> {
    let cpu = || {
        let ids = company.ids().into_iter();
        ids.map(process::cpu_time).sum::<anyhow::Result<Duration>>()
    };
    let (before, used, start) = (arena.statements().await?, cpu()?, Instant::now());
    tokio::time::sleep(time).await;
    let (after, used_after, took) = (arena.statements().await?, cpu()?, start.elapsed());
    let own = arena.statements().await? - after;
    let asked = count((after - before).saturating_sub(own)) / took.as_secs_f64();
    let share = (used_after - used).as_secs_f64() / took.as_secs_f64() * 100.0;
    Ok([Figure { name: Name::Statements, value: asked }, Figure { name: Name::Cpu, value: share }])
}
