//! All records of a run combined.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::message::{End, Message, Settled, Start};
use crate::record::{self, Enqueued, Event, Hit, LogPosition, Moment, Replayed};
use crate::stream::{Group, Share};
use crate::tag::{Actor, Tag};

/// A fault, from its strike to its end.
#[derive(Debug, Clone)]
pub(super) struct Strike {
    pub(super) fault: String,
    pub(super) from: Moment,
    pub(super) to: Moment,
}

/// An attempt to delete a topic without its messages.
#[derive(Debug, Clone)]
pub(super) struct Deletion {
    topic: String,
    /// When it was requested: the deletion happened no earlier.
    from: Moment,
    /// When it was over: a topic of this name existed by then.
    to: Moment,
    /// Its operator learned that it succeeded.
    pub(super) deleted: bool,
}

/// A group handles a range of offsets again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// When it was requested.
    pub(super) since: Moment,
    /// When it was certainly committed.
    pub(super) until: Moment,
    pub(super) replayed: Replayed,
}

/// The combined records; see the module.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) messages: HashMap<Share, Message>,
    pub(super) strikes: Vec<Strike>,
    pub(super) hits: Vec<(Moment, Actor, Hit)>,
    /// The ranges that groups were to handle again, and when that was requested.
    rewinds: Vec<(Moment, Replayed)>,
    /// The parts of these ranges that the groups certainly had to handle again.
    pub(super) turns: Vec<Turn>,
    pub(super) deletions: Vec<Deletion>,
    /// The members of the broadcast group.
    members: BTreeSet<Group>,
    /// The queue that each of these actors sends to.
    pub(super) queues: HashMap<Actor, String>,
    /// The actors that send to the stream.
    streamers: HashSet<Actor>,
    /// The actors that claim by the SQL contract.
    pub(super) callers: HashSet<Actor>,
    /// The actors whose sends are acknowledged as soon as they are in a journal of their own.
    pub(super) spillers: HashSet<Actor>,
    /// Messages acknowledged, by the second.
    acknowledged: HashMap<u64, u64>,
    phases: Vec<(Moment, String)>,
    records: Vec<PathBuf>,
}

