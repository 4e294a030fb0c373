//! The journal on the disk: segments that are only appended to, and a cursor. Everything here
//! blocks; it is used on the journal's own thread.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::cursor::{Cursor, CursorFile, Intent};
use super::format::{self, FRAME, HEADER};
use super::record::Record;

/// A new segment begins at this size, or at a quarter of the limit if that is less, because room is
/// freed segment by segment.
const SEGMENT: u64 = 16 << 20;

/// The most messages of a batch that is sent from the journal: a transaction of some 5 ms.
const BATCH_MESSAGES: usize = 500;

/// The most bytes of such a batch, unless a single record is larger.
const BATCH_BYTES: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) dir: PathBuf,
    /// While it is open, no other process takes the directory.
    pub(super) _lock: File,
    pub(super) limit: u64,
    /// Oldest first. Records are appended to the last.
    pub(super) segments: VecDeque<Segment>,
    /// The number of the next record.
    pub(super) next: u64,
    pub(super) cursors: CursorFile,
    /// The content of the cursor's file.
    pub(super) cursor: Cursor,
    /// The first record that is still to be sent.
    pub(super) place: RecordPosition,
    /// Messages still to be sent.
    pub(super) messages: u64,
    /// Why nothing more can be appended, if a failure has left the end of a segment unknown.
    pub(super) broken: Option<String>,
}

#[derive(Debug)]
pub(super) struct Segment {
    /// The number of its first record.
    pub(super) first: u64,
    /// The end of the last record that is on the disk.
    pub(super) len: u64,
    pub(super) file: File,
}

/// Where a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordPosition {
    pub(super) number: u64,
    /// Its segment, by the number of that segment's first record.
    pub(super) segment: u64,
    pub(super) at: u64,
}

/// The next batch of the journal.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) records: Vec<Record>,
    /// The number of the first of them.
    pub(super) first: u64,
    /// The lane through which an earlier process was sending it.
    pub(super) intent: Option<Intent>,
    /// Where each of its records ends.
    ends: Vec<RecordPosition>,
}

impl Group {
    /// Leaves only the first `n` records.
    pub(crate) fn truncate(&mut self, n: usize) {
        self.records.truncate(n);
        self.ends.truncate(n);
    }

    pub(crate) fn messages(&self) -> usize {
        self.records.iter().map(|record| record.messages.len()).sum()
    }

    /// The number after its last record.
    pub(super) fn end(&self) -> u64 {
        self.ends.last().map_or(self.first, |end| end.number)
    }
}

/// What is in the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JournalState {
    /// The number of the first record that is still to be sent.
    pub(crate) settled: u64,
    /// The number of the next record to come.
    pub(crate) next: u64,
    /// Messages still to be sent.
    pub(crate) messages: u64,
    /// Bytes on the disk.
    pub(crate) bytes: u64,
}

impl JournalState {
    pub(crate) fn is_empty(&self) -> bool {
        self.settled == self.next
    }
}

/// Why records are not in the journal.
#[derive(Debug, Clone)]
pub(crate) enum NotAppended {
    /// They would go beyond the limit.
    Full,
    /// The file system's error, in words.
    Failed(String),
}

/// Records that are about to be written together.
#[derive(Debug, Default)]
pub(super) struct Pending {
    buffer: Vec<u8>,
    records: u64,
    messages: u64,
}

