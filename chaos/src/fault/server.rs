//! The server is killed, restarted and frozen.

use std::time::Duration;

use diesel_async::AsyncMysqlConnection;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rustix::process::Signal;

use super::BEYOND_LEASE;
use crate::arena::{Arena, Role};
use crate::record::{Event, Hit};

pub(super) async fn crash_server(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let _server = arena.server()?.alone().await;
    arena.server()?.crash().await?;
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..2_000))).await;
    arena.server()?.restart().await
}

pub(super) async fn restart_server(arena: &Arena, _: &mut SmallRng) -> anyhow::Result<()> {
    let _server = arena.server()?.alone().await;
    arena.server()?.restart().await
}

/// Freezes the server for a moment, or beyond every lease (history H20).
pub(super) async fn stall_server(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let _server = arena.server()?.alone().await;
    let long = rng.random_ratio(1, 3);
    let millis = if long { 13_000 } else { rng.random_range(500..4_000) };
    arena.server()?.freeze().await?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    arena.server()?.thaw().await
}

/// Freezes half of the consumers and restarts the server; their connections' ids are then given to
/// another login, whose sessions stay until after the consumers' thaw (history H21).
pub(super) async fn reuse_ids(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let _server = arena.server()?.alone().await;
    let mut victims = arena.fleet.all(Role::Recorder);
    victims.shuffle(rng);
    victims.truncate(victims.len().div_ceil(2));
    victims.retain(|victim| victim.signal(Signal::STOP));
    for victim in &victims {
        arena.record.note(&Event::Hit { actor: victim.actor().0, how: Hit::Broken })?;
    }
    let recurred = strangers(arena, &victims).await;
    // Half of the time long enough that the consumers are declared dead while their ids are taken.
    let frozen = if rng.random() { BEYOND_LEASE * 2 } else { Duration::from_secs(1) };
    tokio::time::sleep(frozen).await;
    for victim in &victims {
        victim.signal(Signal::CONT);
    }
    let strangers = recurred?;
    tokio::time::sleep(BEYOND_LEASE).await;
    tracing::info!(strangers = strangers.len(), "Strangers had the ids of frozen consumers.");
    Ok(())
}

/// Restarts the server, and opens connections until they have the victims' ids.
async fn strangers(
    arena: &Arena,
    victims: &[std::sync::Arc<crate::arena::Member>],
) -> anyhow::Result<Vec<AsyncMysqlConnection>> {
    let ports: Vec<u16> = victims.iter().flat_map(|victim| victim.proxy.ports()).collect();
    let sessions = arena.sessions().await?;
    let wanted: Vec<u64> = sessions
        .iter()
        .filter(|listed| ports.contains(&listed.port))
        .map(|listed| listed.id)
        .collect();
    arena.server()?.crash().await?;
    arena.server()?.restart().await?;
    let highest = wanted.iter().copied().max().unwrap_or_default();
    let mut strangers = Vec::new();
    loop {
        let (conn, id) = arena.stranger().await?;
        if wanted.contains(&id) {
            strangers.push(conn);
        }
        if id >= highest {
            return Ok(strangers);
        }
    }
}
