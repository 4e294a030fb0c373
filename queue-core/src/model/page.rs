//! Pages: several messages in one row of a stream's log.
//!
//! Rows, not bytes, are what the server spends its time on (docs/decisions/pages.md), so a batch of
//! small messages is stored as one row. A page has two parts. Its *entries* hold what searches and
//! filters need of each message, in entries of one length, so that one SQL statement can read them
//! as a set. Its *bodies* hold the bodies, one behind the other.
//!
//! All numbers are big-endian:
//!
//! | entries, from byte | bytes | what |
//! |---|---|---|
//! | 0 | 2 | the version of this format, 1 |
//! | 2 | 2 | how many messages it has, n |
//! | 4 | 4 | the length of the bodies |
//! | 8 | 4 | the CRC-32 of the bodies |
//! | 12 | 4 | the CRC-32 of the entries without these four bytes |
//! | 16 | 52 n | an entry for each message, below |
//! | 16 + 52 n | | keys, biz ids and headers |
//!
//! A later version of the format keeps the version and the checksum of the entries in their places,
//! so that this program can tell such a page from a damaged one.
//!
//! | entry, from byte | bytes | what |
//! |---|---|---|
//! | 0 | 16 | message id |
//! | 16 | 8 | microseconds between the enqueue of the page's earliest message and of this one |
//! | 24 | 8 | the expiry in microseconds, see the flags |
//! | 32 | 4 | where the body begins in the bodies |
//! | 36 | 4 | the length of the body |
//! | 40 | 4 | where the key, the biz id and the headers begin in the entries, in this order |
//! | 44 | 4 | the length of the headers |
//! | 48 | 1 | the length of the key |
//! | 49 | 1 | the length of the biz id |
//! | 50 | 1 | reserved, 0 |
//! | 51 | 1 | flags |
//!
//! | flag | what |
//! |---|---|
//! | 1 | it has a key |
//! | 2 | it has a biz id |
//! | 4 | it has headers |
//! | 8 | it expires so long after the enqueue of the page's earliest message |
//! | 16 | it expires so long after the beginning of 1970 |

mod writer;

use std::time::Duration;

use chrono::DateTime;

pub(crate) use self::writer::PageWriter;
use crate::model::{Moment, MsgId, Position};

/// The version of the format.
const VERSION: u16 = 1;

/// The length of the head of the entries.
pub(crate) const HEAD: usize = 16;

/// The length of an entry.
pub(crate) const ENTRY: usize = 52;

/// Where the checksum of the entries begins.
const CHECKSUM: usize = 12;

/// The longest span of time, two centuries in microseconds: a longer one would overflow a date.
pub(crate) const LONGEST: u64 = 200 * 366 * 86_400 * 1_000_000;

const HAS_KEY: u8 = 1;
const HAS_BIZ_ID: u8 = 2;
const HAS_HEADERS: u8 = 4;
const EXPIRES_AFTER: u8 = 8;
const EXPIRES_AT: u8 = 16;

/// A message as a page holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageEntry<'p> {
    /// The message id.
    pub(crate) msg_id: MsgId,
    /// How long after the page's earliest message it was enqueued.
    pub(crate) enqueued_after: Duration,
    /// When it expires; a time span counts from the enqueue of the page's earliest message.
    pub(crate) expires: Option<Moment>,
    /// The ordering key, at most 255 bytes.
    pub(crate) key: Option<&'p [u8]>,
    /// The business id, at most 255 bytes.
    pub(crate) biz_id: Option<&'p [u8]>,
    /// The headers in their stored form.
    pub(crate) headers: Option<&'p [u8]>,
    /// The length of the body.
    pub(crate) body_bytes: usize,
    /// The body; empty if the page was read without bodies.
    pub(crate) body: &'p [u8],
}

/// A page of a stream's log that a newer release has written. It is not damaged: programs of that
/// release can read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The page of the log at {}:{} has the format {version}, and this program reads the format {VERSION}: upgrade it; until then it leaves the partition to newer programs.",
    at.partition, at.offset
)]
pub struct NewerPage {
    /// The position of a message in it.
    pub at: Position,
    /// The version of its format.
    pub version: u16,
}

/// Why a page cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Damage {
    /// It was written by a newer release.
    #[error("its format has the version {0}, and this program reads version {VERSION}")]
    Version(u16),
    /// It is shorter or longer than it says.
    #[error("it does not have the length that it says")]
    Length,
    /// A time in it is none.
    #[error("a time in it is out of range")]
    Time,
    /// A checksum does not match.
    #[error("its checksum does not match: bytes of it have changed")]
    Checksum,
}

