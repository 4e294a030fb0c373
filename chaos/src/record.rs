//! What an actor saw, in its own append-only file. The checks trust these files and nothing else.

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};

use crate::stream::{Group, Share};
use crate::tag::{Actor, Tag};

/// Time since the machine started: one clock for all processes, which is never set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) Duration);

impl Moment {
    /// After all other moments.
    pub(crate) const LATEST: Self = Self(Duration::MAX);

    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(now.tv_nsec).unwrap_or_default();
        Self(Duration::new(seconds, nanos))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// The place of a message in the stream, and the claim with which its member got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    pub(crate) claim_no: u64,
}

/// Offsets that a group is to handle again, from `lo` up to `hi`, exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) group: Group,
    pub(crate) partition: u32,
    pub(crate) lo: u64,
    pub(crate) hi: u64,
}

impl Replayed {
    /// Returns whether it contains this message.
    pub(crate) fn covers(&self, partition: u32, offset: u64) -> bool {
        self.partition == partition && (self.lo..self.hi).contains(&offset)
    }
}

impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, partition, lo, hi } = self;
        write!(f, "{group} {partition} {lo} {hi}")
    }
}

/// How an enqueue ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enqueued {
    /// The server acknowledged the commit.
    Stored,
    /// It certainly was not stored: a rollback, or a refusal.
    NotStored,
    /// The outcome is unknown.
    InDoubt,
}

/// How a handler left a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The effect is complete; the handler wants an ack.
    Done,
    /// The handler wants a retry.
    Retry,
    /// The handler gives the message back.
    Release,
    /// The handler was stopped before it finished.
    Interrupted,
}

/// The outcome of settling a delivery, as its consumer learned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The consumer held the claim, and the settlement is committed.
    Settled,
    /// The claim had been taken back.
    Fenced,
    /// A commit without an answer, or a worker that died before it.
    Unknown,
}

/// One line of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// Messages `first` and the `n - 1` after it are about to be sent.
    Invoke { first: Tag, n: u64 },
    /// The transaction that is to send them to a topic has written them, and is still open.
    Inserted { first: Tag, n: u64, topic: String },
    /// What became of them.
    Enqueue { first: Tag, n: u64, outcome: Enqueued },
    /// A sender sends everything to this queue.
    Queue { topic: String },
    /// This sender sends everything to the stream.
    Stream { sender: Actor },
    /// A consumer is this member of the broadcast group.
    Member { member: Group },
    /// A consumer claims by the SQL contract.
    Caller,
    /// A handler begins; a stream's message that is not being retried has its place there.
    Start { share: Share, delivery_no: u32, place: Option<LogPosition> },
    /// A handler ends.
    End { share: Share, delivery_no: u32, ended: Ended },
    /// A transactional handler has written its effect, which counts if it is committed.
    Effect { share: Share, delivery_no: u32 },
    /// A consumer learned the outcome of a delivery. `ack`: it was to be acked.
    Settled { share: Share, delivery_no: u32, ack: bool, answer: Answer },
    /// The harness: a group is about to handle a range of offsets again.
    Rewind(Replayed),
    /// The harness: the group will handle this part of it again, even what it had already handled.
    Rewound(Replayed),
    /// The harness: a fault begins.
    Strike { fault: String },
    /// The harness: the fault is over.
    Heal { fault: String },
    /// The harness: an operator is about to delete messages `first` and the `n - 1` after it.
    Purge { first: Tag, n: u64 },
    /// The harness: an operator is about to delete a topic without its messages.
    Delete { topic: String },
    /// The harness: the deletion is over, and a topic of this name exists. `deleted`: it is a new
    /// one.
    Remade { topic: String, deleted: bool },
    /// The harness: an operator learned that a message is cancelled.
    Cancelled { tag: Tag },
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
    /// One of its connections was cut, went dark or was held up, or one of its statements was lost.
    Broken,
}

