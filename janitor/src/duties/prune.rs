mod dead;
mod lookup;

use std::time::Duration;

use rowmq_core::checkpoint;
use rowmq_core::connection::{Link, Session};
use rowmq_core::store::cancel;
use rowmq_core::store::lane::LaneKind;
use rowmq_core::store::prune::{self, Pruned};
use rowmq_core::store::{audit, trace};
use rowmq_core::trace::KEPT;
use rowmq_core::{Error, Result, store, telemetry, throughput};
use serde::Serialize;
use tokio::time::Instant;

use self::lookup::PruneLookup;
use crate::duty::{Duty, Sweep};

/// The most rows of one statement.
const BATCH: u32 = 1000;

/// The most workers whose throughput is folded in one transaction: three statements each.
const FOLD: u32 = 50;

/// The most statements for each table in a run.
const ROUNDS: usize = 10;

/// The pause before the next run if one left something: the other duties get their turn.
const BREATH: Duration = Duration::from_millis(20);

/// A lane that no producer has used for a day has nothing in doubt any more.
const LANE_IDLE: Duration = Duration::from_secs(24 * 3600);

/// A producer with a journal on disk may come back after weeks and ask what became of its last
/// batch; if it comes later than this, the batch stays in doubt. A row is some hundred bytes, and
/// one is left only where a connection broke or a process was killed.
const DURABLE_LANE_IDLE: Duration = Duration::from_secs(30 * 24 * 3600);

/// A cancellation this old reaches no worker any more, and is not asked for again.
const CANCELLATION: Duration = cancel::ASKED_FOR.saturating_mul(2);

/// Ended workers are shown for an hour.
const WORKER_ENDED: Duration = Duration::from_secs(3600);

/// How often the audit is looked at: its entries age slowly.
const AUDIT: Duration = Duration::from_secs(3600);

/// Removes rows that have served their time.
#[derive(Debug, Default)]
pub struct Prune {
    /// How long the audit keeps its entries; `None`: for ever.
    audit_retention: Option<Duration>,
    /// Whether it removes dead letters: only a janitor's account may.
    dead: bool,
    /// When the audit last had nothing left to remove.
    audit_pruned: Option<Instant>,
    lookup: PruneLookup,
    again: Option<Instant>,
    /// Whether removed workers still have throughput under their numbers.
    unfolded: bool,
}

/// What a run of [`Prune`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct PruneReport {
    /// Archived messages removed.
    pub archive: usize,
    /// Biz ids removed from the ledger.
    pub ledger: usize,
    /// Entries removed from the lookup.
    pub lookup: usize,
    /// Message ids whose dedupe window was over.
    pub dedupe: usize,
    /// Unique keys whose time was over.
    pub unique: usize,
    /// Dead letters that their topics no longer keep.
    pub dead: usize,
    /// Entries removed from the audit.
    pub audit: usize,
    /// Events removed from the traces of messages.
    pub trace: usize,
    /// Cancellations whose requester is gone.
    pub cancellations: usize,
    /// Checkpoints of messages that were never settled finally.
    pub checkpoints: usize,
    /// Lanes removed.
    pub lanes: usize,
    /// Ended workers removed.
    pub workers: usize,
    /// Whether more is left, and the next run follows at once.
    pub left: bool,
}

impl Prune {
    /// Makes the duty of a janitor, whose audit keeps its entries for this long, or for ever.
    #[must_use]
    pub fn of_janitor(audit_retention: Option<Duration>) -> Self {
        Self { audit_retention, dead: true, ..Self::default() }
    }

    /// Makes the duty of a stand-in, which removes neither audit entries nor dead letters.
    #[must_use]
    pub fn of_stand_in() -> Self {
        Self::default()
    }

    /// Prunes the audit once in a while.
    async fn audit(&mut self, session: &mut Session) -> Result<usize> {
        let is_pruned = self.audit_pruned.is_some_and(|at| at.elapsed() < AUDIT);
        let Some(time) = self.audit_retention.filter(|_| !is_pruned) else { return Ok(0) };
        let prune = async |conn: &mut Link| {
            let removed = audit::prune(conn, time, BATCH).await?;
            Ok(Pruned { found: removed, removed })
        };
        let pruned = some(session, "prune the audit", prune).await?;
        if !is_full(pruned) {
            self.audit_pruned = Some(Instant::now());
        }
        Ok(pruned)
    }
}

/// Returns whether `pruned` is the most that a run may remove, so that there may be more.
fn is_full(pruned: usize) -> bool {
    pruned >= ROUNDS * BATCH as usize
}

impl Duty for Prune {
    const NAME: &'static str = "prune";
    type Report = PruneReport;

    fn interval(&self) -> Duration {
        Duration::from_secs(10)
    }

