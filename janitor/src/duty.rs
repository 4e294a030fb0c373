use std::future::Future;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use rowmq_core::Result;
use rowmq_core::connection::Session;
use serde::Serialize;
use tokio::time::Instant;

/// The circumstances of a run.
#[derive(Debug)]
pub struct Sweep<'s> {
    /// A session of the sweeper's.
    pub session: &'s mut Session,
    /// When this run began, on the sweeper's own monotonic clock.
    pub now: Instant,
    /// Since when this session's duties have run without a gap and all their writes have succeeded.
    /// Observations before that prove nothing about time.
    pub steady_since: Instant,
}

/// A recurring task: idempotent, bounded, without input, without retries inside (the next run is
/// the retry).
pub trait Duty {
    /// Its name, in metrics and in `rowmq janitor`.
    const NAME: &'static str;

    /// What a run did.
    type Report: Serialize;

    /// How long after a run the next one is due.
    fn interval(&self) -> Duration;

    /// Whether `report` is worth a line in the log.
    fn is_notable(report: &Self::Report) -> bool;

    /// Runs once.
    ///
    /// # Errors
    /// A database failure; the driver logs it and runs the duty again when it is due.
    fn run_once(&mut self, sweep: &mut Sweep<'_>) -> impl Future<Output = Result<Self::Report>>;

    /// Called when another process sweeps from now on: clears what this duty has published about
    /// its last look.
    fn rest(&mut self) {}

    /// Returns when to run again before the interval is over, because the last run left something
    /// to do or to look at.
    fn wants_run_at(&self) -> Option<Instant> {
        None
    }
}

/// What a run left for the driver to publish.
pub(crate) struct Done {
    pub(crate) report: Vec<u8>,
    pub(crate) notable: bool,
}

/// A duty of any kind, as the driver holds it.
pub(crate) trait AnyDuty {
    fn name(&self) -> &'static str;
    fn interval(&self) -> Duration;
    fn wants_run_at(&self) -> Option<Instant>;
    fn rest(&mut self);
    fn run<'a>(&'a mut self, sweep: &'a mut Sweep<'_>) -> LocalBoxFuture<'a, Result<Done>>;
}

impl<D: Duty> AnyDuty for D {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn interval(&self) -> Duration {
        Duty::interval(self)
    }

    fn wants_run_at(&self) -> Option<Instant> {
        Duty::wants_run_at(self)
    }

    fn rest(&mut self) {
        Duty::rest(self);
    }

    fn run<'a>(&'a mut self, sweep: &'a mut Sweep<'_>) -> LocalBoxFuture<'a, Result<Done>> {
        async move {
            let report = self.run_once(sweep).await?;
            let notable = D::is_notable(&report);
            // A report is a struct of numbers and strings, which can always be written as JSON.
            let report = serde_json::to_vec(&report).unwrap_or_default();
            Ok(Done { report, notable })
        }
        .boxed_local()
    }
}
