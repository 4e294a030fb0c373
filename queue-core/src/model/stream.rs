//! What a stream's messages are read by.

use serde::{Deserialize, Serialize};

use crate::model::{ConnId, Place, TopicId, WorkerId};

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
    pub start: Place,
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
