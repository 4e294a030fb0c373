//! The user's interface: handlers, and the error values by which they decide how a message is
//! settled.

mod decision;
mod tx;

pub(crate) use self::decision::CANCELLED;
pub use self::decision::settlement_for;
pub use self::tx::{BatchTxHandler, RawTxHandler, TxHandler};

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoints;
use crate::model::{BoxError, Checkpoint, Delivery, Saved, TopicName, TraceParent};

/// What a handler gets besides the payload.
#[derive(Debug, Clone)]
pub struct Context {
    /// The topic.
    pub topic: TopicName,
    /// The message: its id, delivery number, failures so far, headers, keys and bytes.
    pub delivery: Arc<Delivery>,
    /// Cancelled when the run should stop: its time is up, the consumer is stopping at once, the
    /// claim may soon pass to another worker, or the message is being cancelled. An unfinished
    /// message runs again later, unless it was cancelled.
    pub cancelled: CancellationToken,
    /// When the run's time is up; `None`: it has no time limit.
    pub deadline: Option<Instant>,
    /// The run's checkpoints.
    pub checkpoints: Checkpoints,
}

impl Context {
    /// The span of this delivery in the distributed trace that its message is part of, a child of
    /// its producer's span: pass it on to the services that the handler calls. It is the same for
    /// every call, and another for the next delivery. `None` if the message has no valid header
    /// `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.delivery.traceparent()
    }

    /// Saves how far the handler has come, at once and by itself, even in a transactional run,
    /// which may be rolled back later. A later delivery (after a crash, say) gets it by
    /// [`last_checkpoint`](Self::last_checkpoint). It is deleted when the message is acked or
    /// discarded.
    ///
    /// # Errors
    /// [`Error::ClaimLost`](crate::Error::ClaimLost) if the claim was taken back: stop then;
    /// [`Error::InvalidCheckpoint`](crate::Error::InvalidCheckpoint) if it is too
    /// large, or the message is of a stream; a database failure.
    pub async fn checkpoint(&self, checkpoint: Checkpoint) -> crate::Result<()> {
        self.checkpoints.save(&self.delivery, checkpoint).await
    }

    /// Returns the last checkpoint of this message, whichever delivery saved it.
    ///
    /// # Errors
    /// [`Error::InvalidCheckpoint`](crate::Error::InvalidCheckpoint) for a message of a stream; a
    /// database failure.
    pub async fn last_checkpoint(&self) -> crate::Result<Option<Saved>> {
        self.checkpoints.last(&self.delivery).await
    }
}

/// Handles the messages of one topic.
///
/// The body is decoded from JSON; a body that cannot be decoded is dead-lettered with the reason.
/// For other encodings, implement [`RawHandler`], which gets the [`Delivery`] instead of a payload.
pub trait Handler: Send + Sync + 'static {
    /// The content of the body.
    type Payload: DeserializeOwned + Send;

    /// Handles one message. `Ok` acks it; the error decides otherwise (`?` means retry).
    fn handle(
        &self,
        context: &Context,
        payload: Self::Payload,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// Handles the messages of one topic as bytes.
pub trait RawHandler: Send + Sync + 'static {
    /// Handles one message. `Ok` acks it; the error decides otherwise (`?` means retry).
    fn handle(&self, context: &Context) -> impl Future<Output = Result<(), HandlerError>> + Send;
}

/// One handler for several topics.
impl<H: RawHandler> RawHandler for Arc<H> {
    fn handle(&self, context: &Context) -> impl Future<Output = Result<(), HandlerError>> + Send {
        H::handle(self, context)
    }
}

/// Handles up to a batch of messages at once.
pub trait BatchHandler: Send + Sync + 'static {
    /// The content of each body.
    type Payload: DeserializeOwned + Send;

    /// Handles the messages. Returns one verdict for each, in the same order. A missing verdict is
    /// a failure of that message.
    fn handle(
        &self,
        batch: Vec<(Context, Self::Payload)>,
    ) -> impl Future<Output = Vec<Result<(), HandlerError>>> + Send;
}

