//! Resources that the server runs out of: writes, connections, disk.

use std::time::Duration;

use futures_util::future::join_all;
use rand::Rng;
use rand::rngs::SmallRng;
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use tokio::time::{Instant, sleep};

use crate::arena::{Arena, ServerKind};
use crate::task::{Ending, Task};
use crate::topics::WORK;

/// How many connections the server has free when another account begins to take them all.
const FREE: u64 = 4;

/// How many tasks keep asking the server for connections.
const HOGS: u64 = 24;

/// The most connections that each of them takes: a server that was restarted in the meantime has
/// more.
const MOST: usize = 10;

/// How long the taking lasts, before members of the fleet are cut and before they may return.
const TAKING: Duration = Duration::from_secs(1);

/// The number and the size of the messages sent while the disk is full.
const LARGE: usize = 1_000;
const PADDING: usize = 60_000;

/// The limit with which `dev-server` starts a server.
const CONNECTIONS: u64 = 500;

/// Makes the server read-only. The accounts of the fleet have no privilege to write to a read-only
/// server.
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

/// Takes every connection with another account while members of the fleet are cut.
pub(super) async fn exhaust_connections(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let hog = arena.account("chaos_hog", "SELECT").await?;
    let taken = arena.number("SELECT COUNT(*) FROM information_schema.processlist").await?;
    arena.execute(&format!("SET GLOBAL max_connections = {}", taken + FREE)).await?;
    let end = Instant::now() + Duration::from_millis(rng.random_range(5_000..20_000));
    let victims: Vec<_> =
        arena.fleet.everybody().into_iter().filter(|_| rng.random_ratio(2, 3)).collect();
    let cut = async {
        sleep(TAKING).await;
        // Other sessions take their connections before they may come back.
        victims.iter().for_each(|victim| victim.proxy.refuse());
        sleep(TAKING).await;
        victims.iter().for_each(|victim| victim.proxy.pass());
    };
    let (taken, ()) = tokio::join!(join_all((0..HOGS).map(|_| take(&hog, end))), cut);
    let refused: usize = taken.iter().sum();
    tracing::info!(refused, cut = victims.len(), "Every connection was taken.");
    arena.execute(&format!("SET GLOBAL max_connections = {CONNECTIONS}")).await
}

/// Takes connections until `end`, then closes them; returns how often it took none.
async fn take(account: &ServerUrl, end: Instant) -> usize {
    let (mut taken, mut refused) = (Vec::new(), 0);
    while Instant::now() < end {
        if taken.len() < MOST
            && let Ok(conn) = connect(account, SessionKind::Plain).await
        {
            taken.push(conn);
        } else {
            refused += 1;
            sleep(Duration::from_millis(100)).await;
        }
    }
    refused
}

/// Fills the disk, then frees it; a server that gave up is started again.
pub(super) async fn fill_disk(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    arena.server()?.fill_disk().await?;
    let end = Instant::now() + Duration::from_millis(rng.random_range(3_000..12_000));
    // Tables have spare room, which must be used up before the server notices a full disk.
    for _ in 0..LARGE {
        let task = Task { work_ms: rng.random_range(0..400), ending: Ending::Ack };
        let sent = arena.send_padded(WORK, task, PADDING);
        if tokio::time::timeout_at(end, sent).await.is_err() {
            break;
        }
    }
    tokio::time::sleep_until(end).await;
    arena.server()?.free_disk().await?;
    arena.server()?.start().await
}
