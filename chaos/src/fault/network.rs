//! The network between processes and their server.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::BEYOND_LEASE;
use crate::arena::{Arena, Member};
use crate::record::{Event, Hit};

pub(super) async fn cut_consumer(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victim = arena.fleet.pick_consumer(rng)?;
    let actor = victim.actor().0;
    victim.proxy.blackhole();
    arena.record.note(&Event::Hit { actor, how: Hit::Frozen })?;
    tokio::time::sleep(BEYOND_LEASE).await;
    victim.proxy.pass();
    Ok(())
}

/// Cuts everything for a moment that no process should notice, or beyond every lease (F9).
pub(super) async fn cut_all(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let long = rng.random_ratio(1, 3);
    let cut = if long { BEYOND_LEASE } else { Duration::from_millis(rng.random_range(100..3_000)) };
    let everybody = arena.fleet.everybody();
    everybody.iter().for_each(|member| member.proxy.blackhole());
    tokio::time::sleep(cut).await;
    everybody.iter().for_each(|member| member.proxy.pass());
    Ok(())
}

/// Cuts every connection, once or repeatedly; new ones pass.
pub(super) async fn reset_network(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victims = one_or_all(arena, rng);
    for _ in 0..rng.random_range(1..4) {
        for victim in &victims {
            arena.record.note(&Event::Hit { actor: victim.actor().0, how: Hit::Broken })?;
            victim.proxy.reset();
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(50..1_500))).await;
    }
    Ok(())
}

/// Refuses new connections, and now and then cuts existing ones too.
pub(super) async fn refuse_network(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victims = one_or_all(arena, rng);
    let cut = rng.random_ratio(2, 3);
    for victim in &victims {
        arena.record.note(&Event::Hit { actor: victim.actor().0, how: Hit::Broken })?;
        victim.proxy.refuse_new();
        if cut {
            victim.proxy.reset();
        }
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(500..8_000))).await;
    victims.iter().for_each(|victim| victim.proxy.pass());
    Ok(())
}

/// Makes everything take longer than it should; nothing is lost (F11).
pub(super) async fn slow_network(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let victims = one_or_all(arena, rng);
    for victim in &victims {
        arena.record.note(&Event::Hit { actor: victim.actor().0, how: Hit::Broken })?;
        victim.proxy.delay(Duration::from_millis(rng.random_range(50..=800)));
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(3_000..15_000))).await;
    victims.iter().for_each(|victim| victim.proxy.delay(Duration::ZERO));
    Ok(())
}

fn one_or_all(arena: &Arena, rng: &mut SmallRng) -> Vec<Arc<Member>> {
    let everybody = arena.fleet.everybody();
    if rng.random() { everybody } else { everybody.choose(rng).cloned().into_iter().collect() }
}
