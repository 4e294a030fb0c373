use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{
    Hook, HookError, Manager, Metrics, Object, Pool as Deadpool, PoolError, RecycleResult,
};
use diesel_async::AsyncMysqlConnection;

use super::connect::connect_to;
use super::hosts::HostNo;
use crate::connection::{ServerUrl, SessionKind, Wanted, transaction};
use crate::model::{Error, Fault, Result};

/// How long a caller waits for a free connection.
const WAIT_DEADLINE: Duration = Duration::from_secs(10);

/// A connection that was idle for longer is closed instead of used. The server closes it after
/// twice this time: a transaction whose client has vanished must not hold its rows for hours
/// (history H10).
const IDLE: Duration = Duration::from_secs(15);

/// A pool of connections for work that depends on no connection id: enqueueing, administration.
#[derive(Clone)]
pub struct Pool {
    pool: Deadpool<Opener>,
    url: ServerUrl,
    deadline: Duration,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Pool {
    /// Creates a pool of at most `size` connections whose calls each take at most `deadline`. Opens
    /// nothing yet.
    ///
    /// # Errors
    /// [`Error::Connect`] if the pool cannot be built.
    pub fn new(url: ServerUrl, size: usize, deadline: Duration) -> Result<Self> {
        Self::leased(url, size, deadline, IDLE * 2)
    }

    /// As [`new`](Self::new). The server drops its connections after `lease` of silence, even in
    /// the middle of a transaction. A connection that was idle for half of `lease` is closed
    /// instead of used.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn leased(
        url: ServerUrl,
        size: usize,
        deadline: Duration,
        lease: Duration,
    ) -> Result<Self> {
        let opener = Opener { url: url.clone(), kind: SessionKind::Leased(lease) };
        let idle = lease / 2;
        let pool = Deadpool::builder(opener)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT_DEADLINE))
            .pre_recycle(Hook::sync_fn(move |_, used| {
                if used.last_used() > idle { Err(HookError::message("idle")) } else { Ok(()) }
            }))
            .build()
            .map_err(|error| Error::Connect {
                server: url.server(),
                reason: error.to_string(),
                fault: Fault::Other,
            })?;
        Ok(Self { pool, url, deadline })
    }

    /// Where the pool connects to.
    #[must_use]
    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    /// Runs `work` on a pooled connection, within the deadline.
    ///
    /// # Errors
    /// What `work` returns; [`Error::Connect`]; [`Error::Deadline`].
    pub async fn call<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnOnce(&mut AsyncMysqlConnection) -> Result<T>,
    ) -> Result<T> {
        let mut conn = self.check_out().await?;
        let object = conn.object();
        match tokio::time::timeout(self.deadline, work(&mut object.conn)).await {
            Ok(result) => {
                if !matches!(&result, Err(error) if error.fault().ends_connection()) {
                    conn.trust();
                }
                result
            }
            Err(_) => {
                self.url.hosts().distrust(object.host);
                Err(Error::Deadline { operation, deadline: self.deadline })
            }
        }
    }

    /// Runs `work` as one transaction, retried whole on a deadlock or lock wait.
    ///
    /// # Errors
    /// As [`transaction()`] and [`Pool::call`].
    pub async fn transaction<T>(
        &self,
        operation: &'static str,
        work: impl AsyncFnMut(&mut AsyncMysqlConnection) -> Result<T>,
    ) -> Result<T> {
        let call = self.call(operation, async |conn| transaction(conn, operation, work).await);
        match call.await {
            Err(Error::Deadline { .. }) => {
                let message = format!("no answer within {} ms", self.deadline.as_millis());
                Err(Error::UnknownOutcome { operation, message })
            }
            other => other,
        }
    }

    /// Returns a connection for work of more than one call; the caller bounds each call.
    pub(crate) async fn check_out(&self) -> Result<CheckedOut> {
        self.pool
            .get()
            .await
            .map(|object| CheckedOut(Some(object)))
            .map_err(|error| self.refused(error))
    }

    /// Closes the connections that are not in use.
    pub(crate) fn close_idle(&self) {
        self.pool.retain(|_, _| false);
    }

    fn refused(&self, error: PoolError<Error>) -> Error {
        let (reason, fault) = match error {
            PoolError::Backend(error) => return error,
            PoolError::Timeout(_) => {
                ("every connection of the pool is in use".to_owned(), Fault::Busy)
            }
            other => (other.to_string(), Fault::Gone),
        };
        Error::Connect { server: self.url.server(), reason, fault }
    }
}

/// Opens the pool's connections.
struct Opener {
    url: ServerUrl,
    kind: SessionKind,
}

/// A pooled connection, and the host it leads to.
struct Pooled {
    conn: AsyncMysqlConnection,
    host: HostNo,
}

impl Manager for Opener {
    type Type = Pooled;
    type Error = Error;

    async fn create(&self) -> Result<Pooled> {
        let (conn, host) = connect_to(&self.url, self.kind, Wanted::Writer).await?;
        Ok(Pooled { conn, host })
    }

    /// A connection comes back only after a call that completed. A check at checkout would cost a
    /// round trip, and find nothing that `call` does not.
    async fn recycle(&self, _: &mut Pooled, _: &Metrics) -> RecycleResult<Error> {
        Ok(())
    }
}

/// A pooled connection. It goes back to the pool only when trusted again; otherwise it is closed.
pub struct CheckedOut(Option<Object<Opener>>);

impl CheckedOut {
    pub(crate) fn conn(&mut self) -> &mut AsyncMysqlConnection {
        &mut self.object().conn
    }

    fn object(&mut self) -> &mut Pooled {
        let Some(object) = self.0.as_mut() else { unreachable!("there until it is trusted") };
        object
    }

    pub(crate) fn trust(mut self) {
        drop(self.0.take());
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}
