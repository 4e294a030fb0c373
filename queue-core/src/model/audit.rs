//! Changes by hand, as the audit tells of them.

use chrono::{DateTime, Utc};
use serde::Serialize;

/// The number of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct AuditNo(pub u64);

/// The account may not write the audit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "A change is made only with its entry in the audit ({message}): grant the account SELECT, INSERT, UPDATE (messages) ON queue_audit, as `rowmq grants operator` shows."
)]
pub struct AuditDenied {
    /// The server's text.
    pub message: String,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Somebody signed in.
    SignIn,
    /// A topic was made.
    CreateTopic,
    /// A topic's settings were changed.
    SetTopic,
    /// A topic was closed and deleted, or a group.
    DeleteTopic,
    /// What may be done with a topic was set: it was paused, say.
    SetAccess,
    /// What may be done with all topics at once was set.
    SetAccessOfAll,
    /// Ready messages were deleted.
    Purge,
    /// Ready messages were put into another topic.
    Move,
    /// Dead letters were made ready again.
    Redrive,
    /// Dead letters were deleted.
    PurgeDead,
    /// A message was taken back: one that waited, was ready, or was being handled.
    Cancel,
    /// A message that waited for its time was given another.
    Reschedule,
    /// A schedule was made, or replaced.
    SetSchedule,
    /// A schedule was deleted.
    DeleteSchedule,
    /// A schedule was stopped.
    PauseSchedule,
    /// A schedule was started again.
    ResumeSchedule,
    /// A group was made.
    CreateGroup,
    /// A group's filter or settings were changed.
    SetGroup,
    /// A group was put elsewhere in its stream.
    ResetGroup,
    /// A group was to handle a stretch of its stream once more.
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

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Actor {
    /// Their name.
    pub name: String,
    /// Where they are: an address, or a host and the account that they came to the server with.
    pub origin: String,
}

/// A change, as its entry tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Who.
    pub actor: Actor,
    /// What.
    pub action: Action,
    /// Of what: the name of a topic, a group or a schedule; empty where it is none.
    pub target: String,
    /// More of what was meant.
    pub detail: Option<String>,
}

/// An entry as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Entry {
    /// Its number.
    pub no: AuditNo,
    /// When, by the server's clock.
    pub at: DateTime<Utc>,
    /// Who.
    #[serde(flatten)]
    pub actor: Actor,
    /// What, in a word of [`Action`].
    pub action: String,
    /// Of what.
    pub target: String,
    /// More of what was meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How many messages were changed.
    pub messages: u64,
}