/// The words of the file for the values of an enum, in both directions.
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
            Self::Inserted { first, n, topic } => format!("{at} inserted {first} {n} {topic}\n"),
            Self::Enqueue { first, n, outcome } => {
                format!("{at} enqueue {first} {n} {}\n", outcome.word())
            }
            Self::Queue { topic } => format!("{at} queue {topic}\n"),
            Self::Stream { sender } => format!("{at} stream {sender}\n"),
            Self::Member { member } => format!("{at} member {member}\n"),
            Self::Caller => format!("{at} caller\n"),
            Self::Start { share, delivery_no, place: None } => {
                format!("{at} start {share} {delivery_no}\n")
            }
            Self::Start { share, delivery_no, place: Some(place) } => {
                let LogPosition { partition, offset, claim_no } = place;
                format!("{at} read {share} {delivery_no} {partition} {offset} {claim_no}\n")
            }
            Self::End { share, delivery_no, ended } => {
                format!("{at} end {share} {delivery_no} {}\n", ended.word())
            }
            Self::Effect { share, delivery_no } => format!("{at} effect {share} {delivery_no}\n"),
            Self::Settled { share, delivery_no, ack, answer } => {
                let verb = if *ack { "ack" } else { "other" };
                format!("{at} settled {share} {delivery_no} {verb} {}\n", answer.word())
            }
            Self::Rewind(replayed) => format!("{at} rewind {replayed}\n"),
            Self::Rewound(replayed) => format!("{at} rewound {replayed}\n"),
            Self::Strike { fault } => format!("{at} strike {fault}\n"),
            Self::Heal { fault } => format!("{at} heal {fault}\n"),
            Self::Purge { first, n } => format!("{at} purge {first} {n}\n"),
            Self::Delete { topic } => format!("{at} delete {topic}\n"),
            Self::Remade { topic, deleted } => format!("{at} remade {topic} {deleted}\n"),
            Self::Cancelled { tag } => format!("{at} cancelled {tag}\n"),
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
            "inserted" => Self::Inserted {
                first: next()?.parse()?,
                n: next()?.parse()?,
                topic: next()?.to_owned(),
            },
            "enqueue" => Self::Enqueue {
                first: next()?.parse()?,
                n: next()?.parse()?,
                outcome: Enqueued::from_word(next()?)?,
            },
            "queue" => Self::Queue { topic: next()?.to_owned() },
            "stream" => Self::Stream { sender: Actor(next()?.parse()?) },
            "member" => Self::Member { member: next()?.parse()? },
            "caller" => Self::Caller,
            verb @ ("start" | "read") => Self::Start {
                share: next()?.parse()?,
                delivery_no: next()?.parse()?,
                place: match verb {
                    "read" => Some(LogPosition {
                        partition: next()?.parse()?,
                        offset: next()?.parse()?,
                        claim_no: next()?.parse()?,
                    }),
                    _ => None,
                },
            },
            verb @ ("rewind" | "rewound") => {
                let replayed = Replayed {
                    group: next()?.parse()?,
                    partition: next()?.parse()?,
                    lo: next()?.parse()?,
                    hi: next()?.parse()?,
                };
                if verb == "rewind" { Self::Rewind(replayed) } else { Self::Rewound(replayed) }
            }
            "end" => Self::End {
                share: next()?.parse()?,
                delivery_no: next()?.parse()?,
                ended: Ended::from_word(next()?)?,
            },
            "effect" => Self::Effect { share: next()?.parse()?, delivery_no: next()?.parse()? },
            "settled" => Self::Settled {
                share: next()?.parse()?,
                delivery_no: next()?.parse()?,
                ack: next()? == "ack",
                answer: Answer::from_word(next()?)?,
            },
            "strike" => Self::Strike { fault: next()?.to_owned() },
            "heal" => Self::Heal { fault: next()?.to_owned() },
            "purge" => Self::Purge { first: next()?.parse()?, n: next()?.parse()? },
            "delete" => Self::Delete { topic: next()?.to_owned() },
            "remade" => Self::Remade { topic: next()?.to_owned(), deleted: next()?.parse()? },
            "cancelled" => Self::Cancelled { tag: next()?.parse()? },
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

    /// Appends an event. The kernel has it when this returns: a killed process has written all it
    /// has seen.
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

    #[test]
    fn what_is_written_is_read_again() {
        let tag = Tag { sender: Actor(3), seq: 9 };
        let share = Share { tag, group: Some(Group::Ordered) };
        let replayed = Replayed { group: Group::Plain, partition: 2, lo: 5, hi: u64::MAX };
        let place = Some(LogPosition { partition: 2, offset: 17, claim_no: 4 });
        let events = [
            Event::Queue { topic: "work".to_owned() },
            Event::Stream { sender: Actor(3) },
            Event::Member { member: Group::MEMBERS[1] },
            Event::Caller,
            Event::Start { share, delivery_no: 1, place },
            Event::End { share, delivery_no: 1, ended: Ended::Retry },
            Event::Rewind(replayed),
            Event::Rewound(replayed),
            Event::Invoke { first: tag, n: 20 },
            Event::Inserted { first: tag, n: 20, topic: "brief-1".to_owned() },
            Event::Enqueue { first: tag, n: 20, outcome: Enqueued::InDoubt },
            Event::Start { share: tag.into(), delivery_no: 1, place: None },
            Event::End { share: tag.into(), delivery_no: 1, ended: Ended::Interrupted },
            Event::Effect { share, delivery_no: 1 },
            Event::Settled { share, delivery_no: 1, ack: true, answer: Answer::Fenced },
            Event::Strike { fault: "kill-consumer".to_owned() },
            Event::Heal { fault: "kill-consumer".to_owned() },
            Event::Purge { first: tag, n: 5 },
            Event::Delete { topic: "brief-1".to_owned() },
            Event::Remade { topic: "brief-1".to_owned(), deleted: true },
            Event::Cancelled { tag },
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
