use std::time::Duration;

use queue_core::connection::Link;
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
    /// Message ids whose dedupe window was over.
    pub dedupe: usize,
    /// Unique keys whose time was over.
    pub unique: usize,
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
        let report = PruneReport {
            archive: rounds(sweep, "prune the archive", async |conn| {
                prune::archive(conn, BATCH).await
            })
            .await?,
            ledger: rounds(sweep, "prune the ledger", async |conn| {
                prune::ledger(conn, BATCH).await
            })
            .await?,
            dedupe: rounds(sweep, "prune the message ids", async |conn| {
                prune::dedupe(conn, BATCH).await
            })
            .await?,
            unique: rounds(sweep, "prune the unique keys", async |conn| {
                prune::unique(conn, BATCH).await
            })
            .await?,
            lanes: sweep
                .session
                .transaction("prune the lanes", async |conn| {
                    prune::lanes(conn, LANE_IDLE, BATCH).await
                })
                .await?,
            workers: sweep
                .session
                .transaction("prune the workers", async |conn| {
                    prune::workers(conn, WORKER_ENDED, BATCH).await
                })
                .await?,
        };
        telemetry::pruned("archive", report.archive);
        telemetry::pruned("ledger", report.ledger);
        telemetry::pruned("dedupe", report.dedupe);
        telemetry::pruned("unique", report.unique);
        telemetry::pruned("lane", report.lanes);
        telemetry::pruned("worker", report.workers);
        Ok(report)
    }
}

/// Prunes a table piece by piece, each in a transaction of its own.
async fn rounds(
    sweep: &mut Sweep<'_>,
    operation: &'static str,
    mut prune: impl AsyncFnMut(&mut Link) -> Result<usize>,
) -> Result<usize> {
    let mut pruned = 0;
    for _ in 0..ROUNDS {
        let n = sweep.session.transaction(operation, &mut prune).await?;
        pruned += n;
        if n < BATCH as usize {
            break;
        }
    }
    Ok(pruned)
}