impl History {
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut history = Self::default();
        for entry in std::fs::read_dir(folder)? {
            history.records.push(entry?.path());
        }
        history.records.sort();
        for path in history.records.clone() {
            let actor = actor_of(&path);
            if path.to_string_lossy().ends_with("-spiller.log") {
                history.spillers.insert(actor);
            }
            for (at, event) in record::read(&path)? {
                history.take(at, actor, event);
            }
        }
        history.strikes.sort_by_key(|strike| strike.from);
        history.share_out();
        Ok(history)
    }

    /// Gives every group its share of the stream's messages.
    fn share_out(&mut self) {
        let sent = std::mem::take(&mut self.messages);
        for (share, message) in sent {
            if share.group.is_none() && self.streamers.contains(&share.tag.sender) {
                for group in self.groups() {
                    let known = self.message(Share { group: Some(group), ..share });
                    known.invoked = message.invoked;
                    known.outcome = message.outcome;
                    known.inserted.clone_from(&message.inserted);
                    known.purged |= message.purged;
                }
            } else {
                self.message(share).take_over(message);
            }
        }
    }

    /// Returns the groups of the stream, and the members of the broadcast group.
    pub(super) fn groups(&self) -> Vec<Group> {
        Group::ALL.into_iter().chain(self.members.iter().copied()).collect()
    }

    /// Returns the share of a message that transactional handlers handle.
    fn bookers_of(&self, tag: Tag) -> Share {
        let group = self.streamers.contains(&tag.sender).then_some(Group::Booked);
        Share { tag, group }
    }

    /// Records which effects were committed.
    pub(super) fn take_effects(&mut self, effects: &HashMap<Tag, u64>) {
        for (tag, n) in effects {
            let message = self.message(self.bookers_of(*tag));
            (message.transactional, message.effects) = (true, *n);
        }
    }

    fn take(&mut self, at: Moment, actor: Actor, event: Event) {
        match event {
            Event::Invoke { first, n } => {
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }.into()).invoked = Some(at);
                }
            }
            Event::Inserted { first, n, topic } => {
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }.into()).inserted = Some((at, topic.clone()));
                }
            }
            Event::Enqueue { first, n, outcome } => {
                if outcome == Enqueued::Stored {
                    *self.acknowledged.entry(at.0.as_secs()).or_default() += n;
                }
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }.into()).outcome = Some((at, outcome));
                }
            }
            Event::Purge { first, n } => {
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }.into()).purged = true;
                }
            }
            Event::Delete { topic } => {
                let open = Deletion { topic, from: at, to: Moment::LATEST, deleted: false };
                self.deletions.push(open);
            }
            Event::Remade { topic, deleted } => {
                let asked = self.deletions.iter_mut().rfind(|one| one.topic == topic);
                if let Some(asked) = asked {
                    (asked.to, asked.deleted) = (at, deleted);
                }
            }
            Event::Cancelled { tag } => self.message(tag.into()).cancelled = true,
            Event::Queue { topic } => {
                self.queues.insert(actor, topic);
            }
            Event::Stream { sender } => {
                self.streamers.insert(sender);
            }
            Event::Member { member } => {
                self.members.insert(member);
            }
            Event::Caller => {
                self.callers.insert(actor);
            }
            Event::Rewind(replayed) => self.rewinds.push((at, replayed)),
            Event::Rewound(replayed) => {
                let place = (replayed.group, replayed.partition);
                let asked =
                    |(_, other): &&(Moment, Replayed)| (other.group, other.partition) == place;
                let since = self.rewinds.iter().rfind(asked).map_or(at, |(since, _)| *since);
                self.turns.push(Turn { since, until: at, replayed });
            }
            Event::Start { share, delivery_no, place } => {
                self.message(share).starts.push(Start { at, actor, delivery_no, place });
            }
            Event::End { share, delivery_no, ended } => {
                self.message(share).ends.push(End { at, delivery_no, ended });
            }
            Event::Effect { share, delivery_no } => {
                let message = self.message(share);
                message.transactional = true;
                message.written.push((delivery_no, at));
            }
            Event::Settled { share, delivery_no, ack, answer } => {
                let settled = Settled { at, actor, delivery_no, ack, answer };
                self.message(share).settled.push(settled);
            }
            // A fault that never healed lasts to the end.
            Event::Strike { fault } => {
                self.strikes.push(Strike { fault, from: at, to: Moment(std::time::Duration::MAX) });
            }
            Event::Heal { fault } => {
                let open = self.strikes.iter_mut().find(|strike| {
                    strike.fault == fault && strike.to.0 == std::time::Duration::MAX
                });
                if let Some(strike) = open {
                    strike.to = at;
                }
            }
            Event::Hit { actor, how } => self.hits.push((at, Actor(actor), how)),
            Event::Phase { name } => self.phases.push((at, name)),
        }
    }

    fn message(&mut self, share: Share) -> &mut Message {
        self.messages.entry(share).or_default()
    }

    /// Returns whether its group was to handle it again, so that its deliveries start again.
    pub(super) fn is_rewound(&self, share: Share) -> bool {
        self.is_rewound_within(share, (Moment::default(), Moment::LATEST))
    }

    /// Returns the same, if that may have happened between these moments.
    pub(super) fn is_rewound_within(&self, share: Share, (from, to): (Moment, Moment)) -> bool {
        // Its place is the same in every group, and sessions by SQL do not know it.
        let of = |group| self.messages.get(&Share { group: Some(group), ..share });
        let covers = |replayed: &Replayed| {
            let is_of = |place: LogPosition| replayed.covers(place.partition, place.offset);
            let mut places = Group::ALL.into_iter().filter_map(of).flat_map(Message::places);
            Some(replayed.group) == share.group && places.any(is_of)
        };
        self.rewinds.iter().any(|(asked, replayed)| {
            *asked <= to && self.is_rewound_by(*asked, replayed) >= from && covers(replayed)
        })
    }

    /// Returns when it was certain that the request was done or would never be done: the commands
    /// on a group run one after the other.
    fn is_rewound_by(&self, asked: Moment, replayed: &Replayed) -> Moment {
        let place = (replayed.group, replayed.partition);
        let done = self.turns.iter().filter(|turn| {
            (turn.replayed.group, turn.replayed.partition) == place && turn.until >= asked
        });
        done.map(|turn| turn.until).min().unwrap_or(Moment::LATEST)
    }

    /// Returns whether the topic of a message may have been deleted after the transaction of the
    /// message began, so that the transaction could see the topic open, and before it wrote the
    /// message. A message that is written before a deletion prevents the deletion.
    pub(super) fn may_outlive_its_topic(&self, message: &Message) -> bool {
        let (Some((written, topic)), Some(begun)) = (&message.inserted, message.invoked) else {
            return false;
        };
        let mut of_it = self.deletions.iter().filter(|one| one.topic == *topic);
        of_it.any(|one| one.from < *written && one.to > begun)
    }

    /// Returns when each process first began a message as a member of the broadcast group.
    pub(super) fn first_reads(&self) -> HashMap<Actor, Moment> {
        let mut first: HashMap<Actor, Moment> = HashMap::new();
        let of_members =
            |(share, _): &(&Share, &Message)| share.group.is_some_and(Group::is_member);
        for start in self.messages.iter().filter(of_members).flat_map(|(_, one)| &one.starts) {
            let at = first.entry(start.actor).or_insert(start.at);
            *at = start.at.min(*at);
        }
        first
    }

    /// Returns when a phase began.
    pub(super) fn phase(&self, name: &str) -> Option<Moment> {
        self.phases.iter().find(|(_, phase)| phase == name).map(|(at, _)| *at)
    }

    /// Returns the most messages acknowledged within one second.
    pub(super) fn peak(&self) -> u64 {
        self.acknowledged.values().copied().max().unwrap_or_default()
    }

    /// Returns how often a connection or a statement was broken.
    pub(super) fn broken(&self) -> usize {
        self.hits.iter().filter(|(_, _, how)| *how == Hit::Broken).count()
    }

    /// Returns how often each fault struck.
    pub(super) fn strikes(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for strike in &self.strikes {
            match counts.iter_mut().find(|(fault, _)| *fault == strike.fault) {
                Some((_, n)) => *n += 1,
                None => counts.push((strike.fault.clone(), 1)),
            }
        }
        counts
    }

    /// Returns every line about a message, by time, with the faults of that time.
    pub(super) fn of(&self, share: Share) -> String {
        let mut lines = Vec::new();
        for path in &self.records {
            // This record could be read before, or there would be no history.
            for (at, event) in record::read(path).unwrap_or_default() {
                let file = path.file_stem().unwrap_or_default().to_string_lossy();
                if is_about(&event, share) {
                    lines.push((at, format!("{file}: {event:?}")));
                }
            }
        }
        let span = lines.iter().map(|(at, _)| *at);
        let (from, to) = (span.clone().min(), span.max());
        for strike in &self.strikes {
            if Some(strike.to) >= from && Some(strike.from) <= to {
                lines.push((strike.from, format!("fault {}", strike.fault)));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        let zero = self.phases.first().map_or(Moment::default(), |(at, _)| *at);
        let mut text = String::new();
        for (at, line) in lines {
            text += &format!("  {:10.3} s  {line}\n", at.since(zero).as_secs_f64());
        }
        text
    }
}

fn is_about(event: &Event, wanted: Share) -> bool {
    match event {
        Event::Invoke { first, n }
        | Event::Inserted { first, n, .. }
        | Event::Enqueue { first, n, .. }
        | Event::Purge { first, n } => {
            let Tag { sender, seq } = wanted.tag;
            first.sender == sender && (first.seq..first.seq + n).contains(&seq)
        }
        Event::Start { share, .. }
        | Event::End { share, .. }
        | Event::Effect { share, .. }
        | Event::Settled { share, .. } => *share == wanted,
        Event::Cancelled { tag } => *tag == wanted.tag,
        Event::Rewind(replayed) | Event::Rewound(replayed) => Some(replayed.group) == wanted.group,
        Event::Queue { .. }
        | Event::Stream { .. }
        | Event::Member { .. }
        | Event::Caller
        | Event::Delete { .. }
        | Event::Remade { .. }
        | Event::Strike { .. }
        | Event::Heal { .. }
        | Event::Hit { .. }
        | Event::Phase { .. } => false,
    }
}

/// Returns the actor that a record is named after. Other records (of witnesses and of the web
/// service) are not named after one; the harness does not break their connections.
fn actor_of(path: &Path) -> Actor {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let number = stem.split('-').next().context("a name").and_then(|n| Ok(n.parse()?));
    Actor(number.unwrap_or(u64::MAX))
}
