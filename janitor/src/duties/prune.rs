use std::time::Duration;

use queue_core::store::lane::LaneKind;
use queue_core::store::prune;
use queue_core::{Result, telemetry};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// The most rows of one statement.
const BATCH: u32 = 1000;

/// The most statements a table and run.
const ROUNDS: usize = 10;

/// A lane that no producer has used for a day has nothing in doubt any more.
const LANE_IDLE: Duration = Duration::from_secs(24 * 3600);

/// A producer with a journal on its disk may come back after weeks and ask what became of its last
/// batch; one that comes later finds it in doubt. A row is some hundred bytes, and one is left only
/// where a connection broke or a process was killed.
const DURABLE_LANE_IDLE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Ended workers are shown for an hour.
const WORKER_ENDED: Duration = Duration::from_secs(3600);

/// Removes rows that have served their time.
#[derive(Debug, Default)]
pub struct Prune;

/// What a run of [`Prune`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// Archived messages removed.
    pub archive: usize,
    /// Biz ids removed from the ledger.
    pub ledger: usize,
    /// Lanes removed.
    pub lanes: usize,
    /// Ended workers removed.
    pub workers: usize,
}

impl Duty for Prune {
    const NAME: &'static str = "prune";
    type Report = PruneReport;

    fn interval(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn is_notable(report: &PruneReport) -> bool {
        *report != PruneReport::default()
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<PruneReport> {
        let mut report = PruneReport::default();
        for _ in 0..ROUNDS {
            let pruned = sweep
                .session
                .transaction("prune the archive", async |conn| prune::archive(conn, BATCH).await)
                .await?;
            report.archive += pruned;
            if pruned < BATCH as usize {
                break;
            }
        }
        for _ in 0..ROUNDS {
            let pruned = sweep
                .session
                .transaction("prune the ledger", async |conn| prune::ledger(conn, BATCH).await)
                .await?;
            report.ledger += pruned;
            if pruned < BATCH as usize {
                break;
            }
        }
        let lanes = [(LaneKind::Passing, LANE_IDLE), (LaneKind::Durable, DURABLE_LANE_IDLE)];
        for (kind, idle) in lanes {
            report.lanes += sweep
                .session
                .transaction("prune the lanes", async |conn| {
                    prune::lanes(conn, kind, idle, BATCH).await
                })
                .await?;
        }
        report.workers = sweep
            .session
            .transaction("prune the workers", async |conn| {
                prune::workers(conn, WORKER_ENDED, BATCH).await
            })
            .await?;
        telemetry::pruned("archive", report.archive);
        telemetry::pruned("ledger", report.ledger);
        telemetry::pruned("lane", report.lanes);
        telemetry::pruned("worker", report.workers);
        Ok(report)
    }
}
