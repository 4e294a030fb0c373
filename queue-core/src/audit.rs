//! The audit: who changed what by hand. A change and its entry are one transaction; a change of
//! many messages is many transactions, and each adds to the entry what it has changed.

use crate::connection::{Link, Session};
use crate::model::{AuditNo, Change, Result};
use crate::store::audit as stored;

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

/// Begins the entry of a change, if somebody is said to make it.
pub(crate) async fn begin(session: &mut Session, by: Option<&Change>) -> Result<Option<AuditNo>> {
    match by {
        Some(change) => change.begin(session).await.map(Some),
        None => Ok(None),
    }
}

/// Adds to the entry, if there is one, what a transaction has changed.
pub(crate) async fn add(conn: &mut Link, entry: Option<AuditNo>, messages: usize) -> Result<()> {
    match entry {
        Some(entry) => stored::add(conn, entry, messages).await,
        None => Ok(()),
    }
}