impl Journal {
    /// What the journal holds.
    pub(super) fn state(&self) -> JournalState {
        JournalState {
            settled: self.place.number,
            next: self.next,
            messages: self.messages,
            bytes: self.bytes(),
        }
    }

    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// Adds records to the next write, if there is room for all of them, and returns the number of
    /// the first.
    pub(super) fn add(
        &self,
        pending: &mut Pending,
        records: &[Record],
    ) -> Result<u64, NotAppended> {
        if let Some(why) = &self.broken {
            return Err(NotAppended::Failed(why.clone()));
        }
        let first = self.next + pending.records;
        let mut bytes = Vec::new();
        for (number, record) in (first..).zip(records) {
            let payload = record.to_payload().map_err(NotAppended::Failed)?;
            format::put(&mut bytes, number, &payload).map_err(|error| failed(&error))?;
        }
        // Room for the header of a segment is always left.
        let more = HEADER + (pending.buffer.len() + bytes.len()) as u64;
        if self.bytes() + more > self.limit {
            return Err(NotAppended::Full);
        }
        pending.records += records.len() as u64;
        pending.messages += records.iter().map(|record| record.messages.len() as u64).sum::<u64>();
        pending.buffer.extend(bytes);
        Ok(first)
    }

    /// Writes what was added, with one sync for all of it. After an error, none of it is in the
    /// journal.
    pub(super) fn append(&mut self, pending: Pending) -> Result<(), NotAppended> {
        if pending.records == 0 {
            return Ok(());
        }
        let full = SEGMENT.min(self.limit / 4);
        if self.segments.back().is_none_or(|segment| segment.len >= full) {
            self.begin_segment().map_err(|error| failed(&error))?;
        }
        let Some(segment) = self.segments.back_mut() else { return Ok(()) };
        let written = segment.file.write_all_at(&pending.buffer, segment.len);
        if let Err(error) = written.and_then(|()| segment.file.sync_data()) {
            // A half-written record must not stay in front of the next one.
            let cut = segment.file.set_len(segment.len).and_then(|()| segment.file.sync_data());
            if let Err(again) = cut {
                let why = format!("{error}, and it could not be taken back: {again}");
                self.broken = Some(why.clone());
                return Err(NotAppended::Failed(why));
            }
            return Err(failed(&error));
        }
        segment.len += pending.buffer.len() as u64;
        self.next += pending.records;
        self.messages += pending.messages;
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        let path = self.path(self.next);
        let file = open_file(&path)?;
        let made = file
            .set_len(0)
            .and_then(|()| file.write_all_at(&format::header(self.next), 0))
            .and_then(|()| file.sync_all())
            .and_then(|()| sync_dir(&self.dir));
        if let Err(error) = made {
            fs::remove_file(&path)?;
            return Err(error);
        }
        if self.place.number == self.next {
            self.place = RecordPosition { number: self.next, segment: self.next, at: HEADER };
        }
        self.segments.push_back(Segment { first: self.next, len: HEADER, file });
        Ok(())
    }

    /// The next batch: records of one topic. The records of an intent come as the same batch again;
    /// a record in doubt comes alone. The error says in words what cannot be read.
    pub(super) fn peek(&self) -> Result<Group, String> {
        let end_of = |intent: &Intent| self.cursor.settled.saturating_add(intent.records);
        let intent = self.cursor.intent.filter(|intent| self.place.number < end_of(intent));
        let end = intent.as_ref().map_or(self.next, end_of).min(self.next);
        let mut place = self.place;
        let mut group =
            Group { records: Vec::new(), first: place.number, intent, ends: Vec::new() };
        let (mut messages, mut bytes) = (0, 0);
        while place.number < end {
            let (record, len) = self.read(place)?;
            (messages, bytes) = (messages + record.messages.len(), bytes + len);
            let fits = messages <= BATCH_MESSAGES && bytes <= BATCH_BYTES || intent.is_some();
            let alike = |last: &Record| {
                last.topic == record.topic && last.doubt.is_none() && record.doubt.is_none()
            };
            if group.records.last().is_some_and(|last| !fits || !alike(last)) {
                break;
            }
            place = self.behind(place, len);
            group.records.push(record);
            group.ends.push(place);
        }
        Ok(group)
    }

