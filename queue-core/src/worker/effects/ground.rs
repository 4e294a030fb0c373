//! Where the connections of transactional runs come from, and how a transaction is begun and ended
//! on them.

use std::future::Future;

use diesel_async::{
    AnsiTransactionManager, AsyncMysqlConnection, SimpleAsyncConnection, TransactionManager,
};

use crate::chance;
use crate::connection::{CheckedOut, Connection, Pool};
use crate::model::{Error, Result};
use crate::store::echo::echo;

const OPERATION: &str = "run in a transaction";

/// With autocommit off, what a handler writes after a deadlock that it ignored is rolled back too.
/// The savepoint goes when the transaction ends, whoever ends it.
const BEGIN: &str = "SET autocommit = 0; BEGIN; SAVEPOINT queue_run";

/// Fails if the transaction is not the one that was begun.
const STILL_OPEN: &str = "RELEASE SAVEPOINT queue_run";

/// What both servers say then.
const NOT_OPEN: &str = "SAVEPOINT queue_run does not exist";

/// What a handler has left of the transaction that was begun for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxState {
    /// It is open.
    Open,
    /// It has been ended, and maybe another one begun.
    Ended,
    /// A query or a nested transaction was dropped half-way: what the server is heard to say next
    /// may be the answer to another question.
    Unfinished,
}

/// Where connections come from: a pool, or a simulation.
pub trait Ground: Send + Sync {
    /// What holds one.
    type Held: Held;

    /// A connection.
    fn check_out(&self) -> impl Future<Output = Result<Self::Held>> + Send;

    /// The server of one has gone or takes no writes any more: the next are to be new ones.
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

    /// What is left of the transaction; asked once.
    fn state(&mut self) -> impl Future<Output = Result<TxState>> + Send;

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

    fn close_idle(&self) {
        Self::close_idle(self);
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

    async fn state(&mut self) -> Result<TxState> {
        match named(SimpleAsyncConnection::batch_execute(Self::conn(self), STILL_OPEN).await) {
            Ok(()) => {}
            Err(error) if error.to_string().contains(NOT_OPEN) => return Ok(TxState::Ended),
            Err(error) => return Err(error),
        }
        // The server may have said so to another statement: each query that was dropped half-way
        // shifts all replies after it by one, and a number that nobody could guess shows it.
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

/// Whether the connection is broken, rather than one with replies that nobody has read.
fn is_broken(text: &str) -> bool {
    let parts = ["closed", "Input/output", "killed", "shutdown", "disconnected by"];
    parts.iter().any(|part| text.contains(part)) && !text.contains("parse")
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
