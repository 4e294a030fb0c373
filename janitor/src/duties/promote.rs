use std::collections::BTreeSet;
use std::time::Duration;

use queue_core::connection::{Connection, Link};
use queue_core::store::row_set::RowSet;
use queue_core::store::{floor, scheduled};
use queue_core::{Result, telemetry};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// The most messages of one move: what one list of keys may name.
const BATCH: u32 = 512;

/// The most moves of one run: other duties wait meanwhile.
const ROUNDS: usize = 20;

/// Makes due messages ready: retries whose wait is over.
#[derive(Debug, Default)]
pub struct Promote;

/// What a run of [`Promote`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct PromoteReport {
    /// Messages made ready.
    pub promoted: usize,
}

impl Duty for Promote {
    const NAME: &'static str = "promote";
    type Report = PromoteReport;

    fn interval(&self) -> Duration {
        Duration::from_millis(250)
    }

    fn is_notable(report: &PromoteReport) -> bool {
        report.promoted > 0
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<PromoteReport> {
        let mut report = PromoteReport::default();
        let any_due = async |conn: &mut Link| scheduled::any_due(conn).await;
        if !sweep.session.call("promote", any_due).await? {
            return Ok(report);
        }
        for _ in 0..ROUNDS {
            let moved = sweep.session.transaction("promote", promote_some).await?;
            report.promoted += moved;
            if moved < BATCH as usize {
                break;
            }
        }
        telemetry::promoted(report.promoted);
        Ok(report)
    }
}

/// One move: keys locked, inserted and deleted by them, floors published (histories H1, H2, H24).
async fn promote_some(conn: &mut impl Connection) -> Result<usize> {
    let due = scheduled::lock_due(conn, BATCH).await?;
    if due.is_empty() {
        return Ok(0);
    }
    let rows: RowSet = due.iter().map(|due| due.row).collect();
    let lowest = scheduled::promote(conn, &rows).await?;
    let places: BTreeSet<_> = due.iter().map(|due| (due.topic, due.priority)).collect();
    for (topic, priority) in places {
        floor::publish(conn, topic, priority, lowest).await?;
    }
    Ok(due.len())
}
