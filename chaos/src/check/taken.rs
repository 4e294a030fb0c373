//! A session that claims by the SQL contract keeps what it has claimed while it lives.

use std::time::Duration;

use super::Breach;
use super::history::History;
use crate::record::{Answer, Moment};
use crate::stream::Share;

/// A session that settles within this time after a start has claimed within its lease (10 s), and
/// must not count as dead.
const FRESH: Duration = Duration::from_secs(5);

/// How long the effect of another fault on a session may show: its lease, and a sweep.
const AFTERMATH: Duration = Duration::from_secs(12);

/// The faults that may make a session's own claim fail, but take no other claim from it. Under any
/// other fault the session may have been silent.
const MILD: [&str; 10] = [
    "abort-before-ack",
    "cancel-messages",
    "deadlock-storm",
    "delete-topic",
    "kill-producer",
    "kill-spiller",
    "kill-statements",
    "operate",
    "replay-group",
    "reset-group",
];

/// Finds messages that such a session could not settle because it no longer held them, although no
/// fault had silenced the session since before the claim, and no operator had taken the messages
/// away.
pub(super) fn breaches(history: &History) -> Vec<(Breach, Share)> {
    let mut taken = Vec::new();
    for (share, message) in &history.messages {
        for settled in message.settled.iter().filter(|one| one.answer == Answer::Fenced) {
            let start = message.starts.iter().find(|start| {
                start.actor == settled.actor && start.delivery_no == settled.delivery_no
            });
            let is_callers = history.callers.contains(&settled.actor) && !message.purged;
            if let Some(start) = start.filter(|_| is_callers)
                && settled.at.since(start.at) < FRESH
                && !may_be_silenced(history, (start.at, settled.at))
            {
                taken.push((Breach::TakenFromLiving, *share));
            }
        }
    }
    taken
}

fn may_be_silenced(history: &History, (from, to): (Moment, Moment)) -> bool {
    let near = |strike: Moment, heal: Moment| strike <= to && from.since(heal) < AFTERMATH;
    let mut harsh = history.strikes.iter().filter(|strike| !MILD.contains(&&*strike.fault));
    harsh.any(|strike| near(strike.from, strike.to))
}
