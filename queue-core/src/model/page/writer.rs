//! Writes pages.

use std::time::Duration;

use super::{
    CHECKSUM, ENTRY, EXPIRES_AFTER, EXPIRES_AT, HAS_BIZ_ID, HAS_HEADERS, HAS_KEY, HEAD, Page,
    PageEntry, VERSION, checksum,
};
use crate::model::Moment;

/// A page that is being written.
#[derive(Debug, Default)]
pub(crate) struct PageWriter {
    entries: Vec<u8>,
    tail: Vec<u8>,
    bodies: Vec<u8>,
    /// Where each entry's tail begins, from the beginning of the tail.
    tails: Vec<u32>,
}

impl PageWriter {
    /// Adds a message.
    pub(crate) fn push(&mut self, entry: &PageEntry<'_>) {
        let (expires, mut flags) = match entry.expires {
            None => (0, 0),
            Some(Moment::After(time)) => (micros(time), EXPIRES_AFTER),
            Some(Moment::At(at)) => (u64::try_from(at.timestamp_micros()).unwrap_or(0), EXPIRES_AT),
        };
        let parts = [entry.key, entry.biz_id, entry.headers];
        for (part, flag) in parts.iter().zip([HAS_KEY, HAS_BIZ_ID, HAS_HEADERS]) {
            flags |= if part.is_some() { flag } else { 0 };
        }
        let [key, biz_id, headers] = parts.map(Option::unwrap_or_default);
        self.tails.push(length(&self.tail));
        self.entries.extend(entry.msg_id.as_bytes());
        self.entries.extend(micros(entry.enqueued_after).to_be_bytes());
        self.entries.extend(expires.to_be_bytes());
        self.entries.extend(length(&self.bodies).to_be_bytes());
        self.entries.extend(length(entry.body).to_be_bytes());
        // The place of the tail is known at the end.
        self.entries.extend([0; 4]);
        self.entries.extend(length(headers).to_be_bytes());
        let short = |part: &[u8]| u8::try_from(part.len()).unwrap_or(u8::MAX);
        self.entries.extend([short(key), short(biz_id), 0, flags]);
        self.tail.extend([key, biz_id, headers].concat());
        self.bodies.extend(entry.body);
    }

    /// Returns the page.
    pub(crate) fn finish(self) -> Page {
        let Self { mut entries, tail, bodies, tails } = self;
        let start = u32::try_from(HEAD + entries.len()).unwrap_or(u32::MAX);
        for (entry, at) in entries.chunks_exact_mut(ENTRY).zip(&tails) {
            entry[40..44].copy_from_slice(&(start + at).to_be_bytes());
        }
        let messages = u16::try_from(tails.len()).unwrap_or(u16::MAX);
        let mut page = Vec::with_capacity(HEAD + entries.len() + tail.len());
        page.extend(VERSION.to_be_bytes());
        page.extend(messages.to_be_bytes());
        page.extend(length(&bodies).to_be_bytes());
        page.extend(crc32fast::hash(&bodies).to_be_bytes());
        page.extend([0; 4]);
        page.extend(entries);
        page.extend(tail);
        let checksum = checksum(&page).to_be_bytes();
        page[CHECKSUM..HEAD].copy_from_slice(&checksum);
        Page { messages, entries: page, bodies }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A length or place within a page, which is far below 4 GiB.
pub(super) fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
