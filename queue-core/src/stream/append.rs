//! Appending a batch directly to the log, without the inbox: its body is written once instead of
//! twice.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pack::Packer;
use super::sequence::{lock, sequence_locked};
use crate::connection::Connection;
use crate::model::page::PageEntry;
use crate::model::{NewMessage, PartitionNo, Position, Result, TopicId};
use crate::store::stream::log::{self, PlacedPage};
use crate::store::stream::partition::{self, Partition};
use crate::stream::Contention;

/// The most messages of the inbox that the producer sequences before its own batch.
const SEQUENCED_BEFORE: u32 = 1000;

/// The fewest messages without a key that go to one partition: each partition costs a statement.
const SPREAD: usize = 100;

/// The result of an append.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Appended {
    /// Whether the batch is in the log. If not, nothing of it was written: the inbox is faster now.
    pub in_log: bool,
    /// Messages that got their offsets, from the inbox and from the batch.
    pub sequenced: usize,
}

/// Appends messages to the log of a stream, unless a sequencer is at work or the inbox is full.
/// None of the messages may have a due time. Runs within the caller's transaction, at READ
/// COMMITTED, as the last thing in it: no other message of the stream gets an offset until it ends.
///
/// Messages committed earlier come first, including those of the same producer: under the
/// partitions' locks the inbox is sequenced before anything is appended (history H15).
///
/// # Errors
/// [`crate::Error::Counts`] if a message of the inbox was purged in the meantime, a database
/// failure; roll back.
pub async fn append(
    conn: &mut impl Connection,
    stream: TopicId,
    messages: &[NewMessage],
) -> Result<Appended> {
    let mut locked = lock(conn, stream, Contention::Leave).await?;
    if locked.is_empty() {
        return Ok(Appended::default());
    }
    let before = sequence_locked(conn, stream, &mut locked, SEQUENCED_BEFORE).await?;
    if before.more {
        return Ok(Appended { in_log: false, sequenced: before.messages });
    }
    let seen = locked.clone();
    let places = places(&mut locked, messages);
    if locked.iter().all(|partition| partition.pages) {
        log::append_pages(conn, stream, &pages(&seen, messages, &places)?).await?;
    } else {
        log::append(conn, stream, messages, &places).await?;
    }
    for (seen, end) in seen.iter().zip(&locked).filter(|(seen, end)| seen != end) {
        partition::advance(conn, stream, *seen, end.next.0 - seen.next.0).await?;
    }
    Ok(Appended { in_log: true, sequenced: before.messages + messages.len() })
}

/// Chooses the position of each message and advances the ends of the partitions. A message with a
/// key goes to the same partition as from the inbox ([`scan`](crate::store::stream::inbox::scan)),
/// the others to the partitions with the lowest ends.
fn places(partitions: &mut [Partition], messages: &[NewMessage]) -> Vec<Position> {
    let without_key = messages.iter().filter(|message| message.key.is_none()).count();
    let pieces = (without_key / SPREAD).clamp(1, partitions.len());
    let mut emptiest: Vec<usize> = (0..partitions.len()).collect();
    emptiest.sort_by_key(|at| partitions[*at].next);
    let mut nth = 0;
    let place = |message: &NewMessage| {
        let at = match &message.key {
            Some(key) => crc32fast::hash(key) as usize % partitions.len(),
            None => {
                nth += 1;
                emptiest[(nth - 1) * pieces / without_key]
            }
        };
        let partition = &mut partitions[at];
        let position = Position { partition: partition.no, offset: partition.next };
        partition.next.0 += 1;
        position
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

    #[test]
    fn messages_without_a_key_go_in_pieces_to_the_emptiest_partitions() {
        let mut partitions = [partition(0, 500), partition(1, 7), partition(2, 9)];
        let messages: Vec<_> = (0..250).map(|n| NewMessage::new(n.to_string())).collect();
        let places = places(&mut partitions, &messages);
        let of = |no: u32| places.iter().filter(move |place| place.partition.0 == no);
        assert_eq!([0, 1, 2].map(|no| of(no).count()), [0, 125, 125]);
        assert!(of(1).map(|place| place.offset.0).eq(7..132));
        assert_eq!(partitions.map(|partition| partition.next.0), [500, 132, 134]);
        assert!(places.is_sorted_by_key(|place| place.partition));
    }

    #[test]
    fn a_message_with_a_key_goes_to_the_partition_of_its_key() {
        let mut partitions = [partition(0, 0), partition(1, 0)];
        let messages = ["a", "b", "a"].map(|key| NewMessage::new("m").with_key(key));
        let places = places(&mut partitions, &messages);
        assert_eq!(places[0].partition, places[2].partition);
        assert!(places[2].offset > places[0].offset);
    }
}
