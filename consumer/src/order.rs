//! Keeps the order of an ordered group: handles one message of each partition at a time, and none
//! behind one that failed.

use std::collections::{HashSet, VecDeque};

use rowmq_core::model::PartitionNo;

use crate::run::Waiting;

/// The partitions in which a run is in flight.
#[derive(Debug, Default)]
pub(crate) struct Order(HashSet<PartitionNo>);

impl Order {
    /// Takes the next waiting message: the first whose partition has no run in flight. A run never
    /// has more than one message: other messages would overtake one that fails, or that is given
    /// back before its handler began. A message without a partition has already lost its place in
    /// the order.
    pub(crate) fn next(&mut self, waiting: &mut VecDeque<Waiting>) -> Option<Waiting> {
        let is_free = |waiting: &Waiting| partition(waiting).is_none_or(|no| !self.0.contains(&no));
        let next = waiting.remove(waiting.iter().position(is_free)?)?;
        self.0.extend(partition(&next));
        Some(next)
    }

    /// Returns whether a run of one of these could begin.
    pub(crate) fn has_next(&self, waiting: &VecDeque<Waiting>) -> bool {
        waiting.iter().any(|it| partition(it).is_none_or(|no| !self.0.contains(&no)))
    }

    /// Records that a run in this partition has ended.
    pub(crate) fn ended(&mut self, partition: Option<PartitionNo>) {
        if let Some(no) = partition {
            self.0.remove(&no);
        }
    }
}

fn partition(waiting: &Waiting) -> Option<PartitionNo> {
    waiting.delivery.position.map(|at| at.partition)
}
