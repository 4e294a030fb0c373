//! Messages of the journal that cannot be sent from it. They go into a file for an operator, as
//! lines that `rowmq-producer send --ndjson` reads.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rowmq_core::model::{LineBytes, text_or_base64};
use rowmq_core::{MsgId, NewMessage, OnConflict, Priority, Unique};
use serde::{Deserialize, Serialize};

use super::journal::{Group, open_file, sync_dir};
use super::record::text;
use crate::error::SendError;

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    bytes: LineBytes<'a>,
    msg_id: MsgId,
    priority: Priority,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", with = "humantime_serde")]
    unique_for: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_conflict: Option<OnConflict>,
    #[serde(skip_serializing_if = "Option::is_none", with = "humantime_serde")]
    max_wait: Option<Duration>,
}

impl<'a> Line<'a> {
    fn of(message: &'a NewMessage) -> Self {
        let NewMessage {
            msg_id,
            body,
            priority,
            key,
            biz_id,
            headers,
            deliver,
            expires,
            unique,
            ..
        } = message;
        let bytes = LineBytes::new(key.as_deref(), biz_id.as_deref(), body);
        let options = unique.as_ref().map(Unique::options);
        let (unique, unique_base64) = text_or_base64(unique.as_ref().map(Unique::key));
        let (msg_id, priority, headers) = (*msg_id, *priority, &headers.0);
        let (deliver, expires) = (deliver.map(text), expires.map(text));
        Self {
            bytes,
            msg_id,
            priority,
            headers,
            deliver,
            expires,
            unique,
            unique_base64,
            unique_for: options.and_then(|(time, ..)| time),
            on_conflict: options.map(|(_, on_conflict, _)| on_conflict),
            max_wait: options.and_then(|(.., max_wait)| max_wait),
        }
    }
}

/// The file for messages of this topic that failed for this reason.
pub(super) fn file_of(dir: &Path, topic: &str, why: &SendError) -> PathBuf {
    dir.join(format!("{}-{topic}.ndjson", reason(why)))
}

/// The reason in one word, for the name of the file and the metric.
pub(super) fn reason(why: &SendError) -> &'static str {
    match why {
        SendError::Unknown { .. } => "unknown",
        _ => "refused",
    }
}

/// Writes the messages of the group into their file. They are on the disk when this returns, each
/// once, provided that `may_repeat` is set whenever an earlier try, of this process or an earlier
/// one, may have written some of them.
pub(super) fn keep(dir: &Path, group: &Group, why: &SendError, may_repeat: bool) -> io::Result<()> {
    let Some(record) = group.records.first() else { return Ok(()) };
    let path = file_of(dir, record.topic.as_str(), why);
    let mut file = open_file(&path)?;
    let tail = if may_repeat {
        Tail::of(&file, group.messages())?
    } else {
        Tail { end: file.metadata()?.len(), ids: VecDeque::new() }
    };
    let mut lines = Vec::new();
    for message in group.records.iter().flat_map(|record| &record.messages) {
        if !tail.ids.contains(&Some(message.msg_id)) {
            serde_json::to_writer(&mut lines, &Line::of(message))?;
            lines.push(b'\n');
        }
    }
    append(&mut file, tail.end, &lines)?;
    sync_dir(dir)?;
    tracing::error!(
        topic.name = %record.topic,
        spill.messages = group.messages(),
        spill.file = %path.display(),
        error = %why,
        "Messages of the spill journal cannot be sent from it and were put into a file: decide on them, and send what is to be sent with `rowmq-producer send --ndjson`."
    );
    Ok(())
}

/// The end of a file.
struct Tail {
    /// Where its last whole line ends.
    end: u64,
    /// The ids of its last lines; `None` for a line that a person has added.
    ids: VecDeque<Option<MsgId>>,
}

/// The part of a line that identifies it. A body may hold any text, so the line is parsed.
#[derive(Deserialize)]
struct Identity {
    msg_id: MsgId,
}

impl Tail {
    /// Reads the file, and keeps the ids of its last `lines` lines.
    fn of(file: &File, lines: usize) -> io::Result<Self> {
        let mut tail = Self { end: 0, ids: VecDeque::new() };
        let (mut reader, mut line) = (BufReader::new(file), Vec::new());
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line)?;
            // A line that a crash has cut short will be written again.
            if line.last() != Some(&b'\n') {
                return Ok(tail);
            }
            tail.end += read as u64;
            if tail.ids.len() == lines {
                tail.ids.pop_front();
            }
            let identity = serde_json::from_slice::<Identity>(&line);
            tail.ids.push_back(identity.ok().map(|line| line.msg_id));
        }
    }
}

fn append(file: &mut File, at: u64, lines: &[u8]) -> io::Result<()> {
    file.set_len(at)?;
    file.seek(SeekFrom::Start(at))?;
    file.write_all(lines)?;
    file.sync_all()
}
