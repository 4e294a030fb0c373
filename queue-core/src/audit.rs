//! The audit: who changed what by hand. A change and its entry are one transaction; a change of
//! many messages is many transactions, and each adds to the entry what it has changed.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::{Link, Session};
use crate::error::Result;
use crate::store::audit as stored;

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

impl Change {
    /// Makes the change: `work` and the entry are one transaction.
    ///
    /// # Errors
    /// That of `work`; [`Error::AuditDenied`](crate::Error::AuditDenied); a database failure.
    /// Nothing is changed then.
    pub async fn make<T>(
        &self,
        session: &mut Session,
        operation: &'static str,
        mut work: impl AsyncFnMut(&mut Link) -> Result<T>,
    ) -> Result<T> {
        let audited = async |conn: &mut Link| {
            stored::record(conn, self).await?;
            work(conn).await
        };
        session.transaction(operation, audited).await
    }

    /// As [`make`](Self::make), where only `work` can tell the detail: what it has found to change.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub async fn make_detailed(
        &self,
        session: &mut Session,
        operation: &'static str,
        mut work: impl AsyncFnMut(&mut Link) -> Result<String>,
    ) -> Result<()> {
        let audited = async |conn: &mut Link| {
            let detail = Some(work(conn).await?).filter(|detail| !detail.is_empty());
            stored::record(conn, &Self { detail, ..self.clone() }).await?;
            Ok(())
        };
        session.transaction(operation, audited).await
    }

    /// As [`make`](Self::make), of messages: `work` tells how many it has changed. Where that is
    /// none there was no change, and is no entry.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub async fn make_counted(
        &self,
        session: &mut Session,
        operation: &'static str,
        mut work: impl AsyncFnMut(&mut Link) -> Result<usize>,
    ) -> Result<usize> {
        let audited = async |conn: &mut Link| {
            let messages = work(conn).await?;
            if messages > 0 {
                let entry = stored::record(conn, self).await?;
                stored::add(conn, entry, messages).await?;
            }
            Ok(messages)
        };
        session.transaction(operation, audited).await
    }

    /// Writes the entry of a change of many transactions, before the first of them. Each
    /// [adds](stored::add) what it has changed, so that a run which is cut off has told it.
    ///
    /// # Errors
    /// [`Error::AuditDenied`](crate::Error::AuditDenied); a database failure.
    pub async fn begin(&self, session: &mut Session) -> Result<AuditNo> {
        let record = async |conn: &mut Link| stored::record(conn, self).await;
        session.transaction("write the audit", record).await
    }
}

/// Adds to the entry, if there is one, what a transaction has changed.
pub(crate) async fn add(conn: &mut Link, entry: Option<AuditNo>, messages: usize) -> Result<()> {
    match entry {
        Some(entry) => stored::add(conn, entry, messages).await,
        None => Ok(()),
    }
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