/// Handles up to a batch of messages at once, as bytes.
pub trait RawBatchHandler: Send + Sync + 'static {
    /// Handles the messages, which are in the order of their claim. Returns one verdict for each,
    /// in the same order. A missing verdict is a failure of that message.
    fn handle(
        &self,
        batch: &[Context],
    ) -> impl Future<Output = Vec<Result<(), HandlerError>>> + Send;
}

/// Why a handler did not handle a message. This decides how it is settled.
///
/// It is no `std::error::Error` itself, so that `?` turns every error into [`HandlerError::Retry`].
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// Try again after the topic's backoff; counts as a failure.
    Retry(BoxError),
    /// Try again after this time; counts as a failure.
    RetryAfter(Duration, BoxError),
    /// Try again at this server time, or at once if it has passed; counts as a failure.
    RetryAt(DateTime<Utc>, BoxError),
    /// Not yet, and not the message's fault: comes back after this time, and nothing is charged.
    Snooze(Duration),
    /// Never try again: becomes a dead letter.
    Dead(BoxError),
    /// Not worth handling: acked and counted, and the reason is kept.
    Discard(String),
    /// Not now, and not the message's fault: given back untouched, and nothing is charged.
    Release,
}

impl HandlerError {
    /// Try again after the topic's backoff, for errors that `?` cannot convert (text, boxes,
    /// anyhow).
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// Never try again: becomes a dead letter.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// Not worth handling: acked and counted, and the reason is kept.
    pub fn discard(reason: impl Into<String>) -> Self {
        Self::Discard(reason.into())
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Retry(Box::new(error))
    }
}

/// Turns the error of any `Result` into a decision: `parse(x).or_dead()?`.
pub trait Decide<T> {
    /// An error means: never try again.
    ///
    /// # Errors
    /// [`HandlerError::Dead`].
    fn or_dead(self) -> Result<T, HandlerError>;

    /// An error means: try again after `delay`.
    ///
    /// # Errors
    /// [`HandlerError::RetryAfter`].
    fn or_retry_after(self, delay: Duration) -> Result<T, HandlerError>;

    /// An error means: try again at `time`, by the server's clock.
    ///
    /// # Errors
    /// [`HandlerError::RetryAt`].
    fn or_retry_at(self, time: DateTime<Utc>) -> Result<T, HandlerError>;
}

impl<T, E: Into<BoxError>> Decide<T> for Result<T, E> {
    fn or_dead(self) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::Dead(error.into()))
    }

    fn or_retry_after(self, delay: Duration) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::RetryAfter(delay, error.into()))
    }

    fn or_retry_at(self, time: DateTime<Utc>) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::RetryAt(time, error.into()))
    }
}

/// How a run ended.
#[derive(Debug)]
pub enum RunOutcome {
    /// The handler returned.
    Returned(Result<(), HandlerError>),
    /// The handler panicked with this message.
    Panicked(String),
    /// The run's time was up.
    TimedOut(Duration),
    /// The body could not be decoded.
    Undecodable(String),
    /// A transactional handler ended its transaction: its effects cannot be undone, so it must not
    /// run again.
    EndedTransaction,
    /// The handler was not run: another message with this biz id had been handled.
    Repeated,
    /// The consumer stopped before the handler finished, or before it began.
    Interrupted,
    /// The message had expired before the handler began.
    Expired,
    /// The message was cancelled, before the handler began or before it finished.
    Cancelled,
}

impl RunOutcome {
    /// The outcome of a run that ended with this panic.
    #[must_use]
    pub fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panicked(text.unwrap_or_else(|| "with something that is no text".to_owned()))
    }

    /// The label for metrics and logs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Returned(Ok(())) => "ok",
            Self::Returned(Err(_)) | Self::EndedTransaction => "error",
            Self::Panicked(_) => "panic",
            Self::TimedOut(_) => "timeout",
            Self::Undecodable(_) => "undecodable",
            Self::Repeated => "repeated",
            Self::Interrupted => "interrupted",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}
