//! How long a cluster whose writer was killed took to work again, as seen by its users.

use std::time::Duration;

use super::history::History;
use crate::cluster::{KILL_WRITER, PROMOTE};
use crate::record::{Enqueued, Moment};

/// One loss of the writer. Times run from its death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failover {
    /// Until the cluster had another writer, as the harness saw it: the cluster's own share.
    pub(crate) writer: Option<Duration>,
    /// Until a message sent since was acknowledged.
    pub(crate) acknowledged: Option<Duration>,
    /// Until a message sent since was begun: it was claimed on the new writer.
    pub(crate) claimed: Option<Duration>,
}

/// How soon after the cluster has a writer a message must be claimed on it: what the fleet itself
/// may take.
const OURS: Duration = Duration::from_secs(1);

/// Fewer fail-overs are not judged by their times.
const LEAST: usize = 5;

impl Failover {
    fn is_in_time(&self) -> bool {
        let (Some(writer), Some(claimed)) = (self.writer, self.claimed) else { return false };
        claimed <= writer + OURS
    }
}

/// Describes in one sentence how these fail-overs miss the bound.
pub(crate) fn missed_bound(failovers: &[Failover]) -> Option<String> {
    let late = failovers.iter().filter(|failover| !failover.is_in_time()).count();
    (failovers.len() >= LEAST && late > 0).then(|| {
        format!(
            "After {late} of {} fail-overs the first claim came more than {} s after the cluster \
             had a writer.",
            failovers.len(),
            OURS.as_secs()
        )
    })
}

/// Returns the times of every strike against the writer.
pub(super) fn times(history: &History) -> Vec<Failover> {
    let strikes = history.strikes.iter().filter(|strike| strike.fault == KILL_WRITER);
    strikes.map(|strike| one(history, strike.to)).collect()
}

/// Measures one loss. The writer was certainly dead at `death`, so a message that was sent after it
/// went to another writer.
fn one(history: &History, death: Moment) -> Failover {
    let sent = || {
        let messages = history.messages.iter();
        messages.filter(|(_, message)| message.invoked.is_some_and(|at| at >= death))
    };
    // A journal takes messages while there is no writer.
    let committed = sent().filter(|(share, _)| !history.spillers.contains(&share.tag.sender));
    let acknowledged = committed.filter_map(|(_, message)| match message.outcome {
        Some((at, Enqueued::Stored)) => Some(at),
        _ => None,
    });
    let claimed = sent().flat_map(|(_, message)| message.starts.iter().map(|start| start.at));
    let promotions = history.strikes.iter().filter(|strike| strike.fault == PROMOTE);
    let writer = promotions.map(|strike| strike.to).filter(|to| *to >= death);
    Failover {
        writer: writer.min().map(|at| at.since(death)),
        acknowledged: acknowledged.min().map(|at| at.since(death)),
        claimed: claimed.min().map(|at| at.since(death)),
    }
}
