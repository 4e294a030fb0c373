//! A run on a cluster: a quiet phase, then its writer is killed again and again under load.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::arena::{Arena, Load};
use crate::check::Breach;
use crate::cluster::{Cluster, ClusterKind, KILL_WRITER, PROMOTE};
use crate::record::Event;
use crate::run::{self, QUIET};

/// How long the new writer serves before the dead node comes back: longer than every lease.
const SETTLING: Duration = Duration::from_secs(15);

/// How long the cluster is complete before the next writer dies.
const WHOLE: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FailoverPlan {
    #[command(flatten)]
    pub(crate) cluster: Cluster,
    /// How often the writer is killed; once with --async.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) failovers: u32,
    /// With --async: how long before the writer's death the replica is cut off, in milliseconds;
    /// the commands that cut and kill take additional time.
    #[arg(long, default_value_t = 0, value_name = "MILLISECONDS")]
    pub(crate) lag_ms: u64,
    /// The random seed. Drawn if not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) load: Load,
}

impl FailoverPlan {
    /// Returns the number of failovers. There is only one without semi-synchronous replication,
    /// because a former primary with commits that its replica never received cannot come back.
    fn failovers(&self) -> u32 {
        if self.cluster.asynchronous { 1 } else { self.failovers }
    }

    /// Returns which promises such a cluster is documented to break; nothing else.
    pub(crate) fn known(&self) -> &'static [Breach] {
        match self.cluster {
            Cluster { asynchronous: true, .. } => &[
                Breach::Lost,
                Breach::WrongAck,
                Breach::SharedDelivery,
                Breach::Offset,
                Breach::HandledAgain,
                Breach::WrongTrace,
            ],
            // Sessions on two nodes, once the first is back.
            Cluster { kind: ClusterKind::Galera, .. } => &[Breach::BeyondLimit],
            _ => &[],
        }
    }
}

/// Runs the plan, and returns whether everything ended in time.
pub(crate) async fn run(arena: &Arena, plan: &FailoverPlan, seed: u64) -> anyhow::Result<bool> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let round = SETTLING + WHOLE;
    let bar = run::progress(QUIET + round * plan.failovers());
    run::phase(arena, &bar, "quiet")?;
    arena.fleet.muster(plan.load, QUIET, rng.random()).await?;
    run::tick(&bar, Instant::now() + QUIET).await;
    run::phase(arena, &bar, "faults")?;
    for _ in 0..plan.failovers() {
        fail_over(arena, plan, &mut rng).await?;
        run::tick(&bar, Instant::now() + SETTLING).await;
        if !plan.cluster.asynchronous {
            note(arena, "rejoin", plan.cluster.rejoin()).await?;
            run::tick(&bar, Instant::now() + WHOLE).await;
        }
    }
    run::phase(arena, &bar, "liveness")?;
    let drained = run::settle_down(arena).await;
    bar.finish_and_clear();
    drained
}

async fn fail_over(arena: &Arena, plan: &FailoverPlan, rng: &mut SmallRng) -> anyhow::Result<()> {
    let cluster = &plan.cluster;
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..2_000))).await;
    if plan.lag_ms > 0 {
        cluster.cut().await?;
        tokio::time::sleep(Duration::from_millis(plan.lag_ms)).await;
    }
    note(arena, KILL_WRITER, cluster.kill_writer()).await?;
    note(arena, PROMOTE, cluster.promote()).await
}

async fn note(
    arena: &Arena,
    fault: &str,
    strike: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    arena.record.note(&Event::Strike { fault: fault.to_owned() })?;
    let struck = strike.await;
    arena.record.note(&Event::Heal { fault: fault.to_owned() })?;
    struck
}
