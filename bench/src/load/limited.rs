//! A backlog of messages with keys that processes drain under limits of claims: how fast they are,
//! and how much the server reads.

use std::num::NonZeroU32;
use std::time::Duration;

use anyhow::ensure;
use rowmq_core::model::Limits;
use rowmq_core::worker::{Worker, WorkerOptions};
use serde::Serialize;

use super::{Drain, drain};
use crate::arena::Arena;
use crate::figure::{Figure, Name, Sample, count, rate};

/// How many keys are full, where some are.
const FULL: u32 = 4;

/// Processes that drain a backlog of messages with keys.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Limited {
    /// The processes and the backlog.
    pub(crate) drain: Drain,
    /// The limits that all their claims share.
    pub(crate) limits: Limits,
    /// How many keys the messages have, in turn.
    pub(crate) keys: NonZeroU32,
    /// Messages before the backlog that no consumer can claim: they have four keys, and another
    /// worker handles one message of each all the time.
    pub(crate) blocked: u64,
}

pub(super) async fn run(arena: &Arena, load: Limited) -> anyhow::Result<Sample> {
    arena.set_limits(load.limits).await?;
    let sample = drain_within(arena, load).await;
    arena.set_limits(Limits::default()).await?;
    sample
}

async fn drain_within(arena: &Arena, load: Limited) -> anyhow::Result<Sample> {
    let Limited { drain, keys, .. } = load;
    let holder = if load.blocked > 0 { Some(block(arena, load).await?) } else { None };
    let key = |n: u64| Some(format!("key-{}", n % u64::from(keys.get())));
    arena.fill_queue(drain.backlog, drain.body, &key).await?;
    let before = arena.rows_walked().await?;
    let company = drain::muster(arena, drain).await?;
    let (done, curve) = company.until(drain.backlog, drain.limit).await?;
    let walked = arena.rows_walked().await? - before;
    company.dismiss().await?;
    if let Some(holder) = holder {
        holder.stop().await?;
    }
    ensure!(done.settled > 0, "Nothing was drained within {} s", drain.limit.as_secs());
    let time = done.time().unwrap_or(Duration::from_secs(1));
    let walked = Figure { name: Name::Walked, value: count(walked) / count(done.settled) };
    Ok(Sample { figures: vec![rate(done.settled, time), walked], curve, ..Sample::default() })
}

/// Adds the messages that no consumer can claim, and has a worker of this process hold one message
/// of each key.
async fn block(arena: &Arena, load: Limited) -> anyhow::Result<Worker> {
    let key = |n: u64| Some(format!("full-{}", n % u64::from(FULL)));
    arena.fill_queue(load.blocked + u64::from(FULL), load.drain.body, &key).await?;
    let worker = Worker::start(WorkerOptions::new(arena.url().clone(), "bench")).await?;
    let held = worker.claim(arena.topic.id, FULL * 2).await?.deliveries;
    ensure!(held.len() == FULL as usize, "{} of {FULL} keys are full", held.len());
    Ok(worker)
}
