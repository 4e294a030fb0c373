//! Processes are killed, frozen and stopped.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rowmq_test::proxy::statement::STORE_IN_LANE;
use rustix::process::Signal;

use super::BEYOND_LEASE;
use crate::arena::{Arena, Role};
use crate::record::{Event, Hit};
use crate::stream::STREAM;
use crate::task::{Ending, Task};
use crate::topics::{EFFECTS, LEDGER, WORK};

pub(super) async fn kill_consumer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick_consumer(rng)?;
    let actor = victim.actor().0;
    if victim.signal(Signal::KILL) {
        arena.record.note(&Event::Hit { actor, how: Hit::Killed })?;
    }
    Ok(())
}

pub(super) async fn freeze_consumer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick_consumer(rng)?;
    let actor = victim.actor().0;
    if victim.signal(Signal::STOP) {
        arena.record.note(&Event::Hit { actor, how: Hit::Frozen })?;
        tokio::time::sleep(BEYOND_LEASE).await;
        victim.signal(Signal::CONT);
    }
    Ok(())
}

pub(super) async fn kill_producer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    arena.fleet.pick(Role::Sender, rng)?.signal(Signal::KILL);
    Ok(())
}

/// Kills a sender whose journal has messages that the server never got, or got without an answer;
/// another process must continue with the journal while the server is still away.
pub(super) async fn kill_spiller(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick(Role::Spiller, rng)?;
    match rng.random_range(0..3) {
        0 => victim.proxy.drop_reply_after(STORE_IN_LANE),
        1 => victim.proxy.blackhole(),
        _ => victim.proxy.refuse(),
    }
    for _ in 0..rng.random_range(1..4) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(100..3000))).await;
        victim.signal(Signal::KILL);
        if rng.random() {
            victim.proxy.refuse();
        }
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..3000))).await;
    victim.proxy.pass();
    // While it sends what is in the journal.
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..1000))).await;
    victim.signal(Signal::KILL);
    Ok(())
}

pub(super) async fn stop_consumer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick(Role::Recorder, rng)?;
    victim.signal(Signal::TERM);
    if rng.random_ratio(1, 3) {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..300))).await;
        victim.signal(Signal::TERM);
    }
    Ok(())
}

pub(super) async fn kill_janitor(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    arena.fleet.pick(Role::Janitor, rng)?.signal(Signal::KILL);
    Ok(())
}

/// Freezes a janitor for a moment between a read and a write, or beyond its own lease.
pub(super) async fn freeze_janitor(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick(Role::Janitor, rng)?;
    if victim.signal(Signal::STOP) {
        let long = rng.random_ratio(1, 4);
        let millis = if long { 12_000 } else { rng.random_range(100..2_000) };
        tokio::time::sleep(Duration::from_millis(millis)).await;
        victim.signal(Signal::CONT);
    }
    Ok(())
}

pub(super) async fn abort_before_ack(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let topic = [WORK, LEDGER, EFFECTS, STREAM][rng.random_range(0..4)];
    arena.send(topic, Task { work_ms: 20, ending: Ending::AbortOnce }).await?;
    Ok(())
}

pub(super) async fn poison(arena: &Arena, _: &mut SmallRng) -> anyhow::Result<()> {
    arena.send(WORK, Task { work_ms: 0, ending: Ending::Poison }).await?;
    Ok(())
}
