use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use crc32fast::Hasher;
use rowmq_core::model::MessageLine;
use rowmq_core::{NewMessage, TopicName};

/// The most messages of one transaction, and the most bytes of their lines unless one is longer:
/// some 5 ms, and well within a lease even on a slow line.
const MESSAGES: u64 = 500;
const BYTES: u64 = 1024 * 1024;

/// The longest line: the largest packet that either server can be configured to accept.
const LINE_LIMIT: u64 = 1024 * 1024 * 1024;

/// A file, read once from end to end: every line is a message, and the plan says which lines are
/// stored together. The same file is always cut the same way, so that the number of stored pieces
/// says which ones are stored.
pub(super) struct Plan {
    file: File,
    name: String,
    pub(super) pieces: Vec<Piece>,
    pub(super) messages: u64,
    /// The checksum of the file's content and of how it is cut.
    pub(super) content: u32,
}

/// Lines whose messages are stored together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) topic: TopicName,
    pub(super) messages: u64,
    begin: u64,
    end: u64,
    first_line: u64,
}

impl Plan {
    /// Reads the file; `topic` overrides the topics that the lines name.
    pub(super) fn read(path: &Path, topic: Option<&TopicName>) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let cannot = || format!("Cannot read {name}");
        let file = File::open(path).with_context(cannot)?;
        if !file.metadata().with_context(cannot)?.is_file() {
            bail!(
                "{name} is no file that an import could go on with: `rowmq-producer send TOPIC --ndjson -` stores what comes by a pipe."
            );
        }
        let mut plan = Self { file, name, pieces: Vec::new(), messages: 0, content: 0 };
        plan.cut(topic)?;
        Ok(plan)
    }

    fn cut(&mut self, topic: Option<&TopicName>) -> anyhow::Result<()> {
        let mut reader = BufReader::with_capacity(256 * 1024, &self.file);
        let (mut content, mut line, mut end) = (Hasher::new(), Vec::new(), 0);
        for number in 1.. {
            line.clear();
            let read = reader.by_ref().take(LINE_LIMIT + 1).read_until(b'\n', &mut line);
            let len = read.with_context(|| format!("Cannot read {}", self.name))? as u64;
            if len == 0 {
                break;
            }
            if len > LINE_LIMIT {
                bail!(
                    "Line {number} of {} is longer than 1 GiB, which no server takes.",
                    self.name
                );
            }
            content.update(&line);
            let begin = end;
            end += len;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let topic = check(&line, topic).map_err(|why| {
                anyhow!("Line {number} of {} is no message, {why}; correct it: nothing of the file was imported by this run.", self.name)
            })?;
            self.messages += 1;
            let fits = |piece: &&mut Piece| {
                piece.topic == topic && piece.messages < MESSAGES && end - piece.begin <= BYTES
            };
            match self.pieces.last_mut().filter(fits) {
                Some(piece) => (piece.messages, piece.end) = (piece.messages + 1, end),
                None => {
                    content.update(&begin.to_le_bytes());
                    let piece = Piece { topic, messages: 1, begin, end, first_line: number };
                    self.pieces.push(piece);
                }
            }
        }
        self.content = content.finalize();
        Ok(())
    }

    /// The messages of a piece.
    pub(super) fn messages_of(&self, piece: &Piece) -> anyhow::Result<Vec<NewMessage>> {
        let cannot = || format!("Cannot read {} again", self.name);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(piece.begin)).with_context(cannot)?;
        let mut bytes = Vec::new();
        file.take(piece.end - piece.begin).read_to_end(&mut bytes).with_context(cannot)?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let messages: Result<Vec<_>, _> = lines.map(message).collect();
        match messages {
            Ok(messages) if messages.len() as u64 == piece.messages => Ok(messages),
            _ => bail!("{} has changed while it was imported.", self.name),
        }
    }

    /// Where a piece is in the file, for users.
    pub(super) fn place(&self, piece: &Piece) -> String {
        format!(
            "The {} messages from line {} of {} on are not stored",
            piece.messages, piece.first_line, self.name
        )
    }
}

fn message(line: &[u8]) -> Result<NewMessage, String> {
    let line = MessageLine::parse(line).map_err(|error| error.to_string())?;
    line.into_message(NewMessage::new).map_err(|error| error.to_string())
}

/// Checks a line, and returns the topic of its message.
fn check(line: &[u8], topic: Option<&TopicName>) -> Result<TopicName, String> {
    let parsed = MessageLine::parse(line).map_err(|error| error.to_string())?;
    let topic = match (topic, parsed.topic()) {
        (Some(topic), _) => topic.clone(),
        (None, Some(name)) => TopicName::new(name).map_err(|error| error.to_string())?,
        (None, None) => {
            return Err("it names no topic: name one for all with --topic TOPIC".to_owned());
        }
    };
    let message = message(line)?;
    message.check().map_err(|error| error.to_string().trim_end_matches('.').to_owned())?;
    Ok(topic)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn plan(lines: &[u8], topic: Option<&str>) -> anyhow::Result<Plan> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(lines).expect("written");
        let topic = topic.map(|name| TopicName::new(name).expect("a name"));
        Plan::read(file.path(), topic.as_ref())
    }

    #[test]
    fn a_file_is_cut_by_topic_messages_and_bytes_and_read_back() {
        let mut lines = String::new();
        for n in 0..1001 {
            let topic = if n < 600 { "a" } else { "b" };
            lines.push_str(&format!("{{\"topic\":\"{topic}\",\"body\":\"{n}\"}}\n\n"));
        }
        for n in 1001..1004 {
            let body = "x".repeat(700_000);
            lines.push_str(&format!("{{\"topic\":\"b\",\"body\":\"{n}{body}\"}}\n"));
        }
        let plan = plan(lines.trim_end().as_bytes(), None).expect("messages");
        let shape = |piece: &Piece| (piece.topic.to_string(), piece.messages);
        let shapes: Vec<_> = plan.pieces.iter().map(shape).collect();
        let of = |topic: &str, n| (topic.to_owned(), n);
        let expected = [of("a", 500), of("a", 100), of("b", 402), of("b", 1), of("b", 1)];
        assert_eq!(shapes, expected);
        assert_eq!(plan.messages, 1004);
        let read = plan.pieces.iter().flat_map(|piece| plan.messages_of(piece).expect("there"));
        for (n, message) in read.enumerate() {
            let text = String::from_utf8(message.body).expect("text");
            assert_eq!(text.trim_end_matches('x'), n.to_string());
        }
    }

    #[test]
    fn another_content_is_reported() {
        let content = |lines: &[u8]| plan(lines, Some("a")).expect("messages").content;
        let one = content(b"{\"body\":\"1\"}\n");
        assert_eq!(one, content(b"{\"body\":\"1\"}\n"));
        assert_ne!(one, content(b"{\"body\":\"2\"}\n"));
    }

    #[test]
    fn the_first_line_that_is_no_message_is_named() {
        for (lines, topic, why) in [
            (&b"{\"body\":\"1\"}\n"[..], None, "Line 1 of"),
            (b"{\"body\":\"1\"}\n", None, "--topic TOPIC"),
            (b"{\"body\":\"1\"}\n\n{\"bo", Some("a"), "Line 3 of"),
            (b"{\"body\":\"1\",\"topic\":\"a b\"}", None, "a b"),
            (b"{\"body\":\"1\",\"expires\":\"0s\"}", Some("a"), "expiry"),
            (b"{\"body_base64\":\"?\"}", Some("a"), "body_base64"),
        ] {
            let error = plan(lines, topic).err().expect("refused").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
