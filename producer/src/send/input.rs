//! Where messages come from.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use rowmq_core::model::MessageLine;
use rowmq_core::{Headers, Moment, NewMessage, Priority};

use super::arguments::Arguments;
use super::intake::{Intake, Item};

/// The longest line: the largest packet that either server can be configured to accept.
const LINE_LIMIT: u64 = 1024 * 1024 * 1024;

/// What every message gets unless its line says otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct Template {
    pub(crate) priority: Priority,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Headers,
    pub(crate) deliver: Option<Moment>,
    pub(crate) expires: Option<Moment>,
}

impl Template {
    pub(super) fn new(arguments: &Arguments) -> Self {
        let mut headers: Headers = arguments.headers.iter().cloned().collect();
        arguments.retry.iter().for_each(|policy| headers.set_retry(policy));
        arguments.max_attempts.iter().for_each(|attempts| headers.set_max_attempts(*attempts));
        Self {
            headers,
            priority: arguments.priority.unwrap_or_default(),
            key: arguments.key.as_ref().map(|key| key.as_bytes().to_vec()),
            deliver: arguments.deliver,
            expires: arguments.expires,
        }
    }

    pub(crate) fn message(&self, body: Vec<u8>) -> NewMessage {
        let mut message = NewMessage::new(body).with_priority(self.priority);
        message.key.clone_from(&self.key);
        message.headers.clone_from(&self.headers);
        (message.deliver, message.expires) = (self.deliver, self.expires);
        message
    }
}

/// The input, opened.
pub(crate) struct Input {
    source: Source,
    template: Template,
    /// The word by which users find an item again: `line` or `body`.
    unit: &'static str,
    name: String,
    size: Option<u64>,
}

enum Source {
    Bodies(Vec<OsString>),
    Lines { reader: Box<dyn Read + Send>, format: Format },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Newline,
    Nul,
    Ndjson,
}

impl Input {
    /// Opens what the arguments name.
    pub(super) fn open(arguments: &mut Arguments) -> anyhow::Result<Self> {
        let template = Template::new(arguments);
        let (file, format) = match (&arguments.lines, &arguments.ndjson) {
            (Some(file), _) if arguments.null => (file, Format::Nul),
            (Some(file), _) => (file, Format::Newline),
            (None, Some(file)) => (file, Format::Ndjson),
            (None, None) => {
                let source = Source::Bodies(std::mem::take(&mut arguments.bodies));
                let name = "the arguments".to_owned();
                return Ok(Self { source, template, unit: "Body", name, size: None });
            }
        };
        let (reader, name, size) = open(file)?;
        Ok(Self { source: Source::Lines { reader, format }, template, unit: "Line", name, size })
    }

    /// NDJSON from standard input.
    pub(crate) fn ndjson_on_stdin() -> Self {
        let source = Source::Lines { reader: Box::new(std::io::stdin()), format: Format::Ndjson };
        let name = "standard input".to_owned();
        Self { source, template: Template::default(), unit: "Line", name, size: None }
    }

    /// The place of an item, for users.
    pub(crate) fn place(&self) -> impl Fn(u64) -> String + use<> {
        let (unit, name) = (self.unit, self.name.clone());
        move |number| format!("{unit} {number} of {name}")
    }

    /// Its size in bytes, if it is a file.
    pub(crate) fn size(&self) -> Option<u64> {
        self.size
    }

    /// Whether the input may be long.
    pub(crate) fn is_file_or_pipe(&self) -> bool {
        matches!(self.source, Source::Lines { .. })
    }

