//! A run: a quiet phase, a phase under faults, and a phase in which everything must end.

use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::arena::{Arena, Client, Load, Queue, Role};
use crate::check::CALM;
use crate::fault::{Fault, Setting};
use crate::naive;
use crate::record::Event;
use crate::schedule::{self, Step};
use crate::stream::STREAM;
use crate::task::{Ending, Task};
use crate::topics::WORK;

/// In this time nothing is broken, and no message may be delivered twice.
pub(crate) const QUIET: Duration = Duration::from_secs(20);

/// How long after the last fault everything must have been handled: a lease, a grace, retries, and
/// the backlog.
const LIVENESS: Duration = Duration::from_secs(180);

/// What to run.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// The time of the quiet phase and the faults together.
    pub(crate) time: Duration,
    pub(crate) faults: Vec<&'static Fault>,
    pub(crate) load: Load,
    pub(crate) clients: Vec<Client>,
}

/// How many messages are sent to each of two topics before a consumer is hit alone, and how long
/// each takes: the consumer then has messages of queues and of groups in hand.
const IN_HAND: usize = 12;
const IN_HAND_MS: u64 = 500;

/// How long the consumers take to begin them.
const BEGUN: Duration = Duration::from_millis(250);

/// A run of this length strikes often enough to judge recovery.
const RATED: Duration = Duration::from_secs(300);

impl Plan {
    /// Returns whether the bounds of recovery are judged: only in long runs in which consumers are
    /// killed alone and silenced alone.
    pub(crate) fn is_rated(&self) -> bool {
        let (kills, silences): (Vec<_>, Vec<_>) = self
            .faults
            .iter()
            .copied()
            .filter(|f| f.setting == Setting::Alone)
            .partition(|f| f.kills());
        self.time >= RATED && !kills.is_empty() && !silences.is_empty()
    }
}

/// Runs the plan, and returns whether everything ended in time.
pub(crate) async fn run(arena: &Arena, plan: &Plan) -> anyhow::Result<bool> {
    let mut rng = SmallRng::seed_from_u64(plan.seed);
    let bar = progress(plan.time);
    phase(arena, &bar, "quiet")?;
    let seed = rng.random();
    match arena.queue {
        Queue::Product => {
            arena.fleet.muster(plan.load, QUIET, seed).await?;
            arena.fleet.add_clients(&plan.clients, &arena.server()?.ops).await?;
        }
        Queue::Naive => naive::muster(&arena.fleet, plan.load, seed).await?,
    }
    tick(&bar, Instant::now() + QUIET).await;
    phase(arena, &bar, "faults")?;
    strike(arena, plan, &bar, &mut rng).await?;
    phase(arena, &bar, "liveness")?;
    let drained = settle_down(arena).await;
    bar.finish_and_clear();
    drained
}

async fn strike(
    arena: &Arena,
    plan: &Plan,
    bar: &ProgressBar,
    rng: &mut SmallRng,
) -> anyhow::Result<()> {
    let time = plan.time.saturating_sub(QUIET);
    let end = Instant::now() + time;
    for step in schedule::draw(&plan.faults, time, rng) {
        match step {
            // Storms may last longer than planned. The measured faults strike in any case.
            Step::Storm(_) if Instant::now() >= end => continue,
            Step::Alone(fault) => {
                bar.set_message(fault.name);
                give_work(arena).await?;
                let mut own = SmallRng::seed_from_u64(rng.random());
                fault.strike(arena, &mut own).await.with_context(|| fault.name)?;
            }
            Step::Storm(storm) => {
                bar.set_message("storm");
                let mut at = Duration::ZERO;
                let strikes = storm.into_iter().map(|(wait, fault)| {
                    at += wait;
                    let (at, mut own) = (at, SmallRng::seed_from_u64(rng.random()));
                    async move {
                        tokio::time::sleep(at).await;
                        fault.strike(arena, &mut own).await.with_context(|| fault.name)
                    }
                });
                try_join_all(strikes.collect::<Vec<_>>()).await?;
            }
        }
        tick(bar, Instant::now() + CALM).await;
    }
    tick(bar, end).await;
    Ok(())
}

/// Sends messages that will keep the consumers busy for a while, and waits until they are.
async fn give_work(arena: &Arena) -> anyhow::Result<()> {
    if arena.queue == Queue::Naive {
        return Ok(());
    }
    for topic in [STREAM, WORK] {
        for _ in 0..IN_HAND {
            arena.send(topic, Task { work_ms: IN_HAND_MS, ending: Ending::Ack }).await?;
        }
    }
    tokio::time::sleep(BEGUN).await;
    Ok(())
}

/// Ends the faults: the senders finish, the backlog is handled, the fleet stops in order.
pub(crate) async fn settle_down(arena: &Arena) -> anyhow::Result<bool> {
    let deadline = Instant::now() + LIVENESS;
    // Senders with a journal end when it is empty.
    for role in [Role::Sender, Role::Spiller] {
        arena.fleet.dismiss(&arena.fleet.all(role)).await?;
    }
    let mut drained = false;
    while !drained && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        drained = arena.is_drained().await?;
    }
    arena.fleet.dismiss(&arena.fleet.everybody()).await?;
    Ok(drained)
}

pub(crate) fn phase(arena: &Arena, bar: &ProgressBar, name: &'static str) -> anyhow::Result<()> {
    bar.set_message(name);
    arena.record.note(&Event::Phase { name: name.to_owned() })?;
    Ok(())
}

pub(crate) fn progress(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{elapsed_precise} {wide_bar} {len} s  {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Waits, and moves the progress bar.
pub(crate) async fn tick(bar: &ProgressBar, until: Instant) {
    while Instant::now() < until {
        tokio::time::sleep((until - Instant::now()).min(Duration::from_secs(1))).await;
        bar.set_position(bar.elapsed().as_secs());
    }
}
