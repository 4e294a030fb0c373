//! Retention: removing old messages of a stream's log.

use chrono::TimeDelta;

use crate::connection::Connection;
use crate::model::{LONGEST, Offset, PartitionNo, Result, Retention, Topic, TopicId};
use crate::store::stream::log::Stretch;
use crate::store::stream::partition::Partition;
use crate::store::stream::{cursor, log, member, partition, progress};
use crate::store::topic::{groups_of, lock_by_id, server_time};
use crate::stream::group::at_time;

/// Rows of one transaction: it takes some milliseconds, in which no message of the partition gets
/// an offset.
const ROWS: u32 = 1000;

/// How many of the newest messages the mean size is estimated from.
const SAMPLE: u64 = 200;

/// The oldest messages of a partition that are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excess {
    /// Where they lie.
    pub stretch: Stretch,
    /// Whether only messages that every group has handled may go. This is checked again when they
    /// are removed: a group may have been moved back in the meantime.
    pub if_handled: bool,
}

/// The result of one turn of the retention.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Offsets removed.
    pub offsets: u64,
    /// What remains to be removed.
    pub left: Option<Excess>,
}

/// Finds what is to be removed of the stream's partitions now, oldest first; nothing unless the
/// topic has a retention.
pub async fn excess(conn: &mut impl Connection, topic: &Topic) -> Result<Vec<Excess>> {
    let retention = topic.settings.retention;
    if !topic.is_stream() || retention == Retention::default() {
        return Ok(Vec::new());
    }
    let mut excess = Vec::new();
    let partitions = partition::all(conn, topic.id).await?;
    let groups = Groups::of(conn, topic.id).await?;
    for partition in &partitions {
        let mut cut = partition.first;
        if let Some(time) = retention.time {
            let time = TimeDelta::from_std(time.min(LONGEST)).unwrap_or(TimeDelta::MAX);
            let oldest = server_time(conn).await?.and_utc() - time;
            cut = cut.max(at_time(conn, topic.id, partition, oldest).await?);
        }
        if let Some(bytes) = retention.bytes {
            let share = bytes / partitions.len().max(1) as u64;
            cut = cut.max(by_size(conn, topic.id, partition, share).await?);
        }
        let handled = groups.mark(partition.no);
        let hard = if retention.hard { cut } else { partition.first };
        cut = cut.min(handled.unwrap_or(partition.next)).max(hard);
        if retention.handled {
            cut = cut.max(handled.unwrap_or(partition.first));
        }
        // A page goes with its last message.
        let hard = log::begin_of(conn, topic.id, partition.no, hard).await?.max(partition.first);
        let cut = log::begin_of(conn, topic.id, partition.no, cut).await?;
        for (lo, hi, if_handled) in [(partition.first, hard, false), (hard, cut, true)] {
            if lo < hi {
                let stretch = Stretch { stream: topic.id, partition: partition.no, lo, hi };
                excess.push(Excess { stretch, if_handled });
            }
        }
    }
    Ok(excess)
}

/// How far the groups of a stream, and the named members of broadcast groups, have come in each
/// partition; members without a name do not count.
struct Groups(Vec<(PartitionNo, Offset)>);

impl Groups {
    async fn of(conn: &mut impl Connection, stream: TopicId) -> Result<Self> {
        let mut marks = Vec::new();
        for topic in groups_of(conn, stream).await? {
            if let Some(group) = topic.group() {
                let progress = progress::of_group(conn, group).await?;
                marks.extend(progress.iter().map(|one| (one.partition, one.mark)));
            }
            if let Some(group) = topic.broadcast() {
                let progress = member::progress(conn, group).await?;
                marks.extend(progress.iter().map(|one| (one.partition, one.next)));
            }
        }
        Ok(Self(marks))
    }

    /// Returns the offset before which every group has handled everything; `None` if there is no
    /// group.
    fn mark(&self, partition: PartitionNo) -> Option<Offset> {
        self.0.iter().filter(|(no, _)| *no == partition).map(|(_, mark)| *mark).min()
    }
}

/// Returns the first offset of the newest messages that take this many bytes.
async fn by_size(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: &Partition,
    bytes: u64,
) -> Result<Offset> {
    let newest = Stretch {
        stream,
        partition: partition.no,
        lo: Offset(partition.next.0.saturating_sub(SAMPLE)),
        hi: partition.next,
    };
    let mean = log::mean_bytes(conn, newest).await?.max(1);
    Ok(Offset(partition.next.0.saturating_sub(bytes / mean)))
}

/// Removes the first messages that are no longer kept. Runs within the caller's transaction, at
/// READ COMMITTED. With `if_handled` it locks the stream's topic, so that no group and no named
/// member begins in the meantime, then the groups' cursors and the positions of named members, so
/// that no session resets or replays.
pub async fn remove_excess(conn: &mut impl Connection, excess: Excess) -> Result<Removed> {
    let Excess { mut stretch, if_handled } = excess;
    if if_handled {
        lock_by_id(conn, stretch.stream).await?;
        for group in groups_of(conn, stretch.stream).await? {
            cursor::lock(conn, group.id, stretch.partition).await?;
            if group.broadcast().is_some() {
                member::lock_all(conn, group.id).await?;
            }
        }
        let handled = Groups::of(conn, stretch.stream).await?.mark(stretch.partition);
        let hi = handled.map_or(stretch.hi, |mark| mark.min(stretch.hi));
        stretch.hi = log::begin_of(conn, stretch.stream, stretch.partition, hi).await?;
        if stretch.hi <= stretch.lo {
            return Ok(Removed::default());
        }
    }
    let left = remove_some(conn, stretch).await?;
    let end = left.map_or(stretch.hi, |left| left.lo);
    let left = left.map(|stretch| Excess { stretch, if_handled });
    Ok(Removed { offsets: end.0 - stretch.lo.0, left })
}

/// Removes the first messages of a stretch, which must be the oldest of its partition, in the
/// caller's transaction; returns what is left of the stretch.
pub async fn remove_some(conn: &mut impl Connection, stretch: Stretch) -> Result<Option<Stretch>> {
    let rows = log::ends(conn, stretch, ROWS).await?;
    let hi = match rows.last().filter(|_| rows.len() == ROWS as usize) {
        Some(last) => Offset(last.0 + 1),
        None => log::begin_of(conn, stretch.stream, stretch.partition, stretch.hi).await?,
    };
    log::remove(conn, Stretch { hi, ..stretch }).await?;
    // Last, because the sequencer waits for this row.
    partition::cut(conn, stretch.stream, stretch.partition, hi).await?;
    Ok((hi < stretch.hi).then_some(Stretch { lo: hi, ..stretch }))
}
