//! Appending a batch directly to the log, without the inbox: its body is written once instead of
//! twice.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pack::Packer;
use super::sequence::{Locked, count, lock, sequence_locked};
use crate::connection::Connection;
use crate::model::page::PageEntry;
use crate::model::{NewMessage, PartitionNo, Position, Result, TopicId};
use crate::store::stream::log::{self, PlacedPage};
use crate::store::stream::partition::{self, Partition};
use crate::stream::Contention;

/// How many messages of the inbox the producer sequences before its own batch, about: it looks
/// through as many as should have so many of the partitions that it has locked.
const SEQUENCED_BEFORE: u32 = 1000;

/// The most messages of the inbox that it looks through.
const LOOKED_THROUGH: u32 = 16_000;

/// How often a batch without keys tries to lock a partition, in turn, or as often as there are
/// partitions. While a sequencer is at work, all are locked. Otherwise one is free sooner or later:
/// with four partitions, four lanes that try each only once meet all four locked now and then, one
/// after the other, and what then goes into the inbox slows down every later batch (46 k messages a
/// second in place of 344 k).
const TRIES: usize = 8;

/// The result of an append.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// Whether the batch is in the log. If not, nothing of it was written: the inbox is faster now.
    pub in_log: bool,
    /// Messages that got their offsets, from the inbox and from the batch.
    pub sequenced: usize,
}

/// Returns whether a batch goes into one partition, whichever is free, so that several such batches
/// can be appended at once. One with keys needs the partitions of its keys.
#[must_use]
pub fn fits_any_partition(messages: &[NewMessage]) -> bool {
    messages.iter().all(|message| message.key.is_none())
}

/// Appends messages to the log of a stream, unless other sessions have locked the partitions or the
/// inbox is full. None of the messages may have a due time. Runs within the caller's transaction,
/// at READ COMMITTED, as the last thing in it: no other message of the locked partitions gets an
/// offset until it ends.
///
/// Messages committed earlier come first in each partition, including those of the same producer:
/// under the partition's lock the inbox is sequenced before anything is appended (history H15).
///
/// # Errors
/// [`crate::Error::Counts`] if a message of the inbox was purged in the meantime, a database
/// failure; roll back.
pub async fn append(
    conn: &mut impl Connection,
    stream: TopicId,
    messages: &[NewMessage],
) -> Result<Appended> {
    let mut locked = match fits_any_partition(messages) {
        true => lock_emptiest(conn, stream).await?,
        false => lock(conn, stream, Contention::Leave).await?,
    };
    // What cannot be appended anyway holds nothing up: the inbox is not even looked into.
    if places(&mut locked.clone(), messages).is_none() {
        return Ok(Appended::default());
    }
    let limit = SEQUENCED_BEFORE * locked.of / count(&locked.partitions).max(1);
    let limit = limit.min(LOOKED_THROUGH);
    let before = sequence_locked(conn, stream, &mut locked, limit).await?;
    let elsewhere = Appended { in_log: false, sequenced: before.messages };
    if before.more {
        return Ok(elsewhere);
    }
    let seen = locked.partitions.clone();
    let Some(places) = places(&mut locked, messages) else { return Ok(elsewhere) };
    if seen.iter().all(|partition| partition.pages) {
        log::append_pages(conn, stream, &pages(&seen, messages, &places)?).await?;
    } else {
        log::append(conn, stream, messages, &places).await?;
    }
    for (seen, end) in seen.iter().zip(&locked.partitions).filter(|(seen, end)| seen != end) {
        partition::advance(conn, stream, *seen, end.next.0 - seen.next.0).await?;
    }
    Ok(Appended { in_log: true, sequenced: before.messages + messages.len() })
}

