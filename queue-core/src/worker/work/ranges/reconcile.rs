//! Comparing the worker's ranges with the database's after a session was lost, or a page was
//! met that it cannot read.

use crate::connection::{Connection, Link};
use crate::model::{Group, NewerPage, Offset, Result};
use crate::store::stream::range::{self, Range};
use crate::store::stream::{cursor, passed};
use crate::worker::cursor::Claimed;
use crate::worker::work::Work;

impl Work {
    /// Gives back what it has claimed of a page that it cannot read, and leaves out the partition.
    /// If the claim has passed messages before, these are counted first; the next one meets the
    /// page.
    pub(super) async fn leave(
        &mut self,
        group: Group,
        page: NewerPage,
        claimed: Claimed,
    ) -> Result<Claimed> {
        self.reconcile_ranges().await?;
        if claimed.filtered + claimed.lost > 0 {
            return Ok(claimed);
        }
        tracing::error!(worker.id = %self.id, topic.id = %group.id, error = %page);
        self.cursor(group.id).leave_out(page.at.partition);
        Err(page.into())
    }

    /// Compares the ranges with the database's. Gives back those that the worker does not hold, and
    /// forgets those that it has lost.
    pub(in crate::worker) async fn reconcile_ranges(&mut self) -> Result<()> {
        let id = self.id;
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let compare = async |conn: &mut Link| range::of_worker(conn, id).await;
        let found = session.call("compare ranges", compare).await?;
        for range in &found {
            let Some(held) = self.ranges.get_mut(range.fence.claim_no) else {
                let release = async |conn: &mut Link| {
                    range::release(conn, range.id, range.fence, range.hi).await
                };
                session.call("release a range", release).await?;
                tracing::info!(worker.id = %id, "Released a range that it does not hold.");
                continue;
            };
            if range.mark > held.range.mark {
                // The last report had no answer, but the database has it.
                held.mark_reported(range.mark);
            } else if range.mark < held.range.mark {
                let (lost, mark) = (*range, held.range.mark);
                let again = async |conn: &mut Link| handle_again(conn, &lost, mark).await;
                session.transaction("handle again", again).await?;
                tracing::warn!(
                    worker.id = %id, messages = mark.0 - lost.mark.0,
                    "Messages are handled again: the server has lost that they were settled."
                );
            }
        }
        for claim in self.ranges.claims() {
            if !found.iter().any(|range| range.fence.claim_no == claim) {
                self.ranges.forget(claim);
                self.lost.add(claim);
            }
        }
        Ok(())
    }
}

/// Makes the messages between the server's mark and the mark it had before due again: with the
/// mark, the server has lost what was filed of them.
async fn handle_again(conn: &mut impl Connection, range: &Range, mark: Offset) -> Result<()> {
    cursor::lock(conn, range.group, range.partition).await?;
    if range::pass(conn, range.id, range.fence, (range.mark, mark)).await? == 1 {
        let stretch = (range.mark, mark);
        let (group, no, deliveries) = (range.group, range.partition, range.delivery_no);
        let free = range::insert_free(conn, group, no, stretch, deliveries, 0).await?;
        passed::hand_on(conn, range.id, free, stretch).await?;
    }
    Ok(())
}
