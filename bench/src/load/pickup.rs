//! Messages that come one by one to consumers with nothing to do: how long they wait, and what the
//! waiting costs the server.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rowmq_core::NewMessage;
use rowmq_producer::{Producer, ProducerOptions};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Pickup, WakeUp};
use crate::actor::{Company, PickupTask, Task, now};
use crate::arena::{Arena, bytes};
use crate::figure::{Figure, Name, Sample, count, quantile};
use crate::process;

/// Bytes of a body; the first eight are the time.
const BODY: usize = 200;

/// How long consumers may take to register.
const START: Duration = Duration::from_secs(30);

/// How long it takes until every consumer listens to its bell, and the sweeper looks as rarely as
/// it does while no message comes.
const LISTEN: Duration = Duration::from_secs(6);

/// How long after the last message the load may take.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) async fn run(arena: &Arena, pickup: Pickup) -> anyhow::Result<Sample> {
    let mut topics = vec![arena.topic.name.as_str().to_owned()];
    for n in 1..pickup.topics {
        topics.push(
            arena.database().topic(&format!("idle-{n}-{}", now())).await.name.as_str().to_owned(),
        );
    }
    let task = PickupTask { topics, wake_up: pickup.wake_up };
    let tasks = (0..pickup.consumers).map(|_| Task::Pickup(task.clone()));
    // A sweeper rings; its statements are counted with the consumers'.
    let sweeper = (pickup.wake_up != WakeUp::Polling).then_some(Task::Sweep);
    let sweeper = Company::muster(arena.url(), sweeper.into_iter()).await?;
    let company = Company::muster(arena.url(), tasks).await?;
    let options = ProducerOptions { lanes: NonZeroU32::MIN, ..ProducerOptions::default() };
    let producer = Producer::connect(arena.url().clone(), options).await?;
    settle_in(arena, &company, &producer, pickup.consumers).await?;
    if pickup.wake_up != WakeUp::Polling {
        tokio::time::sleep(LISTEN).await;
    }
    let warm = company.count().settled;
    let idle = idle(arena, &company, pickup).await?;

    let mut ticks = tokio::time::interval(Duration::from_secs(1) / pickup.rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for _ in 0..pickup.messages {
        ticks.tick().await;
        producer.send(&arena.topic.name, message(now())).await?;
    }
    let all = warm + pickup.messages as u64;
    let (seen, _) = company.until(all, LIMIT).await?;
    ensure!(seen.settled == all, "{} of {all} messages were picked up", seen.settled);
    producer.close().await;
    let all = company.dismiss().await?;
    sweeper.dismiss().await?;
    let times = all.latencies()?;
    let mut figures = vec![quantile(Name::P50, &times), quantile(Name::P99, &times)];
    figures.extend(idle);
    Ok(Sample { figures, curve: shares(&times), ..Sample::default() })
}

/// Returns milliseconds, and the percentage of messages picked up by then.
fn shares(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    (0..=100u32)
        .map(|percent| {
            let nanos = times.value_at_quantile(f64::from(percent) / 100.0);
            (Duration::from_nanos(nanos).as_secs_f64() * 1e3, f64::from(percent))
        })
        .collect()
}

/// Returns a message with the time it was sent at; 0 means that its time does not count.
fn message(sent: u64) -> NewMessage {
    let mut body = bytes(BODY);
    body.iter_mut().zip(sent.to_be_bytes()).for_each(|(byte, of)| *byte = of);
    NewMessage::new(body)
}

/// Waits until every consumer is registered, and sends messages to warm everything up.
async fn settle_in(
    arena: &Arena,
    company: &Company,
    producer: &Producer,
    consumers: usize,
) -> anyhow::Result<()> {
    use mysql_async::prelude::Queryable;
    let mut conn = arena.raw().await?;
    let end = Instant::now() + START;
    loop {
        let sql = "SELECT COUNT(*) FROM queue_worker WHERE state = 'alive' AND conn_id <> 0";
        let alive: Option<usize> = conn.query_first(sql).await?;
        if alive == Some(consumers) {
            break;
        }
        ensure!(Instant::now() < end, "{alive:?} of {consumers} consumers have registered");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for n in 1..=10 {
        producer.send(&arena.topic.name, message(0)).await?;
        company.until(n, LIMIT).await?;
    }
    Ok(())
}

/// Measures the statements of the server, its share of a core, and the first consumer's, while no
/// message comes.
async fn idle(arena: &Arena, company: &Company, pickup: Pickup) -> anyhow::Result<[Figure; 3]> {
    let server = arena.server_process().await?;
    let first = company.ids().first().copied().context("There is no consumer")?;
    let used = || anyhow::Ok([process::cpu_time(first)?, process::cpu_time(server)?]);
    let (before, used_before, start) = (arena.statements().await?, used()?, Instant::now());
    tokio::time::sleep(pickup.idle).await;
    let (after, used_after, time) = (arena.statements().await?, used()?, start.elapsed());
    // The measurement's own statements: those that open its connection, and the query itself.
    let own = arena.statements().await? - after;
    let asked = count((after - before).saturating_sub(own)) / time.as_secs_f64();
    let share =
        |of: usize| (used_after[of] - used_before[of]).as_secs_f64() / time.as_secs_f64() * 100.0;
    Ok([
        Figure { name: Name::Statements, value: asked },
        Figure { name: Name::Cpu, value: share(0) },
        Figure { name: Name::ServerCpu, value: share(1) },
    ])
}
