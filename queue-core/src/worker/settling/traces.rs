//! The trace steps of settled messages.

use super::{Batch, Settled, Unsettled};
use crate::connection::Connection;
use crate::model::trace::Step;
use crate::model::{Result, WorkerId};
use crate::store::trace;

impl Settled {
    /// The trace step of its end, if it leaves one.
    pub(in crate::worker) fn step(&self, worker: WorkerId) -> Option<Step<'_>> {
        let traced = self.traced?;
        Some(Step::settled(self.topic, traced, worker, self.position, &self.settlement))
    }
}

impl Batch {
    /// Writes the trace steps of the settled messages that leave a trace.
    pub(super) async fn trace(
        &self,
        conn: &mut impl Connection,
        worker: WorkerId,
        unsettled: &Unsettled,
    ) -> Result<()> {
        let is_settled = |one: &&Settled| {
            let key = (one.claim_no, one.row);
            !unsettled.missing.contains(&key) && !unsettled.blocked.contains(&key)
        };
        let settled = self.traced.iter().filter(is_settled);
        let steps: Vec<_> = settled.filter_map(|one| one.step(worker)).collect();
        trace::record(conn, &steps).await
    }
}
