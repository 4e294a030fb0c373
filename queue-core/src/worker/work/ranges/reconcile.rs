//! What the worker and the database each know of its ranges, after a session was lost.

use crate::connection::{Connection, Link};
use crate::model::{Offset, Result};
use crate::store::stream::range::{self, Range};
use crate::store::stream::{cursor, passed};
use crate::worker::work::Work;

impl Work {
    /// Compares the ranges with the database's: gives back what the worker does not hold, and
    /// forgets what it has lost.
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
                tracing::info!(worker.id = %id, "Released a range whose reply was lost.");
                continue;
            };
            if range.mark > held.range.mark {
                // What was said last had no answer, and has been heard.
                held.said(range.mark);
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

/// What lies between the mark that the server has and the one it had has to be handled again: with
/// the mark it has lost what was filed of these messages.
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