    fn is_notable(report: &PruneReport) -> bool {
        !report.left && *report != PruneReport::default()
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<PruneReport> {
        self.again = None;
        let mut report = PruneReport::default();
        let session = &mut *sweep.session;
        let mut failed = Failed::default();
        let whole = |removed| Pruned { found: removed, removed };
        let archive = async |conn: &mut Link| prune::archive(conn, BATCH).await.map(whole);
        report.archive = failed.or(some(session, "prune the archive", archive).await);
        let ledger = async |conn: &mut Link| prune::ledger(conn, BATCH).await.map(whole);
        report.ledger = failed.or(some(session, "prune the ledger", ledger).await);
        let dedupe = async |conn: &mut Link| prune::dedupe(conn, BATCH).await;
        report.dedupe = failed.or(some(session, "prune the message ids", dedupe).await);
        let unique = async |conn: &mut Link| prune::unique(conn, BATCH).await;
        report.unique = failed.or(some(session, "prune the unique keys", unique).await);
        if self.dead {
            report.dead = failed.or(dead::prune(session).await);
        }
        report.audit = failed.or(self.audit(session).await);
        let trace = async |conn: &mut Link| trace::prune(conn, KEPT, BATCH).await.map(whole);
        report.trace = failed.or(some(session, "prune the traces", trace).await);
        let requests = async |conn: &mut Link| cancel::prune(conn, CANCELLATION, BATCH).await;
        report.cancellations =
            failed.or(session.transaction("prune the cancellations", requests).await);
        let checkpoints = async |conn: &mut Link| {
            store::checkpoint::prune(conn, checkpoint::KEPT, BATCH).await.map(whole)
        };
        report.checkpoints = failed.or(some(session, "prune the checkpoints", checkpoints).await);
        report.lookup = failed.or(self.lookup.run(session).await);
        let lanes = [(LaneKind::Passing, LANE_IDLE), (LaneKind::Durable, DURABLE_LANE_IDLE)];
        for (kind, idle) in lanes {
            let lanes = async |conn: &mut Link| prune::lanes(conn, kind, idle, BATCH).await;
            report.lanes += failed.or(session.transaction("prune the lanes", lanes).await);
        }
        let workers = async |conn: &mut Link| prune::workers(conn, WORKER_ENDED, BATCH).await;
        report.workers = failed.or(session.transaction("prune the workers", workers).await);
        self.unfolded |= report.workers > 0;
        let fold = async |conn: &mut Link| throughput::fold(conn, FOLD).await;
        for _ in 0..ROUNDS {
            if !self.unfolded {
                break;
            }
            let folded = session.transaction("fold the throughput", fold).await;
            self.unfolded = folded.as_ref().map_or(true, |folded| *folded >= FOLD as usize);
            failed.or(folded);
        }
        telemetry::pruned("archive", report.archive);
        telemetry::pruned("ledger", report.ledger);
        telemetry::pruned("lookup", report.lookup);
        telemetry::pruned("dedupe", report.dedupe);
        telemetry::pruned("unique", report.unique);
        telemetry::pruned("dead", report.dead);
        telemetry::pruned("audit", report.audit);
        telemetry::pruned("trace", report.trace);
        telemetry::pruned("cancellation", report.cancellations);
        telemetry::pruned("checkpoint", report.checkpoints);
        telemetry::pruned("lane", report.lanes);
        telemetry::pruned("worker", report.workers);
        let rows = [
            report.archive,
            report.ledger,
            report.dedupe,
            report.unique,
            report.dead,
            report.audit,
            report.trace,
            report.checkpoints,
            report.lookup,
        ];
        report.left = rows.into_iter().any(is_full);
        if let Some(error) = failed.0 {
            return Err(error);
        }
        self.again = report.left.then(|| Instant::now() + BREATH);
        Ok(report)
    }

    fn wants_run_at(&self) -> Option<Instant> {
        self.again
    }
}

/// The first failure of a run: a failure in one table does not stop the others.
#[derive(Default)]
struct Failed(Option<Error>);

impl Failed {
    fn or(&mut self, pruned: Result<usize>) -> usize {
        pruned.unwrap_or_else(|error| {
            self.0.get_or_insert(error);
            0
        })
    }
}

/// Removes rows until there are no more, or as many as one run may.
async fn some(
    session: &mut Session,
    operation: &'static str,
    prune: impl AsyncFn(&mut Link) -> Result<Pruned>,
) -> Result<usize> {
    let mut pruned = 0;
    for _ in 0..ROUNDS {
        let batch = session.transaction(operation, &prune).await?;
        pruned += batch.removed;
        // If other sessions have locked all rows that were found, the next look would find the same
        // rows.
        if batch.found < BATCH as usize || batch.removed == 0 {
            break;
        }
    }
    Ok(pruned)
}
