//! The network between a process and its server.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::arena::{Arena, Role};
use crate::record::{Event, Hit};

/// Longer than the lease (10 s), the grace and a sweep.
const BEYOND_LEASE: Duration = Duration::from_secs(13);

pub(super) async fn cut_consumer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick(Role::Recorder, rng)?;
    let actor = victim.actor().0;
    victim.proxy.blackhole();
    arena.record.note(&Event::Hit { actor, how: Hit::Frozen })?;
    tokio::time::sleep(BEYOND_LEASE).await;
    victim.proxy.pass();
    Ok(())
}

/// For a moment that nobody should notice, or beyond every lease (F9).
pub(super) async fn cut_all(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let long = rng.random_ratio(1, 3);
    let cut = if long { BEYOND_LEASE } else { Duration::from_millis(rng.random_range(100..3_000)) };
    let everybody = arena.fleet.everybody();
    everybody.iter().for_each(|member| member.proxy.blackhole());
    tokio::time::sleep(cut).await;
    everybody.iter().for_each(|member| member.proxy.pass());
    Ok(())
}
