//! Clocks and time zones that are wrong.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rustix::process::Signal;
use tokio::time::sleep;

use crate::arena::Arena;

/// Time zones of processes: with halves and quarters of an hour, one more than twelve hours ahead,
/// and one whose summer time changes in November.
const ZONES: [&str; 4] = ["AAA-13:45", "BBB+11:30", "CCC-5:30", "DDD4EEE,M11.3.6/0,M11.3.0/0"];

/// Skews of processes' clocks.
const SKEWS: [&str; 4] = ["+1h", "-1h", "+25h", "-3s"];

/// Restarts processes with wrong time zones and clocks, and makes sessions reconnect under other
/// time zones of the server.
pub(super) async fn wrong_clocks(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let library = arena.clock_library.as_deref().map(|path| path.display().to_string());
    let members = arena.fleet.everybody();
    for member in &members {
        let mut odd = vec![("TZ", *ZONES.choose(rng).unwrap_or(&"UTC"))];
        if let Some(library) = &library {
            odd.extend([
                ("LD_PRELOAD", library.as_str()),
                ("FAKETIME", *SKEWS.choose(rng).unwrap_or(&"+1h")),
                // In reality the monotonic clock is never set.
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ]);
        }
        member.set(&odd);
    }
    for zone in ["+09:00", "-11:00"] {
        arena.execute(&format!("SET GLOBAL time_zone = '{zone}'")).await?;
        for member in &members {
            match rng.random_range(0..3) {
                // It starts again.
                0 => drop(member.signal(Signal::TERM)),
                // It connects again.
                1 => member.proxy.reset(),
                _ => {}
            }
        }
        sleep(Duration::from_millis(rng.random_range(2_000..6_000))).await;
    }
    for member in &members {
        member.set(&[]);
    }
    arena.execute("SET GLOBAL time_zone = 'SYSTEM'").await
}

/// Steps the server's clock by an hour, back and forth.
pub(super) async fn step_clock(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    let mut steps = ["+3600", "-3600"];
    if rng.random() {
        steps.reverse();
    }
    for step in steps.into_iter().chain(["+0"]) {
        arena.server()?.step_clock(step).await?;
        sleep(Duration::from_millis(rng.random_range(2_000..8_000))).await;
    }
    Ok(())
}
