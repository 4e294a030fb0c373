//! The thread that does all file work, so that no other task waits for a disk. Commands that arrive
//! during a sync share the next one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use rowmq_core::{Error, Result, telemetry};
use tokio::sync::{oneshot, watch};

use super::SetAside;
use super::aside;
use super::cursor::Intent;
use super::journal::{Group, Journal, JournalState, NotAppended, Pending};
use super::record::Record;
use crate::error::SendError;
use crate::options::SpillOptions;

/// The most commands that wait for one sync: with more, the first would wait for the last.
const TOGETHER: usize = 1000;

type Reply<T> = oneshot::Sender<Result<T>>;

/// The answer to an append: the number of the first record, or the records and why they are not in
/// the journal.
type Appended = Result<u64, (NotAppended, Vec<Record>)>;

/// A request to the thread.
pub(super) enum Command {
    Append {
        records: Vec<Record>,
        reply: oneshot::Sender<Appended>,
    },
    Peek(Reply<Group>),
    Intend {
        intent: Option<Intent>,
        reply: Reply<()>,
    },
    /// `unsent`: why the group is to be kept in a file.
    Settle {
        group: Arc<Group>,
        unsent: Option<SendError>,
        reply: Reply<()>,
    },
    Close(Reply<()>),
}

impl Command {
    pub(super) fn into_records(self) -> Vec<Record> {
        match self {
            Self::Append { records, .. } => records,
            _ => Vec::new(),
        }
    }
}

/// Starts the thread, and waits until the journal is open.
pub(super) async fn start(
    options: &SpillOptions,
    set_aside: Arc<SetAside>,
) -> Result<(mpsc::Sender<Command>, watch::Receiver<JournalState>)> {
    let (dir, limit) = (options.dir.clone(), options.limit_bytes.get());
    let (commands, incoming) = mpsc::channel();
    let (state, stands) = watch::channel(JournalState::default());
    let (ready, opened) = oneshot::channel();
    let name = options.dir.clone();
    let work = move || {
        let journal = match Journal::open(&dir, limit) {
            Ok(journal) => journal,
            Err(reason) => return drop(ready.send(Err(unusable(&dir, reason)))),
        };
        let mut keeper = Keeper { journal, state, set_aside, may_repeat: true };
        keeper.tell();
        if ready.send(Ok(())).is_ok() {
            keeper.work(&incoming);
        }
    };
    let started = std::thread::Builder::new().name("rowmq-spill".to_owned()).spawn(work);
    started.map_err(|error| unusable(&name, error.to_string()))?;
    opened.await.unwrap_or_else(|_| Err(ended()))?;
    Ok((commands, stands))
}

fn unusable(dir: &Path, reason: String) -> Error {
    Error::Spill { dir: dir.display().to_string(), reason }
}

/// The error when the thread has ended.
pub(super) fn ended() -> Error {
    unusable(&PathBuf::from("of this producer"), "the producer is closed".to_owned())
}

struct Keeper {
    journal: Journal,
    state: watch::Sender<JournalState>,
    set_aside: Arc<SetAside>,
    /// Whether the next group to be put aside may be in its file already: after a start, and after
    /// a failure.
    may_repeat: bool,
}

/// The appends that wait for a sync: their records, the number of the first, and the reply.
type Waiting = Vec<(Vec<Record>, u64, oneshot::Sender<Appended>)>;

impl Keeper {
    fn work(&mut self, incoming: &mpsc::Receiver<Command>) {
        while let Ok(command) = incoming.recv() {
            let (mut pending, mut waiting) = (Pending::default(), Waiting::new());
            let more = incoming.try_iter().take(TOGETHER);
            for command in std::iter::once(command).chain(more) {
                let other = match command {
                    Command::Append { records, reply } => {
                        match self.journal.add(&mut pending, &records) {
                            Ok(first) => waiting.push((records, first, reply)),
                            Err(why) => drop(reply.send(Err((why, records)))),
                        }
                        continue;
                    }
                    other => other,
                };
                self.append(std::mem::take(&mut pending), std::mem::take(&mut waiting));
                if let Command::Close(reply) = other {
                    telemetry::spill_size(0);
                    return drop(reply.send(Ok(())));
                }
                self.other(other);
            }
            self.append(pending, waiting);
        }
    }

    fn append(&mut self, pending: Pending, waiting: Waiting) {
        if waiting.is_empty() {
            return;
        }
        let appended = self.journal.append(pending);
        self.tell();
        for (records, first, reply) in waiting {
            let answer = match &appended {
                Ok(()) => {
                    for record in &records {
                        telemetry::spilled(record.topic.as_str(), record.messages.len());
                    }
                    Ok(first)
                }
                Err(why) => Err((why.clone(), records)),
            };
            // The caller may have gone away.
            drop(reply.send(answer));
        }
    }

    fn other(&mut self, command: Command) {
        let dir = self.journal.dir.clone();
        let failed = |reason: String| unusable(&dir, reason);
        match command {
            Command::Append { .. } | Command::Close(_) => {}
            Command::Peek(reply) => drop(reply.send(self.journal.peek().map_err(failed))),
            Command::Intend { intent, reply } => {
                let intended = self.journal.intend(intent);
                drop(reply.send(intended.map_err(|error| failed(error.to_string()))));
            }
            Command::Settle { group, unsent, reply } => {
                let settled = self.settle(&group, unsent);
                self.tell();
                drop(reply.send(settled.map_err(|error| failed(error.to_string()))));
            }
        }
    }

    fn settle(&mut self, group: &Group, unsent: Option<SendError>) -> std::io::Result<()> {
        let Some(why) = unsent else { return self.journal.settle(group) };
        let may_repeat = std::mem::replace(&mut self.may_repeat, true);
        aside::keep(&self.journal.dir, group, &why, may_repeat)?;
        self.journal.settle_aside(group)?;
        self.may_repeat = false;
        // Before the journal reports them as settled.
        self.set_aside.add(group.first..group.end(), why);
        Ok(())
    }

    /// Publishes the journal's state.
    fn tell(&self) {
        let state = self.journal.state();
        telemetry::spill_size(state.bytes);
        self.state.send_if_modified(|shown| std::mem::replace(shown, state) != state);
    }
}
