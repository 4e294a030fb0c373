//! The totals that the workers have reported, compared with what they counted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rowmq_core::model::{Throughput, TopicId, WorkerId};

use super::Stage;
use crate::model::{Row, Value};
use crate::recorder::Totals;

/// Totals by topic.
pub(crate) type Sums = BTreeMap<TopicId, Throughput>;

impl Stage {
    /// Checks the committed totals: those reported of a topic never fall, and never exceed what its
    /// handlers have counted. What a `Receiver` counts is not seen.
    pub(crate) fn check_throughput(&self) {
        if self.settings.receives {
            return;
        }
        let told = by_topic(&self.told());
        let counted = by_topic(self.recorder.borrow().totals());
        let before = self.sums.replace(told.clone());
        let of = |sums: &Sums, topic| sums.get(topic).copied().unwrap_or_default();
        let mut topics = told.keys().chain(before.keys());
        let wrong = topics.find_map(|topic| {
            let (now, before, most) = (of(&told, topic), of(&before, topic), of(&counted, topic));
            let right = is_within(before, now) && is_within(now, most);
            (!right).then(|| format!("of {most:?} {now:?} is told, and {before:?} was"))
        });
        if let Some(wrong) = wrong {
            self.recorder.borrow_mut().fail(wrong);
        }
    }

    /// Returns a live worker that has not reported all that it has counted, if the history waits
    /// for that.
    pub(crate) fn behind(&self) -> Option<String> {
        if !self.settings.told || self.settings.receives {
            return None;
        }
        let (told, alive) = (self.told(), self.alive());
        let recorder = self.recorder.borrow();
        let mut counted = recorder.totals().iter().filter(|((id, _), _)| alive.contains(id));
        let ((worker, _), total) =
            counted.find(|(of, total)| told.get(*of).copied().unwrap_or_default() != **total)?;
        Some(format!("worker {worker} lives and has not told all of {total:?}"))
    }

    /// Returns the totals reported so far; folded ones are worker 0's.
    fn told(&self) -> Totals {
        let read = |value: &dyn Fn(&str) -> u64| {
            let of = (WorkerId(value("worker_id")), TopicId(value("topic_id") as u32));
            let waited = Duration::from_micros(value("waited_us"));
            let (done, failed) = (value("done"), value("failed"));
            (of, Throughput { done, failed, picked_up: value("picked_up"), waited })
        };
        self.read("queue_throughput", |_| true, read).into_iter().collect()
    }

    /// Returns the workers that were not declared dead and have not stopped.
    fn alive(&self) -> BTreeSet<WorkerId> {
        let is_alive = |state: &Value| *state == Value::bytes(b"alive");
        let read = |value: &dyn Fn(&str) -> u64| WorkerId(value("id"));
        self.read("queue_worker", is_alive, read).into_iter().collect()
    }

    /// Reads the committed rows of a table whose state, if they have one, is among `takes`.
    fn read<T>(
        &self,
        name: &str,
        takes: impl Fn(&Value) -> bool,
        of: impl Fn(&dyn Fn(&str) -> u64) -> T,
    ) -> Vec<T> {
        let engine = self.server.engine.borrow();
        let table = &engine.tables[engine.table(name)];
        let state = table.definition.place("state");
        let rows = table.slots.values().filter_map(|slot| slot.committed.as_ref());
        let taken = rows.filter(|row| state.is_none_or(|state| takes(&row[state])));
        let value = |row: &Row, column: &str| {
            row[table.definition.place(column).expect("a column")].number() as u64
        };
        taken.map(|row| of(&|column| value(row, column))).collect()
    }
}

fn by_topic(totals: &Totals) -> Sums {
    let mut sums = Sums::new();
    for ((_, topic), total) in totals {
        let sum = sums.entry(*topic).or_default();
        sum.done += total.done;
        sum.failed += total.failed;
        sum.picked_up += total.picked_up;
        sum.waited += total.waited;
    }
    sums
}

fn is_within(less: Throughput, more: Throughput) -> bool {
    less.done <= more.done
        && less.failed <= more.failed
        && less.picked_up <= more.picked_up
        && less.waited <= more.waited
}
