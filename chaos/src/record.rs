//! What an actor saw, in a file of its own that is only ever appended to. The checks trust these
//! files and nothing else.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};

use crate::tag::Tag;

/// Time since the machine started: one clock for all processes, which nobody sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanos))
    }

    /// How long before this `earlier` was; zero if it was not.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// How an enqueue ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// The server acknowledged the commit.
    Stored,
    /// It certainly was not stored: a rollback, or a refusal.
    NotStored,
    /// Nobody can say.
    InDoubt,
}

/// How a handler left a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The effect is complete; to be acked.
    Done,
    /// To be tried again.
    Retry,
    /// Given back.
    Release,
    /// Told to stop before it was through.
    Interrupted,
}

/// What settling a delivery came to, as its consumer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The claim was its own, and the settlement is committed.
    Settled,
    /// The claim had been taken back.
    Fenced,
    /// A commit without an answer, or a worker that died meanwhile.
    Unknown,
}

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Messages `first` and the `n - 1` after it are about to be sent.
    Invoke { first: Tag, n: u64 },
    /// What became of them.
    Enqueue { first: Tag, n: u64, outcome: Enqueued },
    /// A handler begins.
    Start { tag: Tag, delivery_no: u32 },
    /// A handler ends.
    End { tag: Tag, delivery_no: u32, ended: Ended },
    /// A transactional handler has written its effect, which counts if it is committed.
    Effect { tag: Tag, delivery_no: u32 },
    /// A consumer was told what became of a delivery. `ack`: it was to be acked.
    Settled { tag: Tag, delivery_no: u32, ack: bool, answer: Answer },
    /// The harness: a fault begins.
    Strike { fault: String },
    /// The harness: the fault is over.
    Heal { fault: String },
    /// The harness: somebody is about to delete messages `first` and the `n - 1` after it.
    Purge { first: Tag, n: u64 },
    /// The harness: a process was killed, frozen or cut off.
    Hit { actor: u64, how: Hit },
    /// The harness: a phase begins.
    Phase { name: String },
}

/// What was done to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hit {
    /// SIGKILL.
    Killed,
    /// SIGSTOP, or its packets vanish: it holds its connections and does nothing.
    Frozen,
    /// A connection of it was cut, went dark or was held up, or a statement of it was lost.
    Broken,
}

/// Words of the file for the values of an enum, in both directions.
macro_rules! words {
    ($type:ty { $($variant:ident = $word:literal),* }) => {
        impl $type {
            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }

            fn from_word(word: &str) -> anyhow::Result<Self> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => bail!("{word:?} is no {}", stringify!($type)),
                }
            }
        }
    };
}

words!(Enqueued { Stored = "stored", NotStored = "not-stored", InDoubt = "in-doubt" });
words!(Ended { Done = "done", Retry = "retry", Release = "release", Interrupted = "interrupted" });
words!(Answer { Settled = "settled", Fenced = "fenced", Unknown = "unknown" });
words!(Hit { Killed = "killed", Frozen = "frozen", Broken = "broken" });

impl Event {
    fn line(&self, at: Moment) -> String {
        let at = at.0.as_micros();
        match self {
            Self::Invoke { first, n } => format!("{at} invoke {first} {n}\n"),
            Self::Enqueue { first, n, outcome } => {
                format!("{at} enqueue {first} {n} {}\n", outcome.word())
            }
            Self::Start { tag, delivery_no } => format!("{at} start {tag} {delivery_no}\n"),
            Self::End { tag, delivery_no, ended } => {
                format!("{at} end {tag} {delivery_no} {}\n", ended.word())
            }
            Self::Effect { tag, delivery_no } => format!("{at} effect {tag} {delivery_no}\n"),
            Self::Settled { tag, delivery_no, ack, answer } => {
                let verb = if *ack { "ack" } else { "other" };
                format!("{at} settled {tag} {delivery_no} {verb} {}\n", answer.word())
            }
            Self::Strike { fault } => format!("{at} strike {fault}\n"),
            Self::Heal { fault } => format!("{at} heal {fault}\n"),
            Self::Purge { first, n } => format!("{at} purge {first} {n}\n"),
            Self::Hit { actor, how } => format!("{at} hit {actor} {}\n", how.word()),
            Self::Phase { name } => format!("{at} phase {name}\n"),
        }
    }

