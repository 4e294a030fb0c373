//! The groups that read a stream's messages.

use serde::{Deserialize, Serialize};

use crate::model::{ConnId, OffsetSpec, TopicId, WorkerId};

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

/// A broadcast group of a stream: each message goes to each of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broadcast {
    /// Its number, which is that of its own topic.
    pub id: TopicId,
    /// The stream that it reads.
    pub stream: TopicId,
    /// Where a new member begins.
    pub start: OffsetSpec,
}

/// A group's state for a message of its stream. The group's retries and dead letters are in its own
/// topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum GroupPart {
    /// The group has not come this far.
    Ahead,
    /// A member has claimed it.
    Claimed {
        /// Its worker.
        worker: WorkerId,
        /// The client id of its process; empty if the process is gone.
        client_id: String,
        /// Its connection.
        conn_id: ConnId,
    },
    /// It is to be claimed again: given back, held back, or replayed.
    Waiting,
    /// The group has finished it, or has filed it in its own topic.
    Passed,
}