/// A page as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// How many messages it has.
    pub(crate) messages: u16,
    /// Its entries.
    pub(crate) entries: Vec<u8>,
    /// Its bodies.
    pub(crate) bodies: Vec<u8>,
}

impl PageEntry<'_> {
    fn tail_bytes(&self) -> usize {
        [self.key, self.biz_id, self.headers].into_iter().flatten().map(<[u8]>::len).sum()
    }
}

impl Page {
    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() + self.bodies.len()
    }
}

/// Reads the messages of a page in order. Without `bodies`, every body is empty.
///
/// # Errors
/// What is wrong with the page; nothing of it can be trusted then.
pub(crate) fn read_page<'p>(
    entries: &'p [u8],
    bodies: Option<&'p [u8]>,
) -> Result<Vec<PageEntry<'p>>, Damage> {
    // The checksum first: a changed bit must not make a page look newer.
    if u32::from_be_bytes(array(entries, CHECKSUM)?) != checksum(entries) {
        return Err(Damage::Checksum);
    }
    let version = u16::from_be_bytes(array(entries, 0)?);
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    let messages = usize::from(u16::from_be_bytes(array(entries, 2)?));
    if let Some(bodies) = bodies {
        if number(entries, 4)? != bodies.len() {
            return Err(Damage::Length);
        }
        if u32::from_be_bytes(array(entries, 8)?) != crc32fast::hash(bodies) {
            return Err(Damage::Checksum);
        }
    }
    let table = entries.get(HEAD..HEAD + ENTRY * messages).ok_or(Damage::Length)?;
    let found = table.chunks_exact(ENTRY).map(|entry| read_entry(entry, entries, bodies));
    let found = found.collect::<Result<Vec<_>, _>>()?;
    // No two messages share a byte, so what is read takes no more room than the page.
    let tails: usize = found.iter().map(PageEntry::tail_bytes).sum();
    let read: usize = found.iter().map(|entry| entry.body.len()).sum();
    let fits = tails <= entries.len() && read <= bodies.map_or(0, <[u8]>::len);
    if fits { Ok(found) } else { Err(Damage::Length) }
}

fn read_entry<'p>(
    entry: &[u8],
    entries: &'p [u8],
    bodies: Option<&'p [u8]>,
) -> Result<PageEntry<'p>, Damage> {
    let flags = entry[51];
    let has = |flag: u8| flags & flag > 0;
    let expires = u64::from_be_bytes(array(entry, 24)?);
    let enqueued_after = u64::from_be_bytes(array(entry, 16)?);
    if enqueued_after > LONGEST || has(EXPIRES_AFTER) && expires > LONGEST {
        return Err(Damage::Time);
    }
    let expires = if has(EXPIRES_AFTER) {
        Some(Moment::After(Duration::from_micros(expires)))
    } else if has(EXPIRES_AT) {
        let at = i64::try_from(expires).ok().and_then(DateTime::from_timestamp_micros);
        Some(Moment::At(at.ok_or(Damage::Time)?))
    } else {
        None
    };
    let mut tail = entries.get(number(entry, 40)?..).ok_or(Damage::Length)?;
    let mut part = |length: usize, flag: u8| {
        let (part, rest) = tail.split_at_checked(length).ok_or(Damage::Length)?;
        tail = rest;
        Ok(has(flag).then_some(part))
    };
    let key = part(entry[48].into(), HAS_KEY)?;
    let biz_id = part(entry[49].into(), HAS_BIZ_ID)?;
    let headers = part(number(entry, 44)?, HAS_HEADERS)?;
    let (at, length) = (number(entry, 32)?, number(entry, 36)?);
    let body = match bodies {
        Some(bodies) => bodies.get(at..at.saturating_add(length)).ok_or(Damage::Length)?,
        None => &[],
    };
    Ok(PageEntry {
        msg_id: entry.get(..16).and_then(MsgId::from_bytes).ok_or(Damage::Length)?,
        enqueued_after: Duration::from_micros(enqueued_after),
        expires,
        key,
        biz_id,
        headers,
        body_bytes: length,
        body,
    })
}

/// The checksum of the entries without the bytes of the checksum itself.
fn checksum(entries: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(entries.get(..CHECKSUM).unwrap_or_default());
    hasher.update(entries.get(HEAD..).unwrap_or_default());
    hasher.finalize()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damage> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk::<N>);
    found.copied().ok_or(Damage::Length)
}

