//! Restarts the fleet every minute.
//!
//! The restarts are spread over the minute: each process has its own second of it. If all processes
//! restarted at once, every series would be a saw-tooth, the load would pause each minute, and a
//! sample would show where in the minute it was taken. One after the other, the load stays even,
//! and each minute has the same mix.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use futures_util::future::try_join_all;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rustix::process::Signal;
use tokio::time::{Instant, sleep, sleep_until};

use crate::arena::Member;

/// How often each process restarts.
pub(super) const ROUND: Duration = Duration::from_secs(60);

/// How long a process may take to end and to start again: longer than a producer's patience with a
/// topic that is full (120 s), which happens where the machine is too slow for the load.
const PATIENCE: Duration = Duration::from_secs(180);

/// Restarts each member once a minute until `end`, and returns how many restarts that were.
pub(super) async fn keep_restarting(
    members: &[Arc<Member>],
    seed: u64,
    begun: Instant,
    end: Instant,
) -> anyhow::Result<usize> {
    let mut members: Vec<_> = members.to_vec();
    members.shuffle(&mut SmallRng::seed_from_u64(seed));
    let apart = ROUND / u32::try_from(members.len().max(1))?;
    let places = (0..).map(|place| begun + apart * place + apart / 2);
    let each = members.iter().zip(places).map(async |(member, first)| {
        let mut restarts = 0;
        let mut at: Instant = first;
        while at < end {
            sleep_until(at).await;
            restart(member).await?;
            restarts += 1;
            at += ROUND;
        }
        anyhow::Ok(restarts)
    });
    Ok(try_join_all(each).await?.into_iter().sum())
}

/// Ends a process with TERM, and waits until the next one has taken its place.
async fn restart(member: &Member) -> anyhow::Result<()> {
    let (actor, role) = (member.actor(), member.role().word());
    let deadline = Instant::now() + PATIENCE;
    while !member.signal(Signal::TERM) {
        // It has just ended by itself, which is counted.
        ensure!(Instant::now() < deadline, "{role} {actor} does not start again");
        sleep(Duration::from_millis(50)).await;
    }
    while member.actor() == actor || !member.runs() {
        ensure!(Instant::now() < deadline, "{role} {actor} does not end");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
