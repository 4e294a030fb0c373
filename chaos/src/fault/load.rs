//! Foreign sessions that load the server, and handlers that load their process.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::future::try_join_all;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

use super::BEYOND_LEASE;
use crate::arena::Arena;
use crate::task::{Ending, Task};
use crate::topics::WORK;

/// Connections of a deadlock storm.
const RIVALS: usize = 8;

/// Their statements, in any order: ranges that cross each other's and those of all other sessions,
/// with the gaps that REPEATABLE READ locks. Nothing is changed.
const CROSSING: [&str; 8] = [
    "SELECT id FROM queue_message ORDER BY topic_id, priority, id LIMIT 20 FOR UPDATE",
    "SELECT id FROM queue_message ORDER BY topic_id DESC, priority DESC, id DESC LIMIT 20 \
     FOR UPDATE",
    "UPDATE queue_message SET failures = failures ORDER BY topic_id, priority, id LIMIT 20",
    "SELECT n FROM queue_claim ORDER BY worker_id, claim_no LIMIT 20 FOR UPDATE",
    "UPDATE queue_claim SET n = n ORDER BY worker_id DESC, claim_no DESC LIMIT 20",
    "UPDATE queue_worker SET state = state ORDER BY id LIMIT 10",
    "SELECT id FROM queue_worker ORDER BY id DESC LIMIT 10 FOR UPDATE",
    "SELECT floor FROM queue_floor FOR UPDATE",
];

/// Holds a snapshot open, so that nothing is purged, and a transaction that has locked the first
/// messages and does nothing more.
pub(super) async fn long_transaction(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let mut reader = arena.connect().await?;
    let snapshot = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                    START TRANSACTION WITH CONSISTENT SNAPSHOT; \
                    SELECT COUNT(*) FROM queue_message";
    let mut stranger = arena.connect().await?;
    let head = format!(
        "BEGIN; SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = \
         (SELECT id FROM queue_topic WHERE name = '{WORK}') ORDER BY priority, id LIMIT 20 \
         FOR UPDATE"
    );
    // If the server goes down, both transactions end with it.
    drop(reader.batch_execute(snapshot).await);
    while let Err(error) = stranger.batch_execute(&head).await {
        tracing::info!(%error, "The first messages are locked by others.");
        sleep(Duration::from_millis(100)).await;
        stranger = arena.connect().await?;
    }
    sleep(Duration::from_millis(rng.random_range(15_000..25_000))).await;
    drop(stranger.batch_execute("ROLLBACK").await);
    drop(reader.batch_execute("ROLLBACK").await);
    Ok(())
}

pub(super) async fn deadlock_storm(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_millis(rng.random_range(3_000..8_000));
    let rivals = (0..RIVALS).map(|_| rival(arena, SmallRng::seed_from_u64(rng.random()), end));
    try_join_all(rivals.collect::<Vec<_>>()).await?;
    Ok(())
}

async fn rival(arena: &Arena, mut rng: SmallRng, end: Instant) -> anyhow::Result<()> {
    let isolation = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ";
    while Instant::now() < end {
        let mut conn = arena.connect().await?;
        let mut open = conn.batch_execute(isolation).await.is_ok();
        while open && Instant::now() < end {
            let work = (0..rng.random_range(2..5)).filter_map(|_| CROSSING.choose(&mut rng));
            let work: Vec<_> = work.copied().collect();
            // The victim of a deadlock starts again.
            drop(conn.batch_execute(&format!("BEGIN; {}", work.join("; "))).await);
            sleep(Duration::from_millis(rng.random_range(0..60))).await;
            open = conn.batch_execute("ROLLBACK").await.is_ok();
        }
    }
    Ok(())
}

/// Sends enough messages to keep every thread of a consumer's runtime busy for longer than a lease.
pub(super) async fn hang_handlers(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let work_ms = u64::try_from(BEYOND_LEASE.as_millis())?;
    for _ in 0..rng.random_range(4..10) {
        arena.send(WORK, Task { work_ms, ending: Ending::Hang }).await?;
    }
    sleep(BEYOND_LEASE).await;
    Ok(())
}