fn number(bytes: &[u8], at: usize) -> Result<usize, Damage> {
    Ok(u32::from_be_bytes(array(bytes, at)?) as usize)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::writer::length;
    use super::*;

    fn messages() -> Vec<PageEntry<'static>> {
        let first = PageEntry {
            msg_id: MsgId::new(),
            enqueued_after: Duration::ZERO,
            expires: None,
            key: None,
            biz_id: None,
            headers: None,
            body_bytes: 5,
            body: b"first",
        };
        let second = PageEntry {
            msg_id: MsgId::new(),
            enqueued_after: Duration::from_micros(7),
            expires: Some(Moment::After(Duration::from_secs(60))),
            key: Some(b"key"),
            biz_id: Some(b""),
            headers: Some(br#"{"a":"b"}"#),
            body_bytes: 0,
            body: b"",
        };
        let at = DateTime::from_timestamp_micros(1_800_000_000_000_001).unwrap();
        let expires = Some(Moment::At(at));
        let third = PageEntry {
            expires,
            biz_id: Some(&[0xff; 255]),
            body_bytes: 300,
            body: &[0; 300],
            ..first
        };
        vec![first, second, third]
    }

    fn page(messages: &[PageEntry<'_>]) -> Page {
        let mut writer = PageWriter::default();
        for message in messages {
            writer.push(message);
        }
        writer.finish()
    }

    #[test]
    fn what_was_written_is_read() {
        let messages = messages();
        let page = page(&messages);
        assert_eq!(page.messages, 3);
        assert_eq!(read_page(&page.entries, Some(&page.bodies)).unwrap(), messages);
        let without: Vec<_> = messages.iter().map(|it| PageEntry { body: b"", ..*it }).collect();
        assert_eq!(read_page(&page.entries, None).unwrap(), without);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let Page { entries, bodies, .. } = page(&messages());
        for at in 0..entries.len() + bodies.len() {
            for bit in 0..8 {
                let (mut entries, mut bodies) = (entries.clone(), bodies.clone());
                match at.checked_sub(entries.len()) {
                    Some(at) => bodies[at] ^= 1 << bit,
                    None => entries[at] ^= 1 << bit,
                }
                assert!(read_page(&entries, Some(&bodies)).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_page_that_ends_too_early_is_noticed() {
        let Page { entries, bodies, .. } = page(&messages());
        for end in 0..entries.len() {
            assert!(read_page(&entries[..end], Some(&bodies)).is_err(), "{end}");
        }
        for end in 0..bodies.len() {
            assert!(read_page(&entries, Some(&bodies[..end])).is_err(), "{end}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut entries = page(&messages()).entries;
        entries[1] = 2;
        assert_eq!(read_page(&entries, None), Err(Damage::Checksum), "a bit has changed");
        let sum = checksum(&entries).to_be_bytes();
        entries[CHECKSUM..HEAD].copy_from_slice(&sum);
        assert_eq!(read_page(&entries, None), Err(Damage::Version(2)));
    }

    /// Changes pages at random and corrects their checksums, so that every length in them is put to
    /// the test: `PAGE_FUZZ_SECONDS` says for how long, one by default.
    #[test]
    fn no_page_makes_the_reader_panic_or_take_more_room_than_the_page() {
        let seconds = std::env::var("PAGE_FUZZ_SECONDS").map_or(1, |text| text.parse().unwrap());
        let seed = rand::random();
        let mut rng = StdRng::seed_from_u64(seed);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            let Page { mut entries, mut bodies, .. } = page(&messages());
            for _ in 0..rng.random_range(1..6) {
                match rng.random_range(0..5) {
                    0 => entries.truncate(rng.random_range(0..=entries.len())),
                    1 => bodies.truncate(rng.random_range(0..=bodies.len())),
                    2 => entries.extend_from_within(rng.random_range(0..=entries.len())..),
                    _ if entries.is_empty() => {}
                    _ => {
                        let at = rng.random_range(0..entries.len());
                        entries[at] = rng.random();
                    }
                }
            }
            if entries.len() >= HEAD {
                entries[4..8].copy_from_slice(&length(&bodies).to_be_bytes());
                entries[8..12].copy_from_slice(&crc32fast::hash(&bodies).to_be_bytes());
                let sum = checksum(&entries).to_be_bytes();
                entries[CHECKSUM..HEAD].copy_from_slice(&sum);
            }
            for bodies in [None, Some(bodies.as_slice())] {
                let read = read_page(&entries, bodies).unwrap_or_default();
                let room: usize = read.iter().map(|it| it.tail_bytes() + it.body.len()).sum();
                assert!(room <= entries.len() + bodies.map_or(0, <[u8]>::len), "seed {seed}");
            }
        }
    }
}
