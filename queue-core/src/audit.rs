//! The audit: who changed what by hand. A change and its entry are one transaction; a change of
//! many messages is many transactions, and each adds to the entry what it has changed.

use chrono::{DateTime, Utc};
use serde::Serialize;

/// The number of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct AuditNo(pub u64);

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Somebody signed in.
    SignIn,
    /// What may be done with a topic was set: it was paused, say.
    SetAccess,
    /// Dead letters were made ready again.
    Redrive,
    /// Dead letters were deleted.
    PurgeDead,
    /// A message that waited for its time was taken back.
    Cancel,
    /// A message that waited for its time was given another.
    Reschedule,
    /// A schedule was stopped.
    PauseSchedule,
    /// A schedule was started again.
    ResumeSchedule,
    /// A group was put elsewhere in its stream.
    ResetGroup,
    /// A group was to handle a stretch of its stream once more.
    Replay,
}

impl Action {
    /// The word in the database, and for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::SignIn => "sign-in",
            Self::SetAccess => "set-access",
            Self::Redrive => "redrive",
            Self::PurgeDead => "purge-dead",
            Self::Cancel => "cancel",
            Self::Reschedule => "reschedule",
            Self::PauseSchedule => "pause-schedule",
            Self::ResumeSchedule => "resume-schedule",
            Self::ResetGroup => "reset-group",
            Self::Replay => "replay",
        }
    }
}

/// Who changes something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Actor {
    /// Their name.
    pub name: String,
    /// Where they are: an address.
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
