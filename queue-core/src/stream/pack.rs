//! Packing the messages of a partition into pages, in the order of their offsets.

use chrono::{DateTime, Utc};

use crate::model::page::{PageEntry, PageWriter};
use crate::model::{Offset, PartitionNo};
use crate::store::stream::log::PlacedPage;
use crate::store::stream::page::PAGE;

/// A page that would get more bytes of bodies and headers begins a new one. With bodies of 200
/// bytes, 64 messages take 17 KiB.
const BYTES: usize = 32 * 1024;

/// The page of a partition that is being filled.
#[derive(Debug)]
pub(super) struct Packer<'m> {
    partition: PartitionNo,
    /// The offset of the next message.
    next: Offset,
    /// The messages of the page, and when each was enqueued if not now.
    messages: Vec<(PageEntry<'m>, Option<DateTime<Utc>>)>,
    bytes: usize,
    full: Vec<PlacedPage>,
}

impl<'m> Packer<'m> {
    /// Begins at the offset of the next message.
    pub(super) fn new(partition: PartitionNo, next: Offset) -> Self {
        Self { partition, next, messages: Vec::new(), bytes: 0, full: Vec::new() }
    }

    /// Adds the next message of the partition. `enqueued_at` is `None` for a message that is
    /// enqueued now.
    pub(super) fn add(&mut self, message: PageEntry<'m>, enqueued_at: Option<DateTime<Utc>>) {
        let n = self.messages.len();
        let bytes = message.body.len() + message.headers.map_or(0, <[u8]>::len);
        if n as u64 == PAGE || n > 0 && self.bytes + bytes > BYTES {
            self.close();
        }
        self.bytes += bytes;
        self.messages.push((message, enqueued_at));
        self.next.0 += 1;
    }

    /// Returns the pages.
    pub(super) fn end(mut self) -> Vec<PlacedPage> {
        self.close();
        self.full
    }

    fn close(&mut self) {
        self.bytes = 0;
        let messages = std::mem::take(&mut self.messages);
        let Some((first, _)) = messages.first() else { return };
        let msg_id = first.msg_id;
        // Times in a page count from its earliest message. Order is that of commits.
        let earliest = messages.iter().filter_map(|(_, at)| *at).min();
        let mut writer = PageWriter::default();
        for (message, at) in messages {
            let after = at.zip(earliest).and_then(|(at, earliest)| (at - earliest).to_std().ok());
            writer.push(&PageEntry { enqueued_after: after.unwrap_or_default(), ..message });
        }
        self.full.push(PlacedPage {
            partition: self.partition,
            last: Offset(self.next.0 - 1),
            msg_id,
            enqueued_at: earliest,
            page: writer.finish(),
        });
    }
}
