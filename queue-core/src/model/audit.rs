//! Changes by people, as the audit records them.

use chrono::{DateTime, Utc};
use diesel::prelude::*;
use serde::Serialize;

use super::AuditNo;
use super::column::{MaybeText, Text, Time};

/// The account may not write the audit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "A change is made only with its entry in the audit ({message}): grant the account SELECT, INSERT, UPDATE (messages) ON queue_audit, as `rowmq grants operator` shows."
)]
pub struct AuditDenied {
    /// The server's text.
    pub message: String,
}

/// The kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// A person signed in.
    SignIn,
    /// A topic was created.
    CreateTopic,
    /// A topic's settings were changed.
    SetTopic,
    /// A topic or a group was closed and deleted.
    DeleteTopic,
    /// A topic's access rule was set: it was paused, say.
    SetAccess,
    /// The access rule of all topics was set.
    SetAccessOfAll,
    /// Ready messages were deleted.
    Purge,
    /// Ready messages were moved to another topic.
    Move,
    /// Dead letters were redriven.
    Redrive,
    /// Dead letters were deleted.
    PurgeDead,
    /// A message was cancelled: a waiting, ready or claimed one.
    Cancel,
    /// Body and headers of a message were erased from a stream's log.
    Erase,
    /// A waiting message was given another due time.
    Reschedule,
    /// A schedule was created or replaced.
    SetSchedule,
    /// A schedule was deleted.
    DeleteSchedule,
    /// A schedule was paused.
    PauseSchedule,
    /// A schedule was resumed.
    ResumeSchedule,
    /// A group was created.
    CreateGroup,
    /// A group's filter or settings were changed.
    SetGroup,
    /// A group was moved to another place in its stream.
    ResetGroup,
    /// A stretch of its stream was replayed to a group.
    Replay,
    /// The position of a member of a broadcast group was forgotten.
    ForgetMember,
}

impl Action {
    /// The word in the database, and for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::SignIn => "sign-in",
            Self::CreateTopic => "create-topic",
            Self::SetTopic => "set-topic",
            Self::DeleteTopic => "delete-topic",
            Self::SetAccess => "set-access",
            Self::SetAccessOfAll => "set-access-of-all",
            Self::Purge => "purge",
            Self::Move => "move",
            Self::Redrive => "redrive",
            Self::PurgeDead => "purge-dead",
            Self::Cancel => "cancel",
            Self::Erase => "erase",
            Self::Reschedule => "reschedule",
            Self::SetSchedule => "set-schedule",
            Self::DeleteSchedule => "delete-schedule",
            Self::PauseSchedule => "pause-schedule",
            Self::ResumeSchedule => "resume-schedule",
            Self::CreateGroup => "create-group",
            Self::SetGroup => "set-group",
            Self::ResetGroup => "reset-group",
            Self::Replay => "replay",
            Self::ForgetMember => "forget-member",
        }
    }
}

/// The person who makes a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Queryable)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Actor {
    /// Their name.
    #[diesel(deserialize_as = Text)]
    pub name: String,
    /// The origin: an address, or a host and the account that connected to the server.
    #[diesel(deserialize_as = Text)]
    pub origin: String,
}

/// A change, as its audit entry records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The person.
    pub actor: Actor,
    /// The kind of change.
    pub action: Action,
    /// The name of the topic, group or schedule; empty if there is none.
    pub target: String,
    /// More detail of the change.
    pub detail: Option<String>,
}

/// An entry as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Queryable)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// Its number.
    pub no: AuditNo,
    /// When, by the server's clock.
    #[diesel(deserialize_as = Time)]
    pub at: DateTime<Utc>,
    /// The person.
    #[serde(flatten)]
    pub actor: Actor,
    /// The kind of change, as a word of [`Action`].
    #[diesel(deserialize_as = Text)]
    pub action: String,
    /// The name of the topic, group or schedule.
    #[diesel(deserialize_as = Text)]
    pub target: String,
    /// More detail of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[diesel(deserialize_as = MaybeText)]
    pub detail: Option<String>,
    /// The number of messages that were changed.
    pub messages: u64,
}
