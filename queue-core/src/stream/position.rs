use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::{ConnId, WorkerId};
use crate::topic::TopicId;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A partition of a stream, from 0.
    PartitionNo(u32)
}
number! {
    /// A message's place within its partition: dense, from 0, in the order of commits.
    Offset(u64)
}
number! {
    /// The row of a claimed range.
    RangeId(u64)
}

/// Where a message lies in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Position {
    /// The partition.
    pub partition: PartitionNo,
    /// Its place there.
    pub offset: Offset,
}

/// A group of a stream: each message goes to one of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Group {
    /// Its number, which is that of its own topic.
    pub id: TopicId,
    /// The stream that it reads.
    pub stream: TopicId,
    /// Whether each partition is handled one message after the other: first in, first out for each
    /// key.
    pub ordered: bool,
}

/// What a group has made of a message of its stream. What it has to try again, and its dead
/// letters, lie in its own topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum GroupPart {
    /// It has not come so far.
    Ahead,
    /// A member has it.
    Claimed {
        /// Its worker.
        worker: WorkerId,
        /// What its process calls itself; empty if it is gone.
        client_id: String,
        /// Its connection.
        conn_id: ConnId,
    },
    /// It is to be claimed again: given back, held back, or to be replayed.
    Waiting,
    /// It is through with it, or has filed it under its own topic.
    Passed,
}
