use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write, stdout};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use rowmq_core::TopicName;
use serde::{Deserialize, Serialize};

use crate::export_position::ExportPosition;

/// The destination of the lines, and their number.
pub(super) struct Sink {
    out: Box<dyn Write>,
    file: Option<File>,
    messages: u64,
}

impl Sink {
    pub(super) fn stdout() -> Self {
        Self { out: Box::new(BufWriter::new(stdout())), file: None, messages: 0 }
    }

    /// Creates a new file.
    pub(super) fn create(path: &Path, topic: &TopicName) -> anyhow::Result<Self> {
        let name = path.display();
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => {
                lock(&file, path)?;
                Self::of(file, 0, path)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{name} is there already: `rowmq export {topic} --to {name} --resume` goes on behind what it has, or name another file."
            ),
            Err(error) => Err(error).with_context(|| format!("Cannot write {name}")),
        }
    }

    /// Opens the file of an export that was cut off, without a torn line at its end, and returns
    /// where its last message was; creates a file if there is none.
    pub(super) fn resume(
        path: &Path,
        topic: &TopicName,
    ) -> anyhow::Result<(Self, Option<ExportPosition>)> {
        let name = path.display();
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .with_context(|| format!("Cannot write {name}"))?;
        lock(&file, path)?;
        let whole = Whole::read(&file).with_context(|| format!("Cannot read {name}"))?;
        let place = match whole.last {
            None if !may_be_ours(&whole.torn) => bail!(
                "{name} is not what an export has written: name the file that was being written, or another one."
            ),
            None => None,
            Some(line) => Some(place(&line, topic).map_err(|why| {
                anyhow!(
                    "Line {} of {name} is none of an export of '{topic}', {why}: name the file that was being written.",
                    whole.lines
                )
            })?),
        };
        file.set_len(whole.bytes)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .with_context(|| format!("Cannot cut {name} behind its last whole line"))?;
        Ok((Self::of(file, whole.lines, path)?, place))
    }

    fn of(file: File, messages: u64, path: &Path) -> anyhow::Result<Self> {
        let out = file.try_clone().with_context(|| format!("Cannot write {}", path.display()))?;
        Ok(Self { out: Box::new(BufWriter::new(out)), file: Some(file), messages })
    }

    /// How many messages are written, those of earlier runs included.
    pub(super) fn messages(&self) -> u64 {
        self.messages
    }

    pub(super) fn write(&mut self, record: &impl Serialize) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.out, record).map_err(std::io::Error::from)?;
        self.out.write_all(b"\n")?;
        self.messages += 1;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.out.flush()?)
    }

    /// Flushes everything to the disk.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        self.out.flush()?;
        self.file.iter().try_for_each(File::sync_all)?;
        Ok(())
    }
}

/// Two exports that append to the same file would mix their lines.
fn lock(file: &File, path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            bail!("Another export is writing {name}: wait for its end, or name another file.")
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("Cannot lock {name}"))
        }
    }
}

/// The whole part of a file: all up to its last newline.
struct Whole {
    lines: u64,
    bytes: u64,
    last: Option<Vec<u8>>,
    /// The unfinished line after it.
    torn: Vec<u8>,
}

/// Whether an unfinished line may be the beginning of an export's first line.
fn may_be_ours(torn: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"msg_id\":\"";
    let common = torn.len().min(BEGINNING.len());
    torn[..common] == BEGINNING[..common]
}

impl Whole {
    fn read(file: &File) -> std::io::Result<Self> {
        let mut reader = BufReader::with_capacity(256 * 1024, file);
        let (mut lines, mut bytes, mut last) = (0, 0, None);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            lines += 1;
            bytes += line.len() as u64;
            std::mem::swap(last.get_or_insert_default(), &mut line);
            line.clear();
        }
        Ok(Self { lines, bytes, last, torn: line })
    }
}

/// Returns where the message of a line was, or why the line is not from an export of this topic.
fn place(line: &[u8], topic: &TopicName) -> Result<ExportPosition, String> {
    #[derive(Deserialize)]
    struct Line {
        topic: TopicName,
        place: String,
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if line.topic != *topic {
        return Err(format!("it is one of '{}'", line.topic));
    }
    line.place.parse()
}