/// Locks the partition with the lowest end of those that are free; none if there is no such one.
async fn lock_emptiest(conn: &mut impl Connection, stream: TopicId) -> Result<Locked> {
    let mut all = partition::all(conn, stream).await?;
    all.sort_by_key(|partition| partition.next);
    let mut locked = Locked { of: count(&all), partitions: Vec::new() };
    for partition in all.iter().cycle().take(TRIES.max(all.len())) {
        if let Some(free) = partition::try_lock(conn, stream, partition.no).await? {
            locked.partitions.push(free);
            break;
        }
    }
    Ok(locked)
}

/// Chooses the position of each message and advances the ends of the partitions. A message with a
/// key goes to the same partition as from the inbox ([`scan`](crate::store::stream::inbox::scan)),
/// the others to the locked partition with the lowest end. Returns `None` if none, or not the
/// partition of a key, is locked.
fn places(locked: &mut Locked, messages: &[NewMessage]) -> Option<Vec<Position>> {
    let emptiest = locked.partitions.iter().min_by_key(|partition| partition.next)?.no;
    let place = |message: &NewMessage| {
        let no = match &message.key {
            Some(key) => PartitionNo(crc32fast::hash(key).checked_rem(locked.of)?),
            None => emptiest,
        };
        let partition = locked.get_mut(no)?;
        let position = Position { partition: no, offset: partition.next };
        partition.next.0 += 1;
        Some(position)
    };
    messages.iter().map(place).collect()
}

/// Packs the messages into pages, in order.
fn pages(
    partitions: &[Partition],
    messages: &[NewMessage],
    places: &[Position],
) -> Result<Vec<PlacedPage>> {
    let headers = messages.iter().map(|message| message.headers.to_stored());
    let headers = headers.collect::<Result<Vec<_>>>()?;
    let packer = |partition: &Partition| (partition.no, Packer::new(partition.no, partition.next));
    let mut packers: BTreeMap<PartitionNo, Packer<'_>> = partitions.iter().map(packer).collect();
    for ((message, headers), place) in messages.iter().zip(&headers).zip(places) {
        let Some(packer) = packers.get_mut(&place.partition) else { continue };
        let entry = PageEntry {
            msg_id: message.msg_id,
            enqueued_after: Duration::ZERO,
            expires: message.expires,
            key: message.key.as_deref(),
            biz_id: message.biz_id.as_deref(),
            headers: headers.as_deref(),
            body_bytes: message.body.len(),
            body: &message.body,
        };
        packer.add(entry, None);
    }
    Ok(packers.into_values().flat_map(Packer::end).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, PartitionNo};

    fn partition(no: u32, next: u64) -> Partition {
        Partition { no: PartitionNo(no), first: Offset(0), next: Offset(next), pages: false }
    }

    fn locked(partitions: &[Partition], of: u32) -> Locked {
        Locked { partitions: partitions.to_vec(), of }
    }

    #[test]
    fn messages_without_a_key_go_to_the_emptiest_locked_partition() {
        let mut locked = locked(&[partition(0, 500), partition(2, 7), partition(3, 9)], 4);
        let messages: Vec<_> = (0..250).map(|n| NewMessage::new(n.to_string())).collect();
        let places = places(&mut locked, &messages).expect("places");
        assert!(places.iter().all(|place| place.partition.0 == 2));
        assert!(places.iter().map(|place| place.offset.0).eq(7..257));
        let ends = locked.partitions.iter().map(|partition| partition.next.0);
        assert!(ends.eq([500, 257, 9]));
    }

    #[test]
    fn a_message_with_a_key_goes_to_the_partition_of_its_key() {
        let mut both = locked(&[partition(0, 0), partition(1, 0)], 2);
        let messages = ["a", "b", "a"].map(|key| NewMessage::new("m").with_key(key));
        let places = super::places(&mut both, &messages).expect("places");
        assert_eq!(places[0].partition, places[2].partition);
        assert!(places[2].offset > places[0].offset);
        let other = partition(1 - places[0].partition.0, 0);
        assert_eq!(super::places(&mut locked(&[other], 2), &messages[..1]), None);
    }
}
