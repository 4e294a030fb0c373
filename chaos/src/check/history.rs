//! All records of a run put together.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::message::{Message, Settled, Start};
use crate::record::{self, Enqueued, Event, Hit, Moment};
use crate::tag::{Actor, Tag};

/// A fault, from its strike to its end.
#[derive(Debug, Clone)]
pub(super) struct Strike {
    pub(super) fault: String,
    pub(super) from: Moment,
    pub(super) to: Moment,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) messages: HashMap<Tag, Message>,
    pub(super) strikes: Vec<Strike>,
    pub(super) hits: Vec<(Moment, Actor, Hit)>,
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
            for (at, event) in record::read(&path)? {
                history.take(at, actor, event);
            }
        }
        history.strikes.sort_by_key(|strike| strike.from);
        Ok(history)
    }

    /// Takes in which effects were committed.
    pub(super) fn take_effects(&mut self, effects: &HashMap<Tag, u64>) {
        for (tag, n) in effects {
            let message = self.message(*tag);
            (message.transactional, message.effects) = (true, *n);
        }
    }

    fn take(&mut self, at: Moment, actor: Actor, event: Event) {
        match event {
            Event::Invoke { first, n } => {
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }).invoked = Some(at);
                }
            }
            Event::Enqueue { first, n, outcome } => {
                if outcome == Enqueued::Stored {
                    *self.acknowledged.entry(at.0.as_secs()).or_default() += n;
                }
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }).outcome = Some((at, outcome));
                }
            }
            Event::Purge { first, n } => {
                for seq in first.seq..first.seq + n {
                    self.message(Tag { seq, ..first }).purged = true;
                }
            }
            Event::Start { tag, delivery_no } => {
                self.message(tag).starts.push(Start { at, actor, delivery_no });
            }
            Event::End { tag, delivery_no, ended } => {
                self.message(tag).ends.push((delivery_no, ended));
            }
            Event::Effect { tag, .. } => self.message(tag).transactional = true,
            Event::Settled { tag, delivery_no, ack, answer } => {
                let settled = Settled { at, actor, delivery_no, ack, answer };
                self.message(tag).settled.push(settled);
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

    fn message(&mut self, tag: Tag) -> &mut Message {
        self.messages.entry(tag).or_default()
    }

    /// When a phase began.
    pub(super) fn phase(&self, name: &str) -> Option<Moment> {
        self.phases.iter().find(|(_, phase)| phase == name).map(|(at, _)| *at)
    }

    /// The most messages acknowledged within one second.
    pub(super) fn peak(&self) -> u64 {
        self.acknowledged.values().copied().max().unwrap_or_default()
    }

    /// How often a connection or a statement was broken.
    pub(super) fn broken(&self) -> usize {
        self.hits.iter().filter(|(_, _, how)| *how == Hit::Broken).count()
    }

    /// How often each fault struck.
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

    /// Every line about a message, by time, with the faults meanwhile.
    pub(super) fn of(&self, tag: Tag) -> String {
        let mut lines = Vec::new();
        for path in &self.records {
            // Read before, or there would be no history.
            for (at, event) in record::read(path).unwrap_or_default() {
                let file = path.file_stem().unwrap_or_default().to_string_lossy();
                if is_about(&event, tag) {
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

fn is_about(event: &Event, wanted: Tag) -> bool {
    match event {
        Event::Invoke { first, n }
        | Event::Enqueue { first, n, .. }
        | Event::Purge { first, n } => {
            first.sender == wanted.sender && (first.seq..first.seq + n).contains(&wanted.seq)
        }
        Event::Start { tag, .. }
        | Event::End { tag, .. }
        | Event::Effect { tag, .. }
        | Event::Settled { tag, .. } => *tag == wanted,
        Event::Strike { .. } | Event::Heal { .. } | Event::Hit { .. } | Event::Phase { .. } => {
            false
        }
    }
}

/// Records are named after their actor; those of strangers (witnesses, the web service) are not,
/// and nothing is done to these.
fn actor_of(path: &Path) -> Actor {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let number = stem.split('-').next().context("a name").and_then(|n| Ok(n.parse()?));
    Actor(number.unwrap_or(u64::MAX))
}
