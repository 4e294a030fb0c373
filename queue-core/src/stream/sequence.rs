use std::collections::BTreeMap;
use std::time::Duration;

use super::pack::Packer;
use crate::connection::Connection;
use crate::model::page::PageEntry;
use crate::model::{Moment, PartitionNo, Priority, Result, TopicId};
use crate::store::row_set::RowSet;
use crate::store::stream::inbox::{self, InInbox, Run, Unsequenced};
use crate::store::stream::log::{self, PlacedPage};
use crate::store::stream::partition::{self, Partition};

/// The most bytes of bodies and headers that one transaction moves: larger transactions hold up
/// replication.
const BYTES: u64 = 16 * 1024 * 1024;

/// Up to this mean size, messages go to the sequencer and back to share pages.
const SMALL: u64 = 4 * 1024;

/// What to do if another sequencer is at work on the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contention {
    /// Wait for its transaction.
    Wait,
    /// Leave the work to the other sequencer.
    Leave,
}

/// The result of one turn of the sequencer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Sequenced {
    /// Messages that got their offset.
    pub messages: usize,
    /// Whether the inbox has more.
    pub more: bool,
}

/// Gives up to `limit` messages of the stream's inbox their offsets. Runs within the caller's
/// transaction, as the first thing in it, at READ COMMITTED.
///
/// The partitions' rows are locked before the inbox is read, so that offsets follow the order in
/// which transactions committed. Only the session that holds these locks gives offsets: no leader
/// is needed, and any number of sequencers may try. The inbox is read in one plain SELECT: when a
/// later message of a producer's connection is visible in it, so is its earlier one (history H14).
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn sequence(
    conn: &mut impl Connection,
    stream: TopicId,
    limit: u32,
    contention: Contention,
) -> Result<Sequenced> {
    let mut locked = lock(conn, stream, contention).await?;
    sequence_locked(conn, stream, &mut locked, limit).await
}

/// Locks the partitions of a stream. Returns none if another sequencer is at work on the stream and
/// this one does not wait.
pub(super) async fn lock(
    conn: &mut impl Connection,
    stream: TopicId,
    contention: Contention,
) -> Result<Vec<Partition>> {
    if contention == Contention::Leave && !partition::try_lock_first(conn, stream).await? {
        return Ok(Vec::new());
    }
    partition::lock(conn, stream).await
}

/// As [`sequence()`], for partitions that are already locked; sets their ends to the end of the
/// log.
pub(super) async fn sequence_locked(
    conn: &mut impl Connection,
    stream: TopicId,
    locked: &mut [Partition],
    limit: u32,
) -> Result<Sequenced> {
    let partitions = u32::try_from(locked.len()).unwrap_or(u32::MAX);
    if partitions == 0 {
        return Ok(Sequenced::default());
    }
    let found = inbox::scan(conn, stream, partitions, limit).await?;
    let full = found.len() == limit as usize;
    let taken = fitting(&found);
    let (messages, more) = (taken.len(), full || taken.len() < found.len());
    for (no, runs) in by_partition(stream, taken) {
        let Some(end) = locked.iter_mut().find(|partition| partition.no == no) else { continue };
        append(conn, stream, end, &runs).await?;
    }
    for run in by_priority(stream, taken) {
        inbox::remove(conn, &run).await?;
    }
    Ok(Sequenced { messages, more })
}

/// Returns the first messages whose bodies one transaction may move; one at least.
fn fitting(found: &[Unsequenced]) -> &[Unsequenced] {
    let mut bytes = 0;
    let n = found.iter().take_while(|message| {
        bytes += message.bytes;
        bytes <= BYTES
    });
    &found[..n.count().max(1).min(found.len())]
}

async fn append(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: &mut Partition,
    runs: &[Run],
) -> Result<()> {
    let seen = *partition;
    for run in runs {
        if seen.pages && run.bytes <= SMALL * run.rows.len() as u64 {
            let messages = inbox::read(conn, run).await?;
            let pages = pages(*partition, &messages);
            log::append_pages(conn, stream, &pages).await?;
        } else {
            // The server copies large messages by itself: few of them would share a page.
            inbox::append(conn, run, seen.no, partition.next).await?;
        }
        partition.next.0 += run.rows.len() as u64;
    }
    partition::advance(conn, stream, seen, partition.next.0 - seen.next.0).await
}

/// Packs messages that follow the end of the partition into pages, in order.
fn pages(end: Partition, messages: &[InInbox]) -> Vec<PlacedPage> {
    let mut packer = Packer::new(end.no, end.next);
    for message in messages {
        let entry = PageEntry {
            msg_id: message.msg_id,
            enqueued_after: Duration::ZERO,
            expires: message.expires_at.map(Moment::At),
            key: message.key.as_deref(),
            biz_id: message.biz_id.as_deref(),
            headers: message.headers.as_deref(),
            body_bytes: message.body.len(),
            body: &message.body,
        };
        packer.add(entry, Some(message.enqueued_at));
    }
    packer.end()
}

/// Groups the rows by partition, then by priority, in order.
fn by_partition(stream: TopicId, taken: &[Unsequenced]) -> BTreeMap<PartitionNo, Vec<Run>> {
    let mut groups: BTreeMap<_, Vec<&Unsequenced>> = BTreeMap::new();
    for message in taken {
        groups.entry((message.partition, message.priority)).or_default().push(message);
    }
    let mut runs: BTreeMap<PartitionNo, Vec<Run>> = BTreeMap::new();
    for ((partition, priority), messages) in groups {
        runs.entry(partition).or_default().push(run(stream, priority, &messages));
    }
    runs
}

fn by_priority(stream: TopicId, taken: &[Unsequenced]) -> Vec<Run> {
    let mut groups: BTreeMap<Priority, Vec<&Unsequenced>> = BTreeMap::new();
    for message in taken {
        groups.entry(message.priority).or_default().push(message);
    }
    groups.into_iter().map(|(priority, messages)| run(stream, priority, &messages)).collect()
}

fn run(stream: TopicId, priority: Priority, messages: &[&Unsequenced]) -> Run {
    let rows = RowSet::new(messages.iter().map(|message| message.row));
    let bytes = messages.iter().map(|message| message.bytes).sum();
    Run { stream, priority, rows, bytes }
}
