use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rowmq_core::TopicName;
use rowmq_core::model::RowId;
use rowmq_core::store::lane::{LaneId, LaneKind};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Records which import a file belongs to. The progress is not in the journal but in the import's
/// lane, where it is committed with the messages: no crash can separate the two, and a failover
/// that loses one loses the other.
pub(super) struct Journal {
    pub(super) path: PathBuf,
    pub(super) begun: Option<Begun>,
    file: File,
}

/// The journal's line, on the disk before anything is stored: after a crash, either it is whole or
/// nothing is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begun {
    pub(super) messages: u64,
    /// The checksum of the file.
    pub(super) content: u32,
    /// The topic of all messages, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) topic: Option<TopicName>,
    pub(super) lane: LaneName,
}

/// The lane: its row, and its name there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LaneName {
    row: u64,
    name: Uuid,
}

impl From<LaneId> for LaneName {
    fn from(lane: LaneId) -> Self {
        Self { row: lane.row.0, name: lane.name }
    }
}

impl From<LaneName> for LaneId {
    fn from(LaneName { row, name }: LaneName) -> Self {
        Self { row: RowId(row), name, kind: LaneKind::Durable }
    }
}

/// What the line begins with.
const BEGINNING: &[u8] = b"{\"messages\":";

impl Journal {
    /// Opens or creates the journal; it stays locked to this process.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let cannot = || {
            format!(
                "Cannot keep in {name} which import this is; say with --journal where it can be kept"
            )
        };
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.with_context(cannot)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(
                "{name} is in use by another import of the same file: wait for its end, or give this one a --journal of its own."
            ),
            Err(TryLockError::Error(error)) => return Err(error).with_context(cannot),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(cannot)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n');
        let foreign = || {
            format!("{name} is no journal of an import: say with --journal where one can be kept")
        };
        let common = bytes.len().min(BEGINNING.len());
        if bytes[..common] != BEGINNING[..common] {
            bail!("{}.", foreign());
        }
        let begun = lines.next().map(serde_json::from_slice).transpose().with_context(foreign)?;
        // If the line is torn, nothing was stored yet.
        file.set_len(whole as u64)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .with_context(cannot)?;
        Ok(Self { path: path.to_owned(), begun, file })
    }

    /// Records which import it is. Once this has returned, a crash does not lose it.
    pub(super) fn begin(&mut self, begun: Begun) -> anyhow::Result<()> {
        self.add(&begun)?;
        // Sync its name in the folder, too: without the file, the import would start again from the
        // beginning.
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .with_context(|| format!("Cannot keep {}", self.path.display()))?;
        self.begun = Some(begun);
        Ok(())
    }

    fn add(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_all())
            .with_context(|| format!("Cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Begun {
        let lane = LaneName { row: 7, name: Uuid::nil() };
        Begun { messages: 3, content: 9, topic: None, lane }
    }

    #[test]
    fn what_is_noted_is_there_again_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.import");
        let mut journal = Journal::open(&path).expect("opened");
        assert!(Journal::open(&path).err().expect("refused").to_string().contains("in use"));
        assert_eq!(journal.begun, None);
        journal.begin(begun()).expect("noted");
        drop(journal);
        let whole = std::fs::read(&path).expect("there");
        assert_eq!(Journal::open(&path).expect("opened").begun, Some(begun()));
        for end in 0..whole.len() - 1 {
            std::fs::write(&path, &whole[..end]).expect("written");
            assert_eq!(Journal::open(&path).expect("opened").begun, None);
        }
    }

    #[test]
    fn another_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let json = ["{\"body\":\"x\"}\n", "{\"body\":\"x\"}", "{\"m\":1}"];
        for content in ["my notes", "my notes\n"].into_iter().chain(json) {
            let path = folder.path().join("notes");
            std::fs::write(&path, content).expect("written");
            let error = Journal::open(&path).err().expect("refused").to_string();
            assert!(error.contains("--journal"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), content);
        }
    }
}
