//! Finds the ranges of streams that are to be taken back.

use std::collections::HashMap;

use rowmq_core::Result;
use rowmq_core::connection::Link;
use rowmq_core::model::{RangeId, WorkerId};
use rowmq_core::store::stream::range;

use super::taking::{Found, What};
use super::{PAGE, PAGES_PER_RUN, Rescue, RescueReport, why};
use crate::duty::Sweep;

/// Why no worker can finish a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Its worker is dead or has stopped.
    Zombies,
    /// Its worker has no row.
    Orphans,
}

impl Rescue {
    /// Takes every such range back, page by page.
    pub(super) async fn take_ranges_back(
        &mut self,
        sweep: &mut Sweep<'_>,
        lost: Lost,
        held: &HashMap<WorkerId, u64>,
        report: &mut RescueReport,
    ) -> Result<()> {
        let mut after = RangeId(0);
        for _ in 0..PAGES_PER_RUN {
            let find = async |conn: &mut Link| match lost {
                Lost::Zombies => range::zombies(conn, after, PAGE).await,
                Lost::Orphans => range::orphans(conn, after, PAGE).await,
            };
            let page = sweep.session.call("find ranges to rescue", find).await?;
            let Some(last) = page.last() else { break };
            after = last.range.id;
            let whole = page.len() == PAGE as usize;
            let found = page.into_iter().map(|zombie| {
                let why = why(zombie.range.fence.worker, zombie.crashed, held);
                Found::new(What::Range(zombie.range), why)
            });
            self.taking.take(sweep.session, found.collect(), sweep.now, report).await?;
            if !whole {
                break;
            }
        }
        Ok(())
    }
}
