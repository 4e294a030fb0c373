//! Deleting a topic. It loses no message that a COMMIT has acknowledged:
//!
//! - No message arrives any more: the topic is closed first, and producers learn of it in time.
//! - The check that it is empty takes locks. A plain read would miss the rows of an open
//!   transaction, whose COMMIT would then be acknowledged for a topic that is gone.
//! - A transaction whose snapshot is older than the closing sees the topic open, and may enqueue
//!   after the deletion. On Galera, so may one on another node. The janitor finds the rows of a
//!   topic that has no row, and creates its row again: see [`lost`] and [`restore`].

use std::collections::BTreeSet;

use crate::connection::{Connection, Link, Session};
use crate::model::{
    Access, Action, AuditNo, Change, Error, Fault, Result, Topic, TopicId, TopicName, TopicSettings,
};
use crate::store::inspect::{self, MessageTable};
use crate::store::stream::partition;
use crate::store::{audit, limit, schedule, topic};
use crate::stream::group::leave;

/// The tables of unfinished messages.
const UNFINISHED: [MessageTable; 3] =
    [MessageTable::Ready, MessageTable::Scheduled, MessageTable::Dead];

/// A topic that takes no messages and gives none, because it is about to be deleted.
#[derive(Debug, Clone)]
pub struct Closed {
    /// The topic as it was before it was closed.
    pub topic: Topic,
    /// The audit entry of the deletion.
    pub entry: AuditNo,
    by: Change,
}

impl Closed {
    /// Closes the topic; the deletion's audit entry begins with this. Producers learn of it within
    /// [`TOPIC_KNOWN_FOR`](crate::model::TOPIC_KNOWN_FOR): wait longer than that before the next
    /// step.
    ///
    /// # Errors
    /// [`Error::UnknownTopic`]; [`Error::AuditDenied`]; a database failure. Nothing is changed
    /// then.
    pub async fn close(session: &mut Session, name: &TopicName, by: &Change) -> Result<Self> {
        let close = async |conn: &mut Link| {
            topic::lock(conn, name).await?;
            let topic = topic::existing(conn, name).await?;
            topic::set_access(conn, name, Access::Denied).await?;
            let entry = audit::record(conn, by).await?;
            Ok(Self { topic, entry, by: by.clone() })
        };
        session.transaction("close the topic", close).await
    }

    /// Waits for transactions that have written to the topic, and checks that it is empty. Handled
    /// messages that it keeps do not count.
    ///
    /// # Errors
    /// [`Error::TopicNotEmpty`]; [`Error::TopicInUse`] while such a transaction is open; a database
    /// failure. See [`reopen`](Self::reopen).
    pub async fn refuse_unless_empty(&self, session: &mut Session) -> Result<()> {
        let look = async |conn: &mut Link| self.look(conn).await;
        let looked = session.transaction("look whether the topic is empty", look).await;
        looked.map_err(|error| self.or_in_use(error))
    }

    async fn look(&self, conn: &mut Link) -> Result<()> {
        let topic = &self.topic;
        let mut is_empty = true;
        for table in UNFINISHED {
            is_empty &= !inspect::holds(conn, table, topic.id).await?;
        }
        if topic.is_stream() {
            let log = partition::lock(conn, topic.id).await?;
            is_empty &= log.iter().all(|partition| partition.first == partition.next);
        }
        if is_empty { Ok(()) } else { Err(Error::TopicNotEmpty { topic: topic.name.clone() }) }
    }

    /// Deletes the topic and everything that belongs to it, if it is
    /// [empty](Self::refuse_unless_empty).
    ///
    /// # Errors
    /// As [`refuse_unless_empty`](Self::refuse_unless_empty). Nothing is deleted then.
    pub async fn delete(&self, session: &mut Session) -> Result<()> {
        let topic = &self.topic;
        let delete = async |conn: &mut Link| {
            self.look(conn).await?;
            if topic.of_stream().is_some() {
                leave(conn, topic).await?;
            }
            partition::delete(conn, topic.id).await?;
            schedule::delete_of_topic(conn, topic.id).await?;
            limit::delete(conn, topic.id).await?;
            topic::delete(conn, topic.id).await
        };
        let deleted = session.transaction("delete the topic", delete).await;
        deleted.map(|_| ()).map_err(|error| self.or_in_use(error))
    }

    /// Turns the failure to lock a row of the topic into [`Error::TopicInUse`].
    #[must_use]
    pub fn or_in_use(&self, error: Error) -> Error {
        match error.fault() {
            Fault::LockWait => Error::TopicInUse(self.topic.name.clone()),
            _ => error,
        }
    }

    /// Restores the topic's previous access rule, unless a person has set it since: that rule
    /// stays.
    ///
    /// # Errors
    /// [`Error::AuditDenied`]; a database failure.
    pub async fn reopen(&self, session: &mut Session) -> Result<()> {
        let (name, access) = (&self.topic.name, self.topic.access);
        let by = Change {
            action: Action::SetAccess,
            detail: Some(access.to_string()),
            ..self.by.clone()
        };
        let reopen = async |conn: &mut Link| {
            topic::lock(conn, name).await?;
            // The current rule does not show this: a pause looks like the closing.
            if audit::has_since(conn, self.entry, by.action, name.as_str()).await? {
                return Ok(());
            }
            topic::set_access(conn, name, access).await?;
            audit::record(conn, &by).await.map(|_| ())
        };
        session.transaction("set the topic's access", reopen).await
    }
}

/// Returns the numbers of topics that have messages and no row.
pub async fn lost(conn: &mut impl Connection) -> Result<Vec<TopicId>> {
    let known: BTreeSet<_> = topic::all(conn).await?.iter().map(|topic| topic.id.0).collect();
    let mut lost = BTreeSet::new();
    for table in UNFINISHED {
        // Producers' lanes have the number 0.
        let mut after = TopicId(0);
        while let Some(id) = inspect::next_topic(conn, table, after).await? {
            // A topic that was created after the list was read is there now.
            if !known.contains(&id.0) && topic::by_id(conn, id).await?.is_none() {
                lost.insert(id.0);
            }
            after = id;
        }
    }
    Ok(lost.into_iter().map(TopicId).collect())
}

/// Gives the messages of a deleted topic a topic again, `restored-N` for the number N, where people
/// find them: nothing consumes it. Returns its name.
///
/// # Errors
/// A database failure; [`Error::TopicExists`] or a duplicate if another session has just done so.
pub async fn restore(session: &mut Session, id: TopicId) -> Result<TopicName> {
    let name = restored_name(id)?;
    let restore = async |conn: &mut Link| {
        topic::create(conn, &name, &TopicSettings::default()).await?;
        topic::set_id(conn, &name, id).await
    };
    session.transaction("restore the topic", restore).await?;
    Ok(name)
}

fn restored_name(id: TopicId) -> Result<TopicName> {
    TopicName::new(format!("restored-{}", id.0))
}
