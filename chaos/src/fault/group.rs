//! Operators who reset groups of the stream, or have them replay, while the groups work.

use anyhow::Context;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::arena::Arena;
use crate::record::{Event, Replayed};
use crate::stream::{Group, PARTITIONS};

/// The groups that may be reset. With transactional handlers, a reset would repeat effects.
const MOVABLE: [Group; 3] = [Group::Plain, Group::Ordered, Group::Filtered];

/// The position of a group in a partition: it has finished everything before `mark`.
struct GroupPosition {
    first: u64,
    mark: u64,
}

impl Arena {
    async fn position(&self, group: Group, partition: u32) -> anyhow::Result<GroupPosition> {
        let topic = group.topic();
        let first = format!(
            "SELECT p.first_offset FROM queue_partition p JOIN queue_topic t ON \
             t.stream_id = p.topic_id WHERE t.name = '{topic}' AND p.partition_no = {partition}"
        );
        let mark = format!(
            "SELECT LEAST(c.next_offset, COALESCE((SELECT MIN(r.mark) FROM queue_range r \
             WHERE r.group_id = c.group_id AND r.partition_no = c.partition_no), c.next_offset)) \
             FROM queue_cursor c JOIN queue_topic t ON t.id = c.group_id \
             WHERE t.name = '{topic}' AND c.partition_no = {partition}"
        );
        Ok(GroupPosition { first: self.number(&first).await?, mark: self.number(&mark).await? })
    }

    /// Returns the lowest mark of the group: a reset to it skips nothing in any partition.
    async fn lowest_mark(&self, group: Group) -> anyhow::Result<u64> {
        let mut marks = Vec::new();
        for partition in 0..PARTITIONS {
            marks.push(self.position(group, partition).await?.mark);
        }
        marks.into_iter().min().context("a stream has a partition")
    }

    /// Has the group handle a range of each partition again, and then records which part of it
    /// was still kept.
    async fn rewind(
        &self,
        group: Group,
        (lo, hi): (u64, u64),
        command: &[&str],
    ) -> anyhow::Result<()> {
        for partition in 0..PARTITIONS {
            self.record.note(&Event::Rewind(Replayed { group, partition, lo, hi }))?;
        }
        if !self.rowmq(command).await? {
            return Ok(());
        }
        for partition in 0..PARTITIONS {
            // What retention has removed by now may already have been gone when the command ran.
            let lo = lo.max(self.position(group, partition).await?.first);
            self.record.note(&Event::Rewound(Replayed { group, partition, lo, hi }))?;
        }
        Ok(())
    }
}

/// Resets a group to the oldest message kept, or to one that it has finished in every partition.
pub(super) async fn reset_group(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    // No other fault may move the group until this one is over.
    let _one = arena.rewinding.lock().await;
    let group = *MOVABLE.choose(rng).context("there are some")?;
    let mark = arena.lowest_mark(group).await?;
    let to = if rng.random() { 0 } else { rng.random_range(0..=mark) };
    let place = if to == 0 { "earliest".to_owned() } else { to.to_string() };
    let command = ["group", "reset", &group.topic(), "--to", &place, "--yes"];
    arena.rewind(group, (to, u64::MAX), &command).await
}

/// Replays a range that the group has finished in every partition.
pub(super) async fn replay_group(arena: &Arena, rng: &mut SmallRng) -> anyhow::Result<()> {
    // No other fault may move the group until this one is over.
    let _one = arena.rewinding.lock().await;
    let group = *MOVABLE.choose(rng).context("there are some")?;
    let mark = arena.lowest_mark(group).await?;
    let lo = rng.random_range(0..=mark);
    let hi = rng.random_range(lo..=mark);
    let (from, to) = (lo.to_string(), hi.to_string());
    let command = ["group", "replay", &group.topic(), "--from", &from, "--to", &to];
    arena.rewind(group, (lo, hi), &command).await
}
