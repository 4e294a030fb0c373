//! Handlers whose effects are in the queue's own server: the effects commit with the ack, or not at
//! all.

use std::future::Future;

use diesel_async::AsyncMysqlConnection;
use serde::de::DeserializeOwned;

use super::{Context, HandlerError};

/// Handles the messages of one topic in a transaction: its writes, its enqueues and the ack commit
/// together, so that the effects happen exactly once.
///
/// `tx` is open when the handler gets it and is committed when the handler returns `Ok`; anything
/// else rolls it back. All of diesel-async works on it, including your own functions that take an
/// `&mut AsyncMysqlConnection`, and [`enqueue`](crate::enqueue()) for follow-ups. A nested
/// `tx.transaction(…)` is a savepoint. It reads the database as READ COMMITTED.
///
/// * **Never end it yourself.** A `BEGIN`, `COMMIT` or `ROLLBACK` as SQL, or another statement that
///   commits implicitly (`CREATE TABLE`, `ALTER TABLE`, …), is detected when the handler returns or
///   fails, and the message (of a batch, every one) is dead-lettered with that reason: its effects
///   cannot be undone.
/// * **It may run more than once in a delivery.** After a deadlock, a lock wait or a commit that is
///   known not to have happened, everything is rolled back and the handler runs again, at most five
///   times; a batch five times as a whole, and then each of its messages five times by itself.
///   After a lost connection or a switchover it runs again twice at most. A deadlock is recognized
///   by its text: keep the database's error as the source of yours. Effects elsewhere (mails, other
///   servers) are not rolled back: enqueue a message for them.
/// * **Await each query to its end.** A query that is dropped half-way, by a timeout or a select,
///   leaves a reply that would be taken for the next query's. This is detected, and the message
///   fails.
/// * **Do not keep it waiting.** It holds row locks, so the server drops its connection after a
///   lease (10 s) without a statement. When this happens for the third time, the message fails, and
///   nothing is kept.
pub trait TxHandler: Send + Sync + 'static {
    /// The content of the body.
    type Payload: DeserializeOwned + Send;

    /// Handles one message. `Ok` commits and acks it; the error rolls back and decides otherwise
    /// (`?` means retry).
    fn handle(
        &self,
        context: &Context,
        payload: Self::Payload,
        tx: &mut AsyncMysqlConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Handles the messages of one topic as bytes, each in a transaction; see [`TxHandler`].
pub trait RawTxHandler: Send + Sync + 'static {
    /// Handles one message. `Ok` commits and acks it; the error rolls back and decides otherwise
    /// (`?` means retry).
    fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Handles up to a batch of messages in one transaction; see [`TxHandler`].
///
/// All of them commit together. If the handler fails, each message is handled alone in a batch of
/// one, so that the error is charged to the message that caused it.
pub trait BatchTxHandler: Send + Sync + 'static {
    /// The content of each body.
    type Payload: DeserializeOwned + Send;

    /// Handles the messages. `Ok` commits and acks all of them; the error rolls all of them back.
    fn handle(
        &self,
        batch: Vec<(Context, Self::Payload)>,
        tx: &mut AsyncMysqlConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}
