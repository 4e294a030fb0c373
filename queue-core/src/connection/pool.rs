use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Hook, HookError};
use diesel_async::AsyncMysqlConnection;
use diesel_async::pooled_connection::deadpool::{Object, Pool as Deadpool, PoolError};
use diesel_async::pooled_connection::{
    AsyncDieselConnectionManager, ManagerConfig, PoolError as SetupError, RecyclingMethod,
};
use futures_util::FutureExt;

use crate::connection::{ServerUrl, SessionKind, connect, transaction};
use crate::error::{Error, Fault, Result};

/// How long a caller waits for a free connection.
const WAIT_DEADLINE: Duration = Duration::from_secs(10);

/// A connection idle for longer is closed instead of used. The server closes it after twice this
/// time: a transaction whose client has vanished must not hold its rows for hours (history H10).
const IDLE: Duration = Duration::from_secs(15);

/// A pool of connections for work that is bound to no connection id: enqueueing, administration.
#[derive(Clone)]
pub struct Pool {
    pool: Deadpool<AsyncMysqlConnection>,
    url: ServerUrl,
    deadline: Duration,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of at most `size` connections whose calls each take at most `deadline`. Nothing is
    /// opened yet.
    ///
    /// # Errors
    /// [`Error::Connect`] if the pool cannot be built.
    pub fn new(url: ServerUrl, size: usize, deadline: Duration) -> Result<Self> {
        let mut config = ManagerConfig::default();
        // A connection comes back only after a call that ran to its end, so the check on checkout
        // (a round trip) finds nothing that `call` does not.
        config.recycling_method = RecyclingMethod::Fast;
        let target = url.clone();
        config.custom_setup = Box::new(move |_| {
            let target = target.clone();
            async move {
                connect(&target, SessionKind::Leased(IDLE * 2))
                    .await
                    .map_err(|error| diesel::ConnectionError::BadConnection(error.to_string()))
            }
            .boxed()
        });
        let manager = AsyncDieselConnectionManager::new_with_config(url.server(), config);
        let pool = Deadpool::builder(manager)
            .max_size(size)
            .runtime(Runtime::Tokio1)
            .wait_timeout(Some(WAIT_DEADLINE))
            .pre_recycle(Hook::sync_fn(|_, used| {
                if used.last_used() > IDLE { Err(HookError::message("idle")) } else { Ok(()) }
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
        let mut conn = Doubtful(Some(self.pool.get().await.map_err(|error| self.refused(error))?));
        let Some(object) = conn.0.as_mut() else { unreachable!("just put there") };
        match tokio::time::timeout(self.deadline, work(object)).await {
            Ok(result) => {
                if !matches!(&result, Err(error) if error.fault().ends_connection()) {
                    conn.trust();
                }
                result
            }
            Err(_) => Err(Error::Deadline { operation, deadline: self.deadline }),
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

    fn refused(&self, error: PoolError) -> Error {
        let (reason, fault) = match error {
            PoolError::Backend(SetupError::ConnectionError(
                diesel::ConnectionError::BadConnection(text),
            )) => {
                let fault = Fault::of_text(&text);
                let plain =
                    text.strip_prefix(&format!("Cannot connect to {}: ", self.url.server()));
                let plain = plain.unwrap_or(&text).trim_end_matches('.').to_owned();
                (plain, if fault == Fault::Other { Fault::Gone } else { fault })
            }
            PoolError::Timeout(_) => {
                ("every connection of the pool is in use".to_owned(), Fault::Busy)
            }
            other => (other.to_string(), Fault::Gone),
        };
        Error::Connect { server: self.url.server(), reason, fault }
    }
}

/// A pooled connection that goes back to the pool only when trusted again; otherwise it is closed.
struct Doubtful(Option<Object<AsyncMysqlConnection>>);

impl Doubtful {
    fn trust(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Doubtful {
    fn drop(&mut self) {
        if let Some(object) = self.0.take() {
            drop(Object::take(object));
        }
    }
}
