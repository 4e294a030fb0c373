//! The audit: which person changed what. A change and its entry are one transaction. A change of
//! many messages is many transactions, and each adds the number of messages it changed to the
//! entry.

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

    /// As [`make`](Self::make), but `work` returns the detail, because only it knows what it
    /// changes.
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

    /// As [`make`](Self::make), for messages: `work` returns how many it has changed. If it changed
    /// none, there is no entry.
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

    /// Writes the entry of an action that changes no message and no setting: a person signed in.
    ///
    /// # Errors
    /// [`Error::AuditDenied`](crate::Error::AuditDenied); a database failure.
    pub async fn note(&self, session: &mut Session) -> Result<()> {
        let record = async |conn: &mut Link| stored::record(conn, self).await;
        session.transaction("write the audit", record).await.map(|_| ())
    }
}

/// The entry of a change of many transactions. The first of them that changes anything writes it,
/// so a change that finds nothing has no entry. Each adds the number of messages that it has
/// changed, so the entry of an interrupted run shows how far it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BulkEntry<'c> {
    by: Option<&'c Change>,
    no: Option<AuditNo>,
}

impl<'c> BulkEntry<'c> {
    /// The entry of a change `by` a person; a program's change has none.
    pub(crate) fn new(by: Option<&'c Change>) -> Self {
        Self { by, no: None }
    }

    pub(crate) fn is_written(self) -> bool {
        self.no.is_some()
    }

    /// Adds messages in the transaction that changes them. Returns the entry as it is after the
    /// commit.
    pub(crate) async fn add(self, conn: &mut Link, messages: usize) -> Result<Self> {
        let Some(by) = self.by else { return Ok(self) };
        let no = match self.no {
            Some(no) => no,
            None => stored::record(conn, by).await?,
        };
        if messages > 0 {
            stored::add(conn, no, messages).await?;
        }
        Ok(Self { no: Some(no), ..self })
    }
}
