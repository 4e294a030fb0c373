use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::stream::retention;
use rowmq_core::{Result, store, telemetry};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// The most transactions of one run.
const ROUNDS: usize = 50;

/// Removes messages that are past their stream's retention.
#[derive(Debug, Default)]
pub struct Retain {
    /// Whether the last run has left something.
    more: bool,
}

/// What a run of [`Retain`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct RetainReport {
    /// Offsets removed.
    pub removed: u64,
}

impl Duty for Retain {
    const NAME: &'static str = "retain";
    type Report = RetainReport;

    fn interval(&self) -> Duration {
        if self.more { Duration::from_millis(200) } else { Duration::from_secs(10) }
    }

    fn is_notable(report: &RetainReport) -> bool {
        report.removed > 0
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<RetainReport> {
        let mut report = RetainReport::default();
        let mut rounds = ROUNDS;
        self.more = false;
        let all = async |conn: &mut Link| store::topic::all(conn).await;
        for topic in sweep.session.call("list the topics", all).await? {
            let look = async |conn: &mut Link| retention::excess(conn, &topic).await;
            for excess in sweep.session.call("look what is kept too long", look).await? {
                let mut left = Some(excess);
                while let Some(excess) = left.filter(|_| rounds > 0) {
                    rounds -= 1;
                    let remove =
                        async |conn: &mut Link| retention::remove_excess(conn, excess).await;
                    let removed = sweep.session.transaction("prune the log", remove).await?;
                    left = removed.left;
                    report.removed += removed.offsets;
                }
                self.more |= left.is_some();
            }
        }
        telemetry::pruned("queue_log", usize::try_from(report.removed).unwrap_or(usize::MAX));
        Ok(report)
    }
}
