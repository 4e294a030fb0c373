//! How long the messages of a consumer that was hit waited for another to begin them.

use std::collections::HashMap;
use std::time::Duration;

use super::history::History;
use crate::record::{Answer, Hit, Moment};
use crate::schedule::CALM;
use crate::stream::Group;
use crate::tag::Actor;

/// By what was done to the consumer; one time a message.
#[derive(Debug, Default)]
pub(crate) struct RescueTimes {
    pub(crate) killed: Times,
    pub(crate) frozen: Times,
    /// The same of members of groups: what they had claimed of the stream.
    pub(crate) killed_members: Times,
    pub(crate) frozen_members: Times,
}

impl RescueTimes {
    /// Nobody waits for a process that is only disturbed.
    fn of(&mut self, how: Hit, group: Option<Group>) -> Option<&mut Times> {
        match (how, group) {
            (Hit::Killed, None) => Some(&mut self.killed),
            (Hit::Frozen, None) => Some(&mut self.frozen),
            (Hit::Killed, Some(_)) => Some(&mut self.killed_members),
            (Hit::Frozen, Some(_)) => Some(&mut self.frozen_members),
            (Hit::Broken, _) => None,
        }
    }

    fn all(&mut self) -> [&mut Times; 4] {
        let Self { killed, frozen, killed_members, frozen_members } = self;
        [killed, frozen, killed_members, frozen_members]
    }
}

/// Times, shortest first.
#[derive(Debug, Default)]
pub(crate) struct Times {
    pub(crate) sorted: Vec<Duration>,
    /// How many consumers were hit.
    pub(crate) hits: usize,
}

impl Times {
    /// The time that this part of the messages took at most; `None` if there was none.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let last = self.sorted.len().checked_sub(1)?;
        self.sorted.get((last * percent).div_ceil(100)).copied()
    }
}

/// Only of hits with no other fault within the calm.
pub(super) fn times(history: &History) -> RescueTimes {
    let mut times = RescueTimes::default();
    let mut alone: HashMap<Actor, (Moment, Hit)> = HashMap::new();
    for &(at, actor, how) in &history.hits {
        if how != Hit::Broken && is_alone(history, at) {
            // Whoever is hit handles messages of all topics and groups.
            for group in [None, Some(Group::Plain)] {
                times.of(how, group).into_iter().for_each(|of| of.hits += 1);
            }
            alone.insert(actor, (at, how));
        }
    }
    for (share, message) in &history.messages {
        // The next process of a member begins to count anew: no delivery tells which it repeats.
        if share.group.is_some_and(Group::is_member) {
            continue;
        }
        for start in &message.starts {
            let Some(&(at, how)) = alone.get(&start.actor) else { continue };
            let of_group = share.group.is_some();
            let settled = message.settled.iter().any(|settled| {
                (settled.actor, settled.delivery_no) == (start.actor, start.delivery_no)
                    && settled.at < at
                    // An ack of a message of a range may still have been on its way.
                    && (!of_group || settled.answer == Answer::Settled)
            });
            if start.at < at && !settled {
                let next = message.starts.iter().filter(|next| {
                    next.actor != start.actor
                        && next.delivery_no > start.delivery_no
                        && next.at > at
                });
                // Without another delivery the settlement was committed just before the hit.
                if let Some(next) = next.map(|next| next.at).min() {
                    times
                        .of(how, share.group)
                        .into_iter()
                        .for_each(|of| of.sorted.push(next.since(at)));
                }
            }
        }
    }
    times.all().into_iter().for_each(|of| of.sorted.sort());
    times
}

fn is_alone(history: &History, at: Moment) -> bool {
    let near = |strike: &&super::history::Strike| {
        strike.from.0 <= at.0 + CALM && strike.to.0.saturating_add(CALM) >= at.0
    };
    history.strikes.iter().filter(near).count() <= 1
}