    /// Reads all of it into `intake`, on a thread of its own: a read from a terminal or a pipe
    /// cannot be interrupted, and must not block the end of the process.
    pub(crate) fn read_into(self, intake: Arc<Intake>) -> anyhow::Result<()> {
        let read = move || {
            let end = match self.source {
                Source::Bodies(bodies) => {
                    put_bodies(bodies, &self.template, &intake);
                    Ok(())
                }
                Source::Lines { reader, format } => {
                    put_lines(reader, format, &self.template, &intake)
                        .with_context(|| format!("Cannot read {}", self.name))
                }
            };
            intake.end(end);
        };
        std::thread::Builder::new()
            .name("read-input".to_owned())
            .spawn(read)
            .context("Cannot start the thread that reads the input")?;
        Ok(())
    }
}

fn open(file: &Path) -> anyhow::Result<(Box<dyn Read + Send>, String, Option<u64>)> {
    if file == Path::new("-") {
        return Ok((Box::new(std::io::stdin()), "standard input".to_owned(), None));
    }
    let name = file.display().to_string();
    let opened = File::open(file).with_context(|| format!("Cannot open {name}"))?;
    let about = opened.metadata().with_context(|| format!("Cannot open {name}"))?;
    if about.is_dir() {
        bail!("{name} is a directory: name a file, or - for standard input");
    }
    let size = about.is_file().then_some(about.len());
    Ok((Box::new(opened), name, size))
}

fn put_bodies(bodies: Vec<OsString>, template: &Template, intake: &Intake) {
    for (number, body) in (1..).zip(bodies) {
        let message = Ok(template.message(body.into_vec()));
        if !intake.put(Item { number, end: 0, message }) {
            return;
        }
    }
}

fn put_lines(
    reader: Box<dyn Read + Send>,
    format: Format,
    template: &Template,
    intake: &Intake,
) -> anyhow::Result<()> {
    let mut reader = BufReader::with_capacity(256 * 1024, reader);
    let delimiter = if format == Format::Nul { 0 } else { b'\n' };
    let mut end = 0;
    for number in 1.. {
        let mut line = Vec::new();
        let read = reader.by_ref().take(LINE_LIMIT + 1).read_until(delimiter, &mut line)?;
        if read == 0 {
            break;
        }
        if line.last() == Some(&delimiter) {
            line.pop();
        } else if line.len() as u64 > LINE_LIMIT {
            bail!("line {number} is longer than 1 GiB, which no server takes");
        }
        end += read as u64;
        let message = match format {
            Format::Newline | Format::Nul => Ok(template.message(line)),
            // A blank line is skipped.
            Format::Ndjson if line.trim_ascii().is_empty() => continue,
            Format::Ndjson => MessageLine::parse(&line)
                .and_then(|line| line.into_message(|body| template.message(body)))
                .map_err(|error| error.to_string()),
        };
        if !intake.put(Item { number, end, message }) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bodies(input: &'static [u8], format: Format) -> Vec<Vec<u8>> {
        let intake = Intake::default();
        let read = put_lines(Box::new(input), format, &Template::default(), &intake);
        intake.end(read);
        let items = intake.take(100).await.expect("it can be read");
        items.into_iter().map(|item| item.message.expect("a message").body).collect()
    }

    #[tokio::test]
    async fn a_line_is_a_body_byte_for_byte_with_or_without_a_last_newline() {
        let expected: [&[u8]; 4] = [b"a", b"", b"\xff\r", b"z"];
        assert_eq!(bodies(b"a\n\n\xff\r\nz", Format::Newline).await, expected);
        assert_eq!(bodies(b"a\n\n\xff\r\nz\n", Format::Newline).await, expected);
    }

    #[tokio::test]
    async fn names_that_end_with_nul_may_hold_newlines() {
        let expected: [&[u8]; 2] = [b"a\nb", b"\xfe"];
        assert_eq!(bodies(b"a\nb\0\xfe\0", Format::Nul).await, expected);
    }

    #[tokio::test]
    async fn blank_lines_of_ndjson_are_no_messages() {
        let expected: [&[u8]; 2] = [b"1", b"2"];
        assert_eq!(bodies(b"{\"body\":\"1\"}\n \n{\"json\":2}\n", Format::Ndjson).await, expected);
    }
}
