//! What a stream's retention removes of its log.

use chrono::TimeDelta;

use crate::connection::Connection;
use crate::error::Result;
use crate::message::LONGEST;
use crate::store::stream::log::Stretch;
use crate::store::stream::partition::Partition;
use crate::store::stream::{log, partition, standing};
use crate::store::topic::{groups_of, server_time};
use crate::stream::Offset;
use crate::stream::group::at_time;
use crate::topic::{Retention, Topic, TopicId};

/// Messages of one transaction: some milliseconds, in which no message gets an offset.
const CHUNK: u64 = 2000;

/// The newest messages, whose mean size is taken for that of all.
const SAMPLE: u64 = 200;

/// What is to be removed of the stream's partitions now, oldest first. Nothing of it unless the
/// topic has a retention.
///
/// # Errors
/// A database failure.
pub async fn excess(conn: &mut impl Connection, topic: &Topic) -> Result<Vec<Stretch>> {
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
        let handled = groups.mark(partition);
        if !retention.hard {
            cut = cut.min(handled.unwrap_or(partition.next));
        }
        if retention.handled {
            cut = cut.max(handled.unwrap_or(partition.first));
        }
        if cut > partition.first {
            let (stream, no) = (topic.id, partition.no);
            excess.push(Stretch { stream, partition: no, lo: partition.first, hi: cut });
        }
    }
    Ok(excess)
}

/// The lowest marks of the groups of a stream.
struct Groups(Vec<standing::Standing>);

impl Groups {
    async fn of(conn: &mut impl Connection, stream: TopicId) -> Result<Self> {
        let mut standings = Vec::new();
        for topic in groups_of(conn, stream).await? {
            if let Some(group) = topic.group() {
                standings.extend(standing::of_group(conn, group).await?);
            }
        }
        Ok(Self(standings))
    }

    /// Everything before it has been handled by every group; `None` if there is no group.
    fn mark(&self, partition: &Partition) -> Option<Offset> {
        let of_partition = self.0.iter().filter(|standing| standing.partition == partition.no);
        of_partition.map(|standing| standing.mark).min()
    }
}

/// The first offset of the newest messages that take so many bytes.
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

/// Removes the first of a stretch, which must be the oldest of its partition, in the caller's
/// transaction; what is left of it.
///
/// # Errors
/// A database failure.
pub async fn remove_some(conn: &mut impl Connection, stretch: Stretch) -> Result<Option<Stretch>> {
    let hi = Offset(stretch.hi.0.min(stretch.lo.0 + CHUNK));
    log::remove(conn, Stretch { hi, ..stretch }).await?;
    // Last: the sequencer waits for this row.
    partition::cut(conn, stretch.stream, stretch.partition, hi).await?;
    Ok((hi < stretch.hi).then_some(Stretch { lo: hi, ..stretch }))
}
