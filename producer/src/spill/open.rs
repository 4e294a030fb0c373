//! Opens the journal of a directory, in any state in which a crash or a disk has left it.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::cursor::{Cursor, CursorFile, Intent};
use super::format::{self, End, FRAME, HEADER, NoSegment, Scan};
use super::journal::{Journal, RecordPosition, Segment, open_file, sync_dir};
use super::record;

impl Journal {
    /// Opens the directory, creates it if it does not exist, and cuts off what a crash has left
    /// half written. The error says in words what is wrong, and the fix.
    pub(super) fn open(dir: &Path, limit: u64) -> Result<Self, String> {
        let writable = |error: io::Error| {
            format!("{error}; name a directory that this process can make or write to")
        };
        make(dir).map_err(writable)?;
        let lock = open_file(&dir.join("lock")).map_err(writable)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                "another producer is using it; give each producer a directory of its own".to_owned()
            }
            TryLockError::Error(error) => writable(error),
        })?;
        let segments = segments_of(dir).map_err(unreadable)?;
        let cursors = open_file(&dir.join("cursor"));
        // A cursor is on the disk before the first segment is made.
        let cursors = cursors.and_then(|file| CursorFile::open(file, segments.is_empty()));
        let (cursors, cursor) = cursors.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => format!(
                "its file cursor is not usable, {error}; use the version that wrote it, or another directory"
            ),
            io::ErrorKind::NotFound => "its file cursor is gone, so which of its messages are sent already is not known; put that file back, or move the segments to another place".to_owned(),
            _ => writable(error),
        })?;
        let mut journal = Self {
            dir: dir.to_owned(),
            _lock: lock,
            limit,
            segments: VecDeque::new(),
            next: cursor.settled,
            cursors,
            cursor,
            place: RecordPosition { number: cursor.settled, segment: 0, at: HEADER },
            messages: 0,
            broken: None,
        };
        for (first, is_last) in segments {
            journal.take(first, is_last)?;
        }
        journal.shorten_intent().map_err(writable)?;
        journal.remove_sent();
        sync_dir(dir).map_err(writable)?;
        Ok(journal)
    }

    /// Shortens the intent to the records that are still there: the numbers of the others will be
    /// reused for messages that were not in that batch.
    fn shorten_intent(&mut self) -> io::Result<()> {
        let Some(intent) = self.cursor.intent else { return Ok(()) };
        let records = intent.records.min(self.next - self.cursor.settled);
        if records == intent.records {
            return Ok(());
        }
        let intent = (records > 0).then_some(Intent { records, ..intent });
        let cursor = Cursor { intent, ..self.cursor };
        self.cursors.write(cursor)?;
        self.cursor = cursor;
        Ok(())
    }

    /// Adds a segment of the directory behind those before it.
    fn take(&mut self, first: u64, is_last: bool) -> Result<(), String> {
        let (path, name) = (self.path(first), format::name_of(first));
        let bytes = fs::read(&path).map_err(unreadable)?;
        let settled = self.cursor.settled;
        let mut place = RecordPosition { number: first, segment: first, at: HEADER };
        let (mut start, mut messages, mut unknown) = (place, 0, None);
        let scan = format::scan(&bytes, first, |payload| {
            match record::messages_in(payload) {
                Ok(n) if place.number >= settled => messages += n,
                Ok(_) => {}
                Err(why) => unknown = Some(why),
            }
            place.number += 1;
            place.at += (FRAME + payload.len()) as u64;
            if place.number <= settled {
                start = place;
            }
        });
        if let Some(why) = unknown {
            return Err(format!(
                "{name} holds a record that this version does not know ({why}); use the version that wrote it, or another directory"
            ));
        }
        let Scan { len, records, end } = match scan {
            Ok(scan) => scan,
            // Its room was allocated, but it never held a record.
            Err(NoSegment::Empty) if is_last => return fs::remove_file(&path).map_err(unreadable),
            Err(why) => return Err(no_segment(&name, &why)),
        };
        if end != End::Nothing && !(end == End::Torn && is_last) {
            return Err(self.keep_damaged(first, len).unwrap_or_else(unreadable));
        }
        let file = open_file(&path).map_err(unreadable)?;
        if end == End::Torn {
            file.set_len(len).and_then(|()| file.sync_all()).map_err(unreadable)?;
        }
        if first > self.next {
            let (from, to) = (self.next, first - 1);
            tracing::error!(
                spill.directory = %self.dir.display(),
                spill.from = from,
                spill.to = to,
                "Records of the spill journal are missing, and with them their messages: a file was removed, or a damaged one was kept aside."
            );
        }
        if self.place.number >= self.next && first + records >= settled {
            self.place = start;
        }
        self.next = (first + records).max(self.next);
        self.messages += messages;
        self.segments.push_back(Segment { first, len, file });
        Ok(())
    }

    /// Keeps a damaged segment for an operator, so that the next start continues with the records
    /// before the damage and the segments behind. Returns what to report about it.
    fn keep_damaged(&self, first: u64, good: u64) -> io::Result<String> {
        let name = format::name_of(first);
        let kept = format!("damaged-{name}");
        fs::copy(self.path(first), self.dir.join(&kept))?;
        open_file(&self.dir.join(&kept))?.sync_all()?;
        sync_dir(&self.dir)?;
        let segment = open_file(&self.path(first))?;
        segment.set_len(good)?;
        segment.sync_all()?;
        Ok(format!(
            "{name} is damaged from byte {good} on, so all of it is kept as {kept} for you to look into; start again to go on without the records from there to its end"
        ))
    }
}

fn make(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(parent),
        _ => sync_dir(Path::new(".")),
    }
}

/// The numbers of the first records of the segments, in order, each with whether it is the last.
fn segments_of(dir: &Path) -> io::Result<Vec<(u64, bool)>> {
    let mut firsts = Vec::new();
    for entry in fs::read_dir(dir)? {
        firsts.extend(format::first_of(&entry?.path()));
    }
    firsts.sort_unstable();
    let last = firsts.last().copied();
    Ok(firsts.into_iter().map(|first| (first, Some(first) == last)).collect())
}

fn no_segment(name: &str, why: &NoSegment) -> String {
    match why {
        NoSegment::Version(version) => format!(
            "version {version} of the journal's format is in {name}, and this program knows version {}; let the program that wrote it send it, or use another directory",
            format::VERSION
        ),
        NoSegment::Empty | NoSegment::Foreign => {
            format!(
                "{name} does not begin as a segment of a journal does; move it to another place"
            )
        }
    }
}

fn unreadable(error: io::Error) -> String {
    format!("{error}; its files must be readable, so mend that and start again")
}