    fn parse(line: &str) -> anyhow::Result<(Moment, Self)> {
        let mut words = line.split(' ');
        let mut next = || words.next().context("the line ends early");
        let at = Moment(Duration::from_micros(next()?.parse()?));
        let event = match next()? {
            "invoke" => Self::Invoke { first: next()?.parse()?, n: next()?.parse()? },
            "enqueue" => Self::Enqueue {
                first: next()?.parse()?,
                n: next()?.parse()?,
                outcome: Enqueued::from_word(next()?)?,
            },
            "start" => Self::Start { tag: next()?.parse()?, delivery_no: next()?.parse()? },
            "end" => Self::End {
                tag: next()?.parse()?,
                delivery_no: next()?.parse()?,
                ended: Ended::from_word(next()?)?,
            },
            "effect" => Self::Effect { tag: next()?.parse()?, delivery_no: next()?.parse()? },
            "settled" => Self::Settled {
                tag: next()?.parse()?,
                delivery_no: next()?.parse()?,
                ack: next()? == "ack",
                answer: Answer::from_word(next()?)?,
            },
            "strike" => Self::Strike { fault: next()?.to_owned() },
            "heal" => Self::Heal { fault: next()?.to_owned() },
            "purge" => Self::Purge { first: next()?.parse()?, n: next()?.parse()? },
            "hit" => Self::Hit { actor: next()?.parse()?, how: Hit::from_word(next()?)? },
            "phase" => Self::Phase { name: next()?.to_owned() },
            other => bail!("{other:?} is no event"),
        };
        Ok((at, event))
    }
}

/// The writing end of a record.
#[derive(Debug)]
pub(crate) struct Record(Mutex<File>);

impl Record {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(path);
        Ok(Self(Mutex::new(file.with_context(|| format!("Cannot write {}", path.display()))?)))
    }

    /// Writes an event down. It is with the kernel when this returns: a killed process has written
    /// all it has seen.
    pub(crate) fn note(&self, event: &Event) -> std::io::Result<()> {
        let line = event.line(Moment::now());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }
}

/// Reads a record. The last line of a killed process may be cut short: it is left out.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<(Moment, Event)>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |line| Event::parse(line).with_context(|| format!("In {}: {line}", path.display()));
    whole.lines().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tag::Actor;

    #[test]
    fn what_is_written_is_read_again() {
        let tag = Tag { sender: Actor(3), seq: 9 };
        let events = [
            Event::Invoke { first: tag, n: 20 },
            Event::Enqueue { first: tag, n: 20, outcome: Enqueued::InDoubt },
            Event::Start { tag, delivery_no: 1 },
            Event::End { tag, delivery_no: 1, ended: Ended::Interrupted },
            Event::Effect { tag, delivery_no: 1 },
            Event::Settled { tag, delivery_no: 1, ack: true, answer: Answer::Fenced },
            Event::Strike { fault: "kill-consumer".to_owned() },
            Event::Heal { fault: "kill-consumer".to_owned() },
            Event::Purge { first: tag, n: 5 },
            Event::Hit { actor: 7, how: Hit::Frozen },
            Event::Phase { name: "quiet".to_owned() },
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("1.log");
        let record = Record::open(&path).expect("opened");
        for event in &events {
            record.note(event).expect("written");
        }
        let read = read(&path).expect("read");
        assert!(read.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(read.into_iter().map(|(_, event)| event).collect::<Vec<_>>(), events);
    }

    #[test]
    fn a_line_cut_short_by_a_kill_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("1.log");
        std::fs::write(&path, "5 start 1:2 1\n6 end 1:2 1 do").expect("written");
        assert_eq!(read(&path).expect("read").len(), 1);
    }
}
