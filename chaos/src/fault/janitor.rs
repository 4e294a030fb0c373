//! Too many janitors, and janitors that see too little.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::arena::{Arena, Role};

/// The privileges of a janitor, without the right to see the connections of other accounts.
const ON_TABLES: &str = "SELECT, INSERT, UPDATE, DELETE";

pub(super) async fn many_janitors(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let mut crowd = Vec::new();
    for _ in 0..4 {
        crowd.push(arena.fleet.add_janitor(&[]).await?);
    }
    tokio::time::sleep(Duration::from_millis(rng.random_range(4_000..10_000))).await;
    arena.fleet.dismiss(&crowd).await
}

/// Ends the ordinary janitors in order, so that the others take over at once.
pub(super) async fn janitor_without_process(
    arena: &Arena,
    rng: &mut SmallRng,
) -> anyhow::Result<()> {
    let blind = arena.account("chaos_blind", ON_TABLES).await?;
    let seeing = arena.fleet.all(Role::Janitor);
    let mut guests = Vec::new();
    for _ in 0..2 {
        guests.push(arena.fleet.add_janitor_of(&blind, &[]).await?);
    }
    arena.fleet.send_away(&seeing).await?;
    tokio::time::sleep(Duration::from_millis(rng.random_range(8_000..20_000))).await;
    for member in &seeing {
        member.recall();
    }
    arena.fleet.dismiss(&guests).await
}
