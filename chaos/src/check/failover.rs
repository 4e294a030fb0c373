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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Leftovers;
    use crate::check::tests::found;

    /// The writer is killed at 21 s; a node takes writes at 23 s, and the first claim comes then.
    fn failover(claimed: &str) -> Failover {
        let findings = found(
            &[
                (
                    "0-harness",
                    "21000000 strike kill-writer\n21000000 heal kill-writer\n\
                     21000000 strike promote\n23000000 heal promote\n",
                ),
                ("1-sender", "21500000 invoke 1:1 1\n23100000 enqueue 1:1 1 stored\n"),
                ("2-recorder", &format!("{claimed} start 1:1 1\n")),
                ("3-spiller", "21500000 invoke 3:0 1\n21600000 enqueue 3:0 1 stored\n"),
            ],
            &Leftovers::default(),
        );
        let [one] = findings.failovers[..] else { panic!("one fail-over") };
        one
    }

    #[test]
    fn the_times_are_of_the_server_and_not_of_a_journal() {
        let Failover { writer, acknowledged, claimed } = failover("23200000");
        let ms = |time: Option<Duration>| time.map(|time| time.as_millis());
        assert_eq!(
            [ms(writer), ms(acknowledged), ms(claimed)],
            [Some(2000), Some(2100), Some(2200)]
        );
    }

    #[test]
    fn a_claim_more_than_a_second_after_the_writer_misses_the_bound() {
        let [sooner, later] = ["24000000", "24000001"].map(failover);
        assert_eq!(missed_bound(&[sooner; LEAST]), None);
        assert_eq!(missed_bound(&[later; LEAST - 1]), None, "too few");
        assert!(missed_bound(&[sooner, sooner, sooner, sooner, later]).is_some());
        let never = Failover { claimed: None, ..sooner };
        assert!(missed_bound(&[never; LEAST]).is_some());
    }
}
