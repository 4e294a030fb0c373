use std::collections::BTreeSet;
use std::time::Duration;

use rowmq_core::connection::{Connection, Link, Session};
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::scheduled::{self, Due, Reach};
use rowmq_core::store::{floor, lookup};
use rowmq_core::{Result, telemetry};
use serde::Serialize;
use tokio::time::Instant;

use crate::duty::{Duty, Sweep};

/// The most messages of one move: the most keys that one list may name.
const BATCH: u32 = 512;

/// The most moves of one run: other duties wait during it.
const ROUNDS: usize = 20;

/// Messages that fall due within this time are promoted together: a commit costs about as much.
const TOGETHER: Duration = Duration::from_millis(5);

/// How often the duty looks at all messages, even those that have been due for long.
const FULL_LOOK: Duration = Duration::from_secs(1);

/// A full look that found nothing takes at most a hundredth of the time.
const FULL_LOOK_SHARE: u32 = 100;

/// The longest time between full looks, as for those of claims.
const FULL_LOOK_CAP: Duration = Duration::from_secs(30);

/// The most bytes of bodies in one move, unless a single body is larger: a transaction of gigabytes
/// would miss its deadline, and so would the next one with the same rows.
const BYTES: u64 = 4 * 1024 * 1024;

/// Makes due messages ready: delayed ones, and retries whose wait is over. It asks when the next
/// message is due and runs then. A message that is enqueued in the meantime and due earlier is
/// found by the next regular run.
#[derive(Debug, Default)]
pub struct Promote {
    /// When the next known message is due.
    next: Option<Instant>,
    /// When to look at everything again.
    full_look: Option<Instant>,
    /// How many messages were made ready since the start.
    promoted: usize,
}

/// What [`Promote`] has done since its start.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct PromoteReport {
    /// Messages made ready.
    pub promoted: usize,
}

impl Duty for Promote {
    const NAME: &'static str = "promote";
    type Report = PromoteReport;

    fn interval(&self) -> Duration {
        Duration::from_millis(100)
    }

    /// It may run hundreds of times a second; its metrics show what it does.
    fn is_notable(_: &PromoteReport) -> bool {
        false
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<PromoteReport> {
        let began = Instant::now();
        let full = self.full_look.is_none_or(|at| at <= began);
        let reach = if full { Reach::All } else { Reach::Recent };
        self.next = None;
        if full {
            // If this look fails, the duty looks only for recent messages until then.
            self.full_look = Some(began + FULL_LOOK_CAP);
        }
        let mut wait = next_due(sweep.session, reach).await?;
        let pause = (began.elapsed() * FULL_LOOK_SHARE).clamp(FULL_LOOK, FULL_LOOK_CAP);
        let is_due = |wait: Option<Duration>| wait.is_some_and(|wait| wait.is_zero());
        for _ in 0..ROUNDS {
            if !is_due(wait) {
                break;
            }
            let locked = Instant::now();
            let promote = async |conn: &mut Link| promote_some(conn, reach).await;
            let due = sweep.session.transaction("promote", promote).await?;
            if due.is_empty() {
                break;
            }
            let took = locked.elapsed();
            telemetry::promoted(due.iter().map(|due| due.late + took));
            self.promoted += due.len();
            wait = next_due(sweep.session, reach).await?;
        }
        // Messages still due are locked by another promoter, or more than this run may take.
        if full {
            self.full_look = Some(began + if is_due(wait) { TOGETHER } else { pause });
        }
        let wait = wait.map(|wait| wait.max(TOGETHER));
        self.next = wait.map(|wait| Instant::now() + wait);
        Ok(PromoteReport { promoted: self.promoted })
    }

    fn wants_run_at(&self) -> Option<Instant> {
        self.next
    }
}

async fn next_due(session: &mut Session, reach: Reach) -> Result<Option<Duration>> {
    session.call("promote", async |conn| scheduled::next_due(conn, reach).await).await
}

/// Moves some messages: locks their keys, inserts and deletes the rows by them, publishes the
/// floors (histories H1, H2, H24).
async fn promote_some(conn: &mut impl Connection, reach: Reach) -> Result<Vec<Due>> {
    let mut due = scheduled::lock_due(conn, reach, BATCH).await?;
    if due.is_empty() {
        return Ok(due);
    }
    due.truncate(fitting(&due));
    let rows: RowSet = due.iter().map(|due| due.row).collect();
    let lowest = scheduled::promote(conn, &rows).await?;
    lookup::follow_promoted(conn, lowest, &due).await?;
    let places: BTreeSet<_> = due.iter().map(|due| (due.topic, due.priority)).collect();
    for (topic, priority) in places {
        floor::publish(conn, topic, priority, lowest).await?;
    }
    Ok(due)
}

/// Returns how many of the messages, at least one, are moved together.
fn fitting(due: &[Due]) -> usize {
    let mut bytes = 0;
    let fitting = due.iter().take_while(|due| {
        bytes += due.bytes;
        bytes <= BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use rowmq_core::Priority;
    use rowmq_core::model::{RowId, TopicId};

    use super::*;

    #[test]
    fn a_move_is_bounded_in_bytes() {
        let due = |bytes| Due {
            row: RowId(1),
            topic: TopicId(1),
            priority: Priority::FIRST,
            late: Duration::ZERO,
            bytes,
            searchable: None,
        };
        let fits = |sizes: &[u64]| fitting(&sizes.iter().map(|n| due(*n)).collect::<Vec<_>>());
        assert_eq!(fits(&[1, 2, 3]), 3);
        assert_eq!(fits(&[BYTES, 1]), 1);
        assert_eq!(fits(&[BYTES / 2, BYTES / 2, 1]), 2);
        assert_eq!(fits(&[BYTES * 9, 1]), 1, "one alone is always moved");
    }
}
