//! What the server has not enough of: writes, connections, disk.

use std::time::Duration;

use queue_core::AsyncMysqlConnection;
use queue_core::connection::{SessionKind, connect};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::{Instant, sleep};

use crate::arena::{Arena, ServerKind};

/// Places left to the fleet's own newcomers when another account begins to take the rest.
const FREE: u64 = 10;

/// The most connections that account opens: a server that was restarted meanwhile takes more.
const MOST: usize = 200;

/// What `dev-server` starts a server with.
const CONNECTIONS: u64 = 500;

/// The application's account has no privilege to write all the same.
pub(super) async fn read_only(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let on = match arena.server()?.kind {
        ServerKind::Mariadb => "SET GLOBAL read_only = 1",
        ServerKind::Mysql => "SET GLOBAL super_read_only = 1",
    };
    arena.execute(on).await?;
    sleep(Duration::from_millis(rng.random_range(1_000..20_000))).await;
    // On MySQL this ends super_read_only, too.
    arena.execute("SET GLOBAL read_only = 0").await
}

/// Another account takes every connection there is while members of the fleet are cut.
pub(super) async fn exhaust_connections(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let hog = arena.account("chaos_hog", "SELECT").await?;
    let taken = arena.number("SELECT COUNT(*) FROM information_schema.processlist").await?;
    arena.execute(&format!("SET GLOBAL max_connections = {}", taken + FREE)).await?;
    let end = Instant::now() + Duration::from_millis(rng.random_range(5_000..20_000));
    let victims: Vec<_> =
        arena.fleet.everybody().into_iter().filter(|_| rng.random_ratio(2, 3)).collect();
    let mut hogs: Vec<AsyncMysqlConnection> = Vec::new();
    let mut full = 0;
    while Instant::now() < end {
        match connect(&hog, SessionKind::Plain).await {
            Ok(conn) if hogs.len() < MOST => hogs.push(conn),
            _ => {
                full += 1;
                match full {
                    // Their places are taken before they may come back.
                    1 => victims.iter().for_each(|victim| victim.proxy.refuse()),
                    5 => victims.iter().for_each(|victim| victim.proxy.pass()),
                    _ => {}
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
    victims.iter().for_each(|victim| victim.proxy.pass());
    tracing::info!(hogs = hogs.len(), full, cut = victims.len(), "Connections were taken.");
    drop(hogs);
    arena.execute(&format!("SET GLOBAL max_connections = {CONNECTIONS}")).await
}

/// The disk is full, then it is not; a server that gave up is started again.
pub(super) async fn fill_disk(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    arena.server()?.fill_disk().await?;
    sleep(Duration::from_millis(rng.random_range(3_000..12_000))).await;
    arena.server()?.free_disk().await?;
    arena.server()?.start().await
}
