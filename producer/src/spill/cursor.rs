//! How far the journal is sent, and which batch is in flight. The file has two slots that are
//! written in turn, so that one of them is always whole. It never grows, so that a full disk does
//! not keep the journal from being emptied.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rowmq_core::model::RowId;
use rowmq_core::store::lane::{LaneId, LaneKind};
use uuid::Uuid;

use super::format::VERSION;
use crate::lane::Position;

const MAGIC: &[u8; 6] = b"QSPCUR";

/// A slot is one sector of the disk, which is written whole or not at all. A checksum covers disks
/// that do not guarantee that.
const SLOT: usize = 512;

/// Where a slot's checksum is, behind everything else.
const SUM_AT: usize = 64;

/// How far the journal is sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Every record before this one is stored or put aside.
    pub(super) settled: u64,
    /// The batch that may be in flight.
    pub(super) intent: Option<Intent>,
}

/// A batch that is about to be sent: the records from the cursor on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Intent {
    pub(super) records: u64,
    /// The position of its lane before it.
    pub(super) position: Position,
}

/// The file.
#[derive(Debug)]
pub(super) struct CursorFile {
    file: File,
    generation: u64,
}

impl CursorFile {
    /// Opens a cursor's file, which may be new if `may_begin`. An error of kind `InvalidData` says
    /// in words why it is no cursor; one of kind `NotFound`, that nothing was ever written to it.
    pub(super) fn open(file: File, may_begin: bool) -> io::Result<(Self, Cursor)> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &file, &mut bytes)?;
        if bytes.iter().all(|byte| *byte == 0) {
            if !may_begin {
                return Err(io::Error::from(io::ErrorKind::NotFound));
            }
            // Reserve the room of both slots now.
            file.write_all_at(&[0; 2 * SLOT], 0)?;
            let mut new = Self { file, generation: 0 };
            new.write(Cursor::default())?;
            return Ok((new, Cursor::default()));
        }
        let slots = bytes.chunks(SLOT).map(read).collect::<Result<Vec<_>, _>>()?;
        match slots.into_iter().flatten().max_by_key(|(generation, _)| *generation) {
            Some((generation, cursor)) => Ok((Self { file, generation }, cursor)),
            None => Err(invalid("neither of its slots is whole".to_owned())),
        }
    }

    /// Writes the cursor; it is on the disk when this returns.
    pub(super) fn write(&mut self, cursor: Cursor) -> io::Result<()> {
        let generation = self.generation + 1;
        let slot = generation % 2 * SLOT as u64;
        self.file.write_all_at(&bytes(generation, cursor), slot)?;
        self.file.sync_data()?;
        // Only now: after a failure, the next try must not overwrite the slot that is whole.
        self.generation = generation;
        Ok(())
    }
}

#[cfg(test)]
impl CursorFile {
    /// Writes to another file from now on; returns the earlier one.
    pub(super) fn replaced(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }
}

fn bytes(generation: u64, cursor: Cursor) -> Vec<u8> {
    let intent = cursor.intent.map(|Intent { records, position: Position { id, seq } }| {
        (records, id.row.0, id.name, seq)
    });
    let (records, row, name, seq) = intent.unwrap_or((0, 0, Uuid::nil(), 0));
    let numbers = [generation, cursor.settled, records, row].map(u64::to_le_bytes);
    let mut bytes =
        [&MAGIC[..], &VERSION.to_le_bytes(), numbers.as_flattened(), name.as_bytes()].concat();
    bytes.extend(seq.to_le_bytes());
    let sum = crc32fast::hash(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// The content of a slot; `None` if it was never written, or not completely.
fn read(slot: &[u8]) -> io::Result<Option<(u64, Cursor)>> {
    let Some(version) = slot.strip_prefix(MAGIC).and_then(<[u8]>::first_chunk) else {
        return Ok(None);
    };
    let version = u16::from_le_bytes(*version);
    if version != VERSION {
        return Err(invalid(format!("version {version} of this program has written it")));
    }
    Ok(parse(slot))
}

fn parse(slot: &[u8]) -> Option<(u64, Cursor)> {
    let number = |at: usize| slot.get(at..)?.first_chunk().map(|n| u64::from_le_bytes(*n));
    let sum = u32::from_le_bytes(*slot.get(SUM_AT..)?.first_chunk()?);
    if crc32fast::hash(slot.get(..SUM_AT)?) != sum {
        return None;
    }
    let name = Uuid::from_slice(slot.get(40..56)?).ok()?;
    let (records, row, seq) = (number(24)?, RowId(number(32)?), number(56)?);
    let id = LaneId { row, name, kind: LaneKind::Durable };
    let intent = (records > 0).then_some(Intent { records, position: Position { id, seq } });
    Some((number(8)?, Cursor { settled: number(16)?, intent }))
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cursor(settled: u64, records: u64) -> Cursor {
        let id = LaneId { row: RowId(3), name: Uuid::from_u128(5), kind: LaneKind::Durable };
        Cursor { settled, intent: Some(Intent { records, position: Position { id, seq: 9 } }) }
    }

    #[test]
    fn what_was_written_last_is_read_and_what_was_cut_short_is_not() {
        let file = tempfile::tempfile().expect("a file");
        let open = || CursorFile::open(file.try_clone().expect("a file"), true);
        let rewind = || io::Seek::seek(&mut &file, io::SeekFrom::Start(0)).expect("rewound");
        let (mut cursors, first) = open().expect("new");
        assert_eq!(first, Cursor::default());
        for settled in 1..5 {
            cursors.write(cursor(settled, 2)).expect("written");
            rewind();
            let (again, read) = open().expect("read");
            assert_eq!((read, again.generation), (cursor(settled, 2), settled + 1));
        }
        // A half-written slot leaves the content of the other one in force.
        let slot = (cursors.generation + 1) % 2 * SLOT as u64;
        let next = bytes(cursors.generation + 1, cursor(5, 2));
        for len in 0..next.len() {
            file.write_all_at(&next[..len], slot).expect("written");
            rewind();
            let read = open().expect("one slot is whole").1;
            assert_eq!(read, cursor(4, 2), "{len}");
        }
        file.write_all_at(&[0xff], 10).expect("written");
        file.write_all_at(&[0xff], SLOT as u64 + 10).expect("written");
        rewind();
        assert_eq!(open().expect_err("no slot").kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_write_that_fails_leaves_what_was_written_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cursor");
        std::fs::write(&path, "").expect("made");
        let open = |write| std::fs::OpenOptions::new().read(true).write(write).open(&path);
        let opened = CursorFile::open(open(true).expect("opened"), true);
        let (mut cursors, _) = opened.expect("new");
        cursors.write(cursor(1, 2)).expect("written");
        // Writes fail for a while.
        let whole = std::mem::replace(&mut cursors.file, open(false).expect("opened"));
        cursors.write(cursor(2, 2)).expect_err("not to be written");
        cursors.file = whole;
        let slot = (cursors.generation + 1) % 2 * SLOT as u64;
        // The next write is cut short by a crash.
        cursors.file.write_all_at(&[0; SLOT], slot).expect("written");
        let read = CursorFile::open(open(true).expect("opened"), true).expect("one is whole").1;
        assert_eq!(read, cursor(1, 2));
    }

    #[test]
    fn another_version_is_not_read() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(b"QSPCUR\x02\x00", 0).expect("written");
        let error = CursorFile::open(file, true).expect_err("another version");
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}
