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

/// What to do with a partition that another session has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contention {
    /// Wait for its transaction.
    Wait,
    /// Leave the messages of this partition to the other session, or to the next turn.
    Leave,
}

/// The result of one turn of the sequencer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Sequenced {
    /// Messages that got their offset.
    pub messages: usize,
    /// Whether another turn may find more.
    pub more: bool,
}

/// Partitions of a stream that this session has locked. Until its transaction ends, no other
/// session gives their messages offsets.
#[derive(Debug, Clone)]
pub(super) struct Locked {
    /// They, in order.
    pub(super) partitions: Vec<Partition>,
    /// How many partitions the stream has, with those that are not locked.
    pub(super) of: u32,
}

impl Locked {
    pub(super) fn get_mut(&mut self, no: PartitionNo) -> Option<&mut Partition> {
        self.partitions.iter_mut().find(|partition| partition.no == no)
    }
}

/// Gives up to `limit` messages of the stream's inbox their offsets. Runs within the caller's
/// transaction, as the first thing in it, at READ COMMITTED.
///
/// The partitions' rows are locked before the inbox is read, so that offsets follow the order in
/// which transactions committed. Only the session that has locked a partition gives its messages
/// offsets: no leader is needed, and any number of sequencers may try. The inbox is read in one
/// plain SELECT: when a later message of a producer's connection is visible in it, so is its
/// earlier one (history H14).
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
    let done = sequence_locked(conn, stream, &mut locked, limit).await?;
    // If all that was read belongs to partitions of others, another turn would read it again.
    Ok(Sequenced { more: done.more && done.messages > 0, ..done })
}

/// Locks the partitions of a stream: all of them, or those that are free if this session does not
/// wait.
pub(super) async fn lock(
    conn: &mut impl Connection,
    stream: TopicId,
    contention: Contention,
) -> Result<Locked> {
    match contention {
        Contention::Wait => {
            let partitions = partition::lock(conn, stream).await?;
            Ok(Locked { of: count(&partitions), partitions })
        }
        Contention::Leave => {
            let of = count(&partition::all(conn, stream).await?);
            let partitions = partition::lock_free(conn, stream).await?;
            Ok(Locked { of, partitions })
        }
    }
}

/// Returns how many they are: 256 at most.
pub(super) fn count(partitions: &[Partition]) -> u32 {
    u32::try_from(partitions.len()).unwrap_or(u32::MAX)
}

/// As [`sequence()`], for partitions that are already locked; sets their ends to the end of the
/// log. `more` then says whether the inbox has more, of whichever partition.
pub(super) async fn sequence_locked(
    conn: &mut impl Connection,
    stream: TopicId,
    locked: &mut Locked,
    limit: u32,
) -> Result<Sequenced> {
    if locked.partitions.is_empty() {
        return Ok(Sequenced::default());
    }
    let mut found = inbox::scan(conn, stream, locked.of, limit).await?;
    let full = found.len() == limit as usize;
    found.retain(|message| locked.get_mut(message.partition).is_some());
    let taken = fitting(&found);
    let (messages, more) = (taken.len(), full || taken.len() < found.len());
    for (no, runs) in by_partition(stream, taken) {
        let Some(end) = locked.get_mut(no) else { continue };
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
