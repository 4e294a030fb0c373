use std::time::Duration;

use super::hosts::HostNo;
use crate::connection::{Link, ServerUrl, SessionKind, Wanted, transaction};
use crate::model::{Error, Fault, Result};

/// One dedicated connection, with a deadline on every call.
///
/// A call that fails in a way that makes the connection doubtful, misses its deadline or is
/// cancelled closes the connection. The session is then [lost](Session::is_lost), and its owner
/// decides how to go on. It never reconnects by itself: a new connection has a new id.
#[derive(Debug)]
pub struct Session {
    conn: Option<Link>,
    url: ServerUrl,
    host: HostNo,
    deadline: Duration,
}

impl Session {
    /// Opens a session to the server that takes writes; its calls each take at most `deadline`.
    ///
    /// # Errors
    /// As [`connect()`](super::connect()).
    pub async fn open(url: &ServerUrl, kind: SessionKind, deadline: Duration) -> Result<Self> {
        Self::open_to(url, kind, Wanted::Writer, deadline).await
    }

    /// Opens a session to an accepted server.
    ///
    /// # Errors
    /// As [`connect()`](super::connect()).
    pub async fn open_to(
        url: &ServerUrl,
        kind: SessionKind,
        wanted: Wanted,
        deadline: Duration,
    ) -> Result<Self> {
        let (conn, host) = Link::open(url, kind, wanted).await?;
        Ok(Self { conn: Some(conn), url: url.clone(), host, deadline })
    }

    /// Whether its connection is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.conn.is_none()
    }

    /// Runs `work` on the connection, within the deadline.
    ///
    /// # Errors
    /// What `work` returns; [`Error::Deadline`] when it took too long; a `Gone` error when the
    /// session is lost.
    pub async fn call<T>(
        &mut self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut Link) -> Result<T>,
    ) -> Result<T> {
        let Some(mut conn) = self.conn.take() else { return Err(lost(operation)) };
        // The connection is owned here: if this future is dropped, the connection is closed.
        match tokio::time::timeout(self.deadline, work(&mut conn)).await {
            Ok(result) => {
                if !matches!(&result, Err(error) if error.fault().ends_connection()) {
                    self.conn = Some(conn);
                }
                result
            }
            Err(_) => {
                self.url.hosts().distrust(self.host);
                Err(Error::Deadline { operation, deadline: self.deadline })
            }
        }
    }

    /// Runs `work` as one transaction, retried whole on a deadlock or lock wait; see
    /// [`transaction()`].
    ///
    /// # Errors
    /// As [`transaction()`] and [`Session::call`]. A deadline that strikes during the commit is an
    /// [`Error::UnknownOutcome`].
    pub async fn transaction<T>(
        &mut self,
        operation: &'static str,
        work: impl AsyncFnMut(&mut Link) -> Result<T>,
    ) -> Result<T> {
        tracing::trace!(step = "transaction");
        let result =
            self.call(operation, async |conn| transaction(conn, operation, work).await).await;
        match result {
            // The deadline does not show whether the commit had been sent.
            Err(Error::Deadline { .. }) => {
                let message = format!("no answer within {} ms", self.deadline.as_millis());
                Err(Error::UnknownOutcome { operation, message })
            }
            other => other,
        }
    }
}

fn lost(operation: &'static str) -> Error {
    let message = "the session is lost".to_owned();
    Error::Database { operation, fault: Fault::Gone, message }
}
