//! Where the connections of transactional runs come from, and how a transaction is begun and ended
//! on them.

use std::future::Future;

use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager,
};

use crate::connection::{CheckedOut, Connection, Pool};
use crate::error::{Error, Result};

const OPERATION: &str = "run in a transaction";

/// With autocommit off, what a handler writes after a deadlock that it ignored is rolled back too.
/// The savepoint goes when the transaction ends, whoever ends it.
const BEGIN: &str = "SET autocommit = 0; BEGIN; SAVEPOINT queue_run";

/// Fails if the transaction is not the one that was begun.
const STILL_OPEN: &str = "RELEASE SAVEPOINT queue_run";

/// Where connections come from: a pool, or a simulation.
pub trait Ground: Send + Sync {
    /// What holds one.
    type Held: Held;

    /// A connection.
    fn check_out(&self) -> impl Future<Output = Result<Self::Held>> + Send;
}

/// A connection that is closed, so that the server rolls back, unless it is trusted.
pub trait Held: Send {
    /// Its connection.
    type Conn: Connection;

    /// The connection.
    fn conn(&mut self) -> &mut Self::Conn;

    /// Begins a transaction.
    fn begin(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Whether it is still the transaction that was begun; asked once.
    fn is_open(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// Commits it.
    fn commit(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Rolls it back.
    fn roll_back(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// It may be used again.
    fn trust(self);
}

impl Ground for Pool {
    type Held = CheckedOut;

    fn check_out(&self) -> impl Future<Output = Result<CheckedOut>> + Send {
        Self::check_out(self)
    }
}

/// By diesel's own bookkeeping, so that a `transaction()` within is a savepoint and not a second
/// BEGIN, which would commit.
impl Held for CheckedOut {
    type Conn = AsyncMysqlConnection;

    fn conn(&mut self) -> &mut AsyncMysqlConnection {
        Self::conn(self)
    }

    async fn begin(&mut self) -> Result<()> {
        named(AnsiTransactionManager::begin_transaction_sql(Self::conn(self), BEGIN).await)
    }

    async fn is_open(&mut self) -> Result<bool> {
        if depth(Self::conn(self)) != Some(1) {
            return Ok(false);
        }
        match named(SimpleAsyncConnection::batch_execute(Self::conn(self), STILL_OPEN).await) {
            Ok(()) => Ok(true),
            Err(error) if error.to_string().contains("does not exist") => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn commit(&mut self) -> Result<()> {
        named(AnsiTransactionManager::commit_transaction(Self::conn(self)).await)
    }

    async fn roll_back(&mut self) -> Result<()> {
        // One that a handler has left open within: closing ends both.
        if depth(Self::conn(self)) != Some(1) {
            return Ok(());
        }
        named(AnsiTransactionManager::rollback_transaction(Self::conn(self)).await)
    }

    fn trust(self) {
        Self::trust(self);
    }
}

/// How many transactions diesel knows to be open, one within the other.
fn depth(conn: &mut AsyncMysqlConnection) -> Option<u32> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    status.transaction_depth().ok().flatten().map(u32::from)
}

fn named(result: diesel::QueryResult<()>) -> Result<()> {
    result.map_err(|error| Error::database(OPERATION, &error))
}

/// Connections to the model of the server, each used once.
#[cfg(feature = "simulation")]
#[derive(Debug)]
pub struct Links {
    /// The server.
    pub url: crate::connection::ServerUrl,
    /// After this silence the server drops them.
    pub lease: std::time::Duration,
}

#[cfg(feature = "simulation")]
impl Ground for Links {
    type Held = crate::connection::Link;

    async fn check_out(&self) -> Result<Self::Held> {
        use crate::connection::{Link, SessionKind, Wanted};
        let (link, _) =
            Link::open(&self.url, SessionKind::Leased(self.lease), Wanted::Writer).await?;
        Ok(link)
    }
}

#[cfg(feature = "simulation")]
impl Held for crate::connection::Link {
    type Conn = Self;

    fn conn(&mut self) -> &mut Self {
        self
    }

    async fn begin(&mut self) -> Result<()> {
        named(self.batch("BEGIN").await)
    }

    async fn is_open(&mut self) -> Result<bool> {
        Ok(true)
    }

    async fn commit(&mut self) -> Result<()> {
        named(self.batch("COMMIT").await)
    }

    async fn roll_back(&mut self) -> Result<()> {
        named(self.batch("ROLLBACK").await)
    }

    fn trust(self) {}
}
