//! Far more messages than the consumers can handle, and a crash of the server in the middle of it.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::arena::{Arena, SenderLoad};
use crate::topics::BURST;

/// Messages a second.
const RATE: f64 = 50_000.0;

/// The most messages of one transaction.
const BATCH: &str = "2000";

/// How long the burst lasts before the crash.
const BEFORE: Duration = Duration::from_secs(4);

/// How long the burst continues after the server has come back.
const AFTER: Duration = Duration::from_secs(2);

pub(super) async fn crash_under_burst(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let _server = arena.server()?.alone().await;
    let load = SenderLoad {
        topic: BURST,
        rate: RATE,
        work_ms: 0,
        quiet: Duration::ZERO,
        seed: rng.random(),
    };
    let sender = arena.fleet.add_sender(load, &["--batch", BATCH, "--lanes", "8"]).await?;
    tokio::time::sleep(BEFORE.mul_f64(rng.random_range(0.5..1.5))).await;
    arena.server()?.crash().await?;
    arena.server()?.restart().await?;
    tokio::time::sleep(AFTER).await;
    arena.fleet.dismiss(&[sender]).await
}
