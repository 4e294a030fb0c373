//! How long the messages of a consumer that was hit waited until another consumer began them.

use std::time::Duration;

use super::CALM;
use super::asks_for_another;
use super::history::History;
use super::message::{Message, Start};
use crate::record::{Answer, Hit, Moment};
use crate::stream::Group;
use crate::tag::Actor;

/// How long recovery may take, and how many messages must be timed before a run is judged by it.
struct Bound {
    what: &'static str,
    p99: Duration,
    least: usize,
}

/// For a run that is long enough, in queues and in groups alike. A killed consumer's sessions leave
/// the process list at once, those of a silent one after its lease (10 s).
const KILLED: Bound = Bound { what: "kill -9", p99: Duration::from_secs(2), least: 30 };
const SILENT: Bound =
    Bound { what: "a freeze or a silent cut", p99: Duration::from_secs(15), least: 10 };

impl Bound {
    /// Describes in one sentence how these times miss the bound.
    fn missed_by(&self, times: &Times, whose: &str) -> Option<String> {
        let (what, n) = (self.what, times.sorted.len());
        if n < self.least {
            let least = self.least;
            return Some(format!(
                "After {what}, {n} messages of {whose} were rated, and {least} are needed."
            ));
        }
        let p99 = times.percentile(99).filter(|p99| *p99 >= self.p99)?;
        Some(format!(
            "After {what}, messages of {whose} ran again after {:.2} s (p99 of {n}); the bound is \
             {:.0} s.",
            p99.as_secs_f64(),
            self.p99.as_secs_f64()
        ))
    }
}

/// Times by what was done to the consumer, one per message.
#[derive(Debug, Default)]
pub(crate) struct RescueTimes {
    pub(crate) killed: Times,
    pub(crate) frozen: Times,
    /// The same for members of groups: what they had claimed of the stream.
    pub(crate) killed_members: Times,
    pub(crate) frozen_members: Times,
}

impl RescueTimes {
    /// Returns the times of a kind of hit. A process that is only disturbed needs no rescue.
    fn of(&mut self, how: Hit, group: Option<Group>) -> Option<&mut Times> {
        match (how, group) {
            (Hit::Killed, None) => Some(&mut self.killed),
            (Hit::Frozen, None) => Some(&mut self.frozen),
            (Hit::Killed, Some(_)) => Some(&mut self.killed_members),
            (Hit::Frozen, Some(_)) => Some(&mut self.frozen_members),
            (Hit::Broken, _) => None,
        }
    }

    /// Returns the bounds that were missed, a sentence each.
    pub(crate) fn missed_bounds(&self) -> Vec<String> {
        let Self { killed, frozen, killed_members, frozen_members } = self;
        let rated = [
            (KILLED, killed, "queues"),
            (KILLED, killed_members, "groups"),
            (SILENT, frozen, "queues"),
            (SILENT, frozen_members, "groups"),
        ];
        rated.into_iter().filter_map(|(bound, times, of)| bound.missed_by(times, of)).collect()
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
    /// Returns the time within which this percentage of the messages was rescued; `None` if there
    /// was no message.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let last = self.sorted.len().checked_sub(1)?;
        self.sorted.get((last * percent).div_ceil(100)).copied()
    }
}

/// Times the rescues after hits with no other fault within the calm.
pub(super) fn times(history: &History) -> RescueTimes {
    let mut times = RescueTimes::default();
    // A consumer may be frozen and, later, killed.
    let mut alone: Vec<(Actor, Moment, Hit)> = Vec::new();
    for &(at, actor, how) in &history.hits {
        if how != Hit::Broken && is_alone(history, at) {
            // A consumer that is hit handles messages of all topics and groups.
            for group in [None, Some(Group::Plain)] {
                times.of(how, group).into_iter().for_each(|of| of.hits += 1);
            }
            alone.push((actor, at, how));
        }
    }
    for (share, message) in &history.messages {
        for &(actor, at, how) in &alone {
            let Some(begun) = in_hand(message, actor, at, share.group.is_some()) else { continue };
            let next = message.starts.iter().filter(|next| next.actor != actor && next.at > at);
            // The next process that takes a member's name counts deliveries from the start again.
            let is_member = share.group.is_some_and(Group::is_member);
            let next = next.filter(|next| is_member || next.delivery_no > begun.delivery_no);
            // Without another delivery the settlement was committed just before the hit.
            let Some(next) = next.map(|next| next.at).min() else { continue };
            // What a reset or a replay brings again nobody had to rescue.
            if !history.is_rewound_within(*share, (begun.at, next))
                && let Some(times) = times.of(how, share.group)
            {
                times.sorted.push(next.since(at));
            }
        }
    }
    times.all().into_iter().for_each(|of| of.sorted.sort());
    times
}

/// Returns the delivery of the message that this consumer was handling when it was hit: the last
/// delivery that any consumer had begun by then, if this consumer began it and it was neither
/// settled nor put off. A message that another consumer has begun since was lost before the hit,
/// and a message that was put off waits on purpose.
fn in_hand(message: &Message, actor: Actor, at: Moment, of_group: bool) -> Option<Start> {
    let begun = message.starts.iter().filter(|start| start.at < at).max_by_key(|start| start.at)?;
    let settled = message.settled.iter().any(|settled| {
        (settled.actor, settled.delivery_no) == (begun.actor, begun.delivery_no)
            && (begun.at..at).contains(&settled.at)
            // In a group, the ack may still have been on its way unless the answer was `Settled`.
            && (!of_group || settled.answer == Answer::Settled)
    });
    let put_off = message.ends.iter().any(|end| {
        end.delivery_no == begun.delivery_no
            && (begun.at..at).contains(&end.at)
            && asks_for_another(end.ended)
    });
    (begun.actor == actor && !settled && !put_off).then_some(*begun)
}

fn is_alone(history: &History, at: Moment) -> bool {
    let near = |strike: &&super::history::Strike| {
        strike.from.0 <= at.0 + CALM && strike.to.0.saturating_add(CALM) >= at.0
    };
    history.strikes.iter().filter(near).count() <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(n: usize, millis: u64) -> Times {
        Times { sorted: vec![Duration::from_millis(millis); n], hits: 8 }
    }

    fn sound() -> RescueTimes {
        RescueTimes {
            killed: of(30, 1_999),
            frozen: of(10, 14_999),
            killed_members: of(30, 1_999),
            frozen_members: of(10, 14_999),
        }
    }

    #[test]
    fn recovery_within_the_bounds_is_said_of_enough_messages_only() {
        assert!(sound().missed_bounds().is_empty());
        for too_few in [
            RescueTimes { killed: of(29, 100), ..sound() },
            RescueTimes { frozen: of(9, 100), ..sound() },
            RescueTimes { killed_members: of(0, 0), ..sound() },
            RescueTimes { frozen_members: of(9, 100), ..sound() },
        ] {
            assert_eq!(too_few.missed_bounds().len(), 1, "{too_few:?}");
        }
    }

    #[test]
    fn one_slow_message_in_a_hundred_misses_the_bound() {
        let mut slow = of(99, 1_000);
        slow.sorted.push(Duration::from_secs(26));
        let times = RescueTimes { killed_members: slow, ..sound() };
        let missed = times.missed_bounds();
        assert_eq!(missed.len(), 1);
        assert!(missed[0].contains("messages of groups ran again after 26.00 s"), "{missed:?}");
    }
}
