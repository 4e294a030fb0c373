//! The bytes of a segment: a header, then records, each with its length and a checksum.

use std::io;
use std::path::Path;

/// The version of everything in a spill directory.
pub(super) const VERSION: u16 = 1;

/// What a segment begins with, followed by its version and the number of its first record.
const MAGIC: &[u8; 6] = b"QSPILL";

/// Bytes before the first record.
pub(super) const HEADER: u64 = 16;

/// What a record begins with, so that records behind damage can be found.
const MARK: [u8; 4] = *b"rec\n";

/// Bytes of a record before its payload: mark, length, checksum.
pub(super) const FRAME: usize = 12;

/// The header of a segment whose first record has this number.
pub(super) fn header(first: u64) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &first.to_le_bytes()].concat()
}

/// Appends a record to `out`. Its number goes into the checksum, so that a record from another
/// place is not accepted here. Fails for a record of 4 GiB or more.
pub(super) fn put(out: &mut Vec<u8>, number: u64, payload: &[u8]) -> io::Result<()> {
    let len = u32::try_from(payload.len()).map_err(io::Error::other)?;
    out.extend(MARK);
    out.extend(len.to_le_bytes());
    out.extend(sum(number, payload).to_le_bytes());
    out.extend(payload);
    Ok(())
}

/// The length of the payload behind a record's frame; `None` if this is no frame.
pub(super) fn payload_len(frame: &[u8]) -> Option<usize> {
    let (mark, rest) = frame.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*rest.first_chunk()?);
    if *mark == MARK { usize::try_from(len).ok() } else { None }
}

/// The payload of record `number` at the start of `bytes`; `None` if it is cut short or damaged.
pub(super) fn payload(bytes: &[u8], number: u64) -> Option<&[u8]> {
    let len = payload_len(bytes)?;
    let expected = u32::from_le_bytes(*bytes.get(8..FRAME)?.first_chunk()?);
    let payload = bytes.get(FRAME..FRAME.checked_add(len)?)?;
    (sum(number, payload) == expected).then_some(payload)
}

fn sum(number: u64, payload: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_le_bytes());
    sum.update(payload);
    sum.finalize()
}

/// What a segment holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// Where its last whole record ends, in bytes.
    pub(super) len: u64,
    /// How many records precede that point.
    pub(super) records: u64,
    pub(super) end: End,
}

/// What follows the last whole record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Nothing,
    /// What a crash leaves of a record that was being written.
    Torn,
    /// Whole records: the bytes in between are damaged.
    Records,
}

/// Why a file is no segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoSegment {
    /// A crash during its creation has left nothing in it.
    Empty,
    /// Another version of this program wrote it.
    Version(u16),
    Foreign,
}

/// Scans the bytes of the segment whose first record has the number `first`, and passes each
/// record's payload to `see`.
pub(super) fn scan(
    bytes: &[u8],
    first: u64,
    mut see: impl FnMut(&[u8]),
) -> Result<Scan, NoSegment> {
    let expected = header(first);
    let Some(found) = bytes.get(..expected.len()) else { return Err(NoSegment::Empty) };
    if found != expected {
        return Err(match found {
            _ if bytes.iter().all(|byte| *byte == 0) => NoSegment::Empty,
            [b'Q', b'S', b'P', b'I', b'L', b'L', low, high, ..]
                if u16::from_le_bytes([*low, *high]) != VERSION =>
            {
                NoSegment::Version(u16::from_le_bytes([*low, *high]))
            }
            _ => NoSegment::Foreign,
        });
    }
    let (mut at, mut number) = (expected.len(), first);
    while let Some(payload) = payload(&bytes[at..], number) {
        see(payload);
        at += FRAME + payload.len();
        number += 1;
    }
    let end = match &bytes[at..] {
        [] => End::Nothing,
        rest if holds_record(rest, number) => End::Records,
        _ => End::Torn,
    };
    Ok(Scan { len: at as u64, records: number - first, end })
}

/// Whether a whole record, numbered `number` or later, begins anywhere behind the first byte.
fn holds_record(bytes: &[u8], number: u64) -> bool {
    // A record has at least one byte of payload, so there can be no more than this many.
    let most = number.saturating_add((bytes.len() / FRAME) as u64);
    let begins = |at: &usize| bytes[*at..].starts_with(&MARK);
    (1..bytes.len()).filter(begins).any(|at| {
        let len = payload_len(&bytes[at..]).unwrap_or(0);
        let fits = at + FRAME + len <= bytes.len();
        // The numbers behind damage are unknown: only near ones are tried.
        fits && (number..most.min(number + 4096)).any(|n| payload(&bytes[at..], n).is_some())
    })
}

/// The number of the first record of a segment, from its name.
pub(super) fn first_of(path: &Path) -> Option<u64> {
    if path.extension()? != "spill" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

/// The name of the segment whose first record has this number.
pub(super) fn name_of(first: u64) -> String {
    format!("{first:020}.spill")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(payloads: &[&[u8]]) -> Vec<u8> {
        let mut bytes = header(7);
        for (number, payload) in (7..).zip(payloads) {
            put(&mut bytes, number, payload).expect("short");
        }
        bytes
    }

    fn seen(bytes: &[u8]) -> (Vec<Vec<u8>>, Result<End, NoSegment>) {
        let mut seen = Vec::new();
        let scan = scan(bytes, 7, |payload| seen.push(payload.to_vec()));
        (seen, scan.map(|scan| scan.end))
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        let bytes = segment(&[b"a", b"", &[0; 3000]]);
        let (payloads, end) = seen(&bytes);
        assert_eq!((payloads.len(), end), (3, Ok(End::Nothing)));
        assert_eq!(first_of(Path::new(&name_of(7))), Some(7));
        assert_eq!(first_of(Path::new("lock")), None);
    }

    #[test]
    fn a_record_cut_short_anywhere_is_a_torn_tail() {
        let bytes = segment(&[b"first", b"second"]);
        let whole = segment(&[b"first"]).len();
        for len in whole + 1..bytes.len() {
            let (payloads, end) = seen(&bytes[..len]);
            assert_eq!((payloads.len(), end), (1, Ok(End::Torn)), "{len}");
        }
        // A file system may have allocated the room without writing to it.
        let mut zeros = segment(&[b"first"]);
        zeros.resize(whole + 5000, 0);
        assert_eq!(seen(&zeros).1, Ok(End::Torn));
    }

    #[test]
    fn any_changed_byte_before_whole_records_is_damage() {
        let bytes = segment(&[b"first", b"second", b"third"]);
        for at in 16..bytes.len() - segment(&[b"third"]).len() + 16 {
            let mut changed = bytes.clone();
            changed[at] ^= 0x20;
            let (payloads, end) = seen(&changed);
            assert!(payloads.len() < 2, "{at}");
            assert_eq!(end, Ok(End::Records), "{at}");
        }
    }

    #[test]
    fn what_is_no_segment_of_this_version_says_so() {
        let mut other = segment(&[b"a"]);
        other[6] = 9;
        assert_eq!(seen(&other).1, Err(NoSegment::Version(9)));
        assert_eq!(seen(b"#!/bin/sh\nexit 0\n\n").1, Err(NoSegment::Foreign));
        assert_eq!(seen(b"QSP").1, Err(NoSegment::Empty));
        assert_eq!(seen(&[0; 64]).1, Err(NoSegment::Empty));
    }
}