    /// The record at `place`, and how many bytes it takes.
    fn read(&self, place: RecordPosition) -> Result<(Record, usize), String> {
        let name = format::name_of(place.segment);
        let cannot = |why: String| format!("{name} cannot be read at byte {}: {why}", place.at);
        let segment = self.segments.iter().find(|segment| segment.first == place.segment);
        let file = &segment.ok_or_else(|| cannot("it is not there".to_owned()))?.file;
        let mut bytes = vec![0; FRAME];
        file.read_exact_at(&mut bytes, place.at).map_err(|error| cannot(error.to_string()))?;
        let changed = || cannot("the record has been changed".to_owned());
        let len = format::payload_len(&bytes).ok_or_else(changed)?;
        bytes.resize(FRAME + len, 0);
        let rest = place.at + FRAME as u64;
        file.read_exact_at(&mut bytes[FRAME..], rest).map_err(|error| cannot(error.to_string()))?;
        let payload = format::payload(&bytes, place.number).ok_or_else(changed)?;
        Ok((Record::from_payload(payload).map_err(cannot)?, bytes.len()))
    }

    /// The place after the record at `place`, which is `len` bytes long.
    fn behind(&self, place: RecordPosition, len: usize) -> RecordPosition {
        self.seated(RecordPosition { number: place.number + 1, at: place.at + len as u64, ..place })
    }

    /// The same place, moved to the next segment if this one ends there.
    fn seated(&self, next: RecordPosition) -> RecordPosition {
        let mut segments = self.segments.iter().skip_while(|s| s.first != next.segment);
        let ended = segments.next().is_some_and(|segment| next.at >= segment.len);
        match segments.next() {
            // Records may be missing before it.
            Some(Segment { first, .. }) if ended => {
                RecordPosition { number: *first, segment: *first, at: HEADER }
            }
            _ => next,
        }
    }

    /// Records which batch may be in flight from now on, and how far the journal is settled.
    pub(super) fn intend(&mut self, intent: Option<Intent>) -> io::Result<()> {
        let cursor = Cursor { settled: self.place.number, intent };
        self.cursors.write(cursor)?;
        self.cursor = cursor;
        self.remove_sent();
        Ok(())
    }

    /// Settles a group that is stored. While more records are left, the cursor is only written with
    /// the next intent; until then, the lane shows that the group is stored. After an error, the
    /// group is not settled.
    pub(super) fn settle(&mut self, group: &Group) -> io::Result<()> {
        self.go_behind(group, false)
    }

    /// Settles a group that was put aside. No lane shows that, so the cursor is written at once.
    /// After an error, the group is not settled.
    pub(super) fn settle_aside(&mut self, group: &Group) -> io::Result<()> {
        self.go_behind(group, true)
    }

    fn go_behind(&mut self, group: &Group, at_once: bool) -> io::Result<()> {
        let Some(end) = group.ends.last() else { return Ok(()) };
        let before = self.place;
        // A new segment may have begun at that place since the group was read.
        self.place = self.seated(*end);
        if (at_once || self.place.number == self.next)
            && let Err(error) = self.intend(None)
        {
            self.place = before;
            return Err(error);
        }
        self.messages = self.messages.saturating_sub(group.messages() as u64);
        Ok(())
    }

    /// Removes the segments of which every record is settled, on the disk too. One that cannot be
    /// removed only takes up room.
    pub(super) fn remove_sent(&mut self) {
        while let Some(Segment { first, .. }) = self.segments.front() {
            let end = self.segments.get(1).map_or(self.next, |segment| segment.first);
            if end > self.cursor.settled {
                break;
            }
            if let Err(error) = fs::remove_file(self.path(*first)) {
                tracing::warn!(
                    spill.directory = %self.dir.display(), %error,
                    "A part of the spill journal that is sent cannot be removed."
                );
                break;
            }
            self.segments.pop_front();
        }
    }

    pub(super) fn path(&self, first: u64) -> PathBuf {
        self.dir.join(format::name_of(first))
    }
}

fn failed(error: &io::Error) -> NotAppended {
    NotAppended::Failed(error.to_string())
}

/// Opens a file that only this user can read, and creates it if it does not exist.
pub(super) fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Makes the creation and removal of files in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
