//! The source of the connections of transactional runs, and how a transaction begins and ends on
//! them.

use std::future::Future;

use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager,
};

use crate::chance;
use crate::connection::{CheckedOut, Connection, Pool};
use crate::model::{Error, Result};
use crate::store::echo::echo;

const OPERATION: &str = "run in a transaction";

/// With autocommit off, a handler's writes after a deadlock that it ignored are rolled back too.
/// The savepoint disappears when the transaction ends, however it ends.
const BEGIN: &str = "SET autocommit = 0; BEGIN; SAVEPOINT queue_run";

/// Fails if the open transaction is not the one that was begun.
const STILL_OPEN: &str = "RELEASE SAVEPOINT queue_run";

/// The error of both servers in that case.
const NOT_OPEN: &str = "SAVEPOINT queue_run does not exist";

/// The state in which a handler has left its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxState {
    /// It is open.
    Open,
    /// It has ended, and another one may have begun.
    Ended,
    /// A query or a nested transaction was dropped half-way: the server's next reply may answer an
    /// earlier question.
    Unfinished,
}

/// Where connections come from: a pool, or a simulation.
pub trait Ground: Send + Sync {
    /// The guard of a connection.
    type Held: Held;

    /// Returns a connection.
    fn check_out(&self) -> impl Future<Output = Result<Self::Held>> + Send;

    /// Closes idle connections, because the server of one has gone or takes no writes any more: the
    /// next ones must be new.
    fn close_idle(&self);
}

/// A connection that is closed, so that the server rolls back, unless it is trusted.
pub trait Held: Send {
    /// Its connection.
    type Conn: Connection;

    /// The connection.
    fn conn(&mut self) -> &mut Self::Conn;

    /// Begins a transaction.
    fn begin(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Returns the state of the transaction; asked once.
    fn state(&mut self) -> impl Future<Output = Result<TxState>> + Send;

    /// Commits it.
    fn commit(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Rolls it back.
    fn roll_back(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Lets it be used again.
    fn trust(self);
}

impl Ground for Pool {
    type Held = CheckedOut;

    fn check_out(&self) -> impl Future<Output = Result<CheckedOut>> + Send {
        Self::check_out(self)
    }

    fn close_idle(&self) {
        Self::close_idle(self);
    }
}

/// Uses diesel's own bookkeeping, so that a nested `transaction()` is a savepoint and not a second
/// BEGIN, which would commit.
impl Held for CheckedOut {
    type Conn = AsyncMysqlConnection;

    fn conn(&mut self) -> &mut AsyncMysqlConnection {
        Self::conn(self)
    }

    async fn begin(&mut self) -> Result<()> {
        named(AnsiTransactionManager::begin_transaction_sql(Self::conn(self), BEGIN).await)
    }

    async fn state(&mut self) -> Result<TxState> {
        match named(SimpleAsyncConnection::batch_execute(Self::conn(self), STILL_OPEN).await) {
            Ok(()) => {}
            Err(error) if error.to_string().contains(NOT_OPEN) => return Ok(TxState::Ended),
            Err(error) => return Err(error),
        }
        // The reply may belong to another statement: each query that was dropped half-way shifts
        // all later replies by one. A number that cannot be guessed reveals it.
        let nonce = chance::number();
        match echo(Self::conn(self), nonce).await {
            Ok(said) if said == Some(nonce) && depth(Self::conn(self)) == Some(1) => {
                Ok(TxState::Open)
            }
            Err(error) if is_broken(&error.to_string()) => Err(error),
            Ok(_) | Err(_) => Ok(TxState::Unfinished),
        }
    }

    async fn commit(&mut self) -> Result<()> {
        named(AnsiTransactionManager::commit_transaction(Self::conn(self)).await)
    }

    async fn roll_back(&mut self) -> Result<()> {
        // If a handler has left a nested one open, closing ends both.
        if depth(Self::conn(self)) != Some(1) {
            return Ok(());
        }
        named(AnsiTransactionManager::rollback_transaction(Self::conn(self)).await)
    }

    fn trust(self) {
        Self::trust(self);
    }
}

/// Whether the connection is broken, rather than one with unread replies.
fn is_broken(text: &str) -> bool {
    let parts = ["closed", "Input/output", "killed", "shutdown", "disconnected by"];
    parts.iter().any(|part| text.contains(part)) && !text.contains("parse")
}

/// How many nested transactions diesel counts as open.
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
    /// The server drops them after this silence.
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

    fn close_idle(&self) {}
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

    async fn state(&mut self) -> Result<TxState> {
        Ok(TxState::Open)
    }

    async fn commit(&mut self) -> Result<()> {
        named(self.batch("COMMIT").await)
    }

    async fn roll_back(&mut self) -> Result<()> {
        named(self.batch("ROLLBACK").await)
    }

    fn trust(self) {}
}
