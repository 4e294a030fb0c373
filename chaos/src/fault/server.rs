//! The server is killed, restarted and frozen.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::arena::Arena;

pub(super) async fn crash_server(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    arena.server()?.crash().await?;
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..2_000))).await;
    arena.server()?.restart().await
}

pub(super) async fn restart_server(arena: &Arena, _: &mut SmallRng) -> anyhow::Result<()> {
    arena.server()?.restart().await
}

/// For a moment, or beyond every lease (history H20).
pub(super) async fn stall_server(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let long = rng.random_ratio(1, 3);
    let millis = if long { 13_000 } else { rng.random_range(500..4_000) };
    arena.server()?.freeze().await?;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    arena.server()?.thaw().await
}
