//! Taking back the ranges of streams.

use std::collections::HashMap;

use queue_core::Result;
use queue_core::connection::{Link, Session};
use queue_core::message::WorkerId;
use queue_core::rescue::take_range_back;
use queue_core::store::stream::range;
use queue_core::stream::RangeId;

use super::{CLAIMS_PER_TRANSACTION, PAGE, PAGES_PER_RUN, RescueReport, why};

/// How a range comes to be nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// Its worker is dead or has stopped.
    Zombies,
    /// Its worker has no row.
    Orphans,
}

/// Takes every such range back, page by page.
pub(super) async fn take_back(
    session: &mut Session,
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
        let page = session.call("find ranges to rescue", find).await?;
        let Some(last) = page.last() else { break };
        after = last.range.id;
        let whole = page.len() == PAGE as usize;
        for some in page.chunks(CLAIMS_PER_TRANSACTION) {
            let take = async |conn: &mut Link| {
                let mut taken = Vec::with_capacity(some.len());
                for zombie in some {
                    let why = why(zombie.range.fence.worker, zombie.crashed, held);
                    taken.push(take_range_back(conn, &zombie.range, why).await?);
                }
                Ok(taken)
            };
            for taken in session.transaction("rescue", take).await? {
                report.rescued += taken.freed;
                report.dead_lettered += taken.dead_lettered;
                report.still_locked += taken.left;
            }
        }
        if !whole {
            break;
        }
    }
    Ok(())
}
