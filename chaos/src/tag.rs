//! Identifies a message: its sender, and its number among that sender's messages.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;
use rowmq_core::MsgId;
use uuid::Uuid;

/// An actor of a run: a process, numbered by the harness. A restarted process is another actor,
/// with its own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Actor(pub(crate) u64);

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message of a run. Its message id is made of the two numbers, so that a record of a thousand
/// messages sent at once is one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Tag {
    pub(crate) sender: Actor,
    pub(crate) seq: u64,
}

impl Tag {
    pub(crate) fn msg_id(self) -> MsgId {
        MsgId(Uuid::from_u64_pair(self.sender.0, self.seq))
    }
}

impl From<MsgId> for Tag {
    fn from(id: MsgId) -> Self {
        let (sender, seq) = id.0.as_u64_pair();
        Self { sender: Actor(sender), seq }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sender, self.seq)
    }
}

impl FromStr for Tag {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (sender, seq) = text.split_once(':').context("a message is SENDER:NUMBER")?;
        Ok(Self { sender: Actor(sender.parse()?), seq: seq.parse()? })
    }
}
