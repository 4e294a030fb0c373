//! Keeping the order of an ordered group: of each partition one run at a time, and none beyond a
//! message that failed.

use std::collections::{HashSet, VecDeque};

use queue_core::message::ClaimNo;
use queue_core::stream::PartitionNo;

use crate::run::Waiting;

/// The partitions that a run is under way in.
#[derive(Debug, Default)]
pub(crate) struct Order(HashSet<PartitionNo>);

impl Order {
    /// Takes the next run's messages out of those that wait: up to `n` of one claim, of a partition
    /// in which nothing runs. None if there is no such.
    pub(crate) fn next(&mut self, waiting: &mut VecDeque<Waiting>, n: usize) -> Vec<Waiting> {
        let is_free = |waiting: &Waiting| partition(waiting).is_none_or(|no| !self.0.contains(&no));
        let Some(first) = waiting.iter().position(is_free) else { return Vec::new() };
        let claim = waiting[first].delivery.claim_no;
        let same = waiting.iter().skip(first).take_while(|it| it.delivery.claim_no == claim);
        // A message that is tried again is of no partition: it has lost its turn already.
        let n = if partition(&waiting[first]).is_some() { same.take(n).count() } else { 1 };
        let run: Vec<_> = waiting.drain(first..first + n).collect();
        self.0.extend(run.first().and_then(partition));
        run
    }

    /// Whether a run of these could begin.
    pub(crate) fn has_next(&self, waiting: &VecDeque<Waiting>) -> bool {
        waiting.iter().any(|it| partition(it).is_none_or(|no| !self.0.contains(&no)))
    }

    /// A run has ended in this partition.
    pub(crate) fn ended(&mut self, partition: Option<PartitionNo>) {
        if let Some(no) = partition {
            self.0.remove(&no);
        }
    }
}

fn partition(waiting: &Waiting) -> Option<PartitionNo> {
    waiting.delivery.position.map(|at| at.partition)
}

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ran {
    /// How long it took.
    pub(crate) took: std::time::Duration,
    /// The partition whose messages it had.
    pub(crate) partition: Option<PartitionNo>,
    /// The claim that it cannot go on with: a message of it failed.
    pub(crate) held_back: Option<ClaimNo>,
}
