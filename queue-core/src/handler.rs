//! What users write: handlers, and the error values by which they decide what becomes of a message.

mod decision;
mod tx;

pub(crate) use self::decision::CANCELLED;
pub use self::decision::settlement_for;
pub use self::tx::{BatchTxHandler, RawTxHandler, TxHandler};

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::checkpoint::Checkpoints;
use crate::model::{BoxError, Checkpoint, Delivery, Saved, TopicName, TraceParent};

/// What a handler knows beside the payload.
#[derive(Debug, Clone)]
pub struct Context {
    /// The topic.
    pub topic: TopicName,
    /// The message: its id, delivery number, failures so far, headers, keys and bytes.
    pub delivery: Arc<Delivery>,
    /// Cancelled when the run should stop: its time is up, the consumer is stopping at once, the
    /// claim may soon be somebody else's, or somebody cancels the message. What is not finished
    /// then will run again, but for a message that was cancelled.
    pub cancelled: CancellationToken,
    /// When the run's time is up; `None`: it has all the time it needs.
    pub deadline: Option<Instant>,
    /// Where the run keeps its checkpoints.
    pub checkpoints: Checkpoints,
}

impl Context {
    /// The span of this delivery in the distributed trace that its message is part of, a child of
    /// its producer's: to be passed on to whatever the handler calls. The same for every call;
    /// another for the next delivery. `None` if the message has no valid header `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.delivery.traceparent()
    }

    /// Saves how far the handler has come, at once and by itself: also of a transactional run,
    /// which may be rolled back later. A delivery that follows, after a crash, say, goes on
    /// [from there](Self::last_checkpoint). It is forgotten when the message is acked or discarded.
    ///
    /// # Errors
    /// [`Error::ClaimLost`](crate::Error::ClaimLost) if the claim was taken back: stop then;
    /// [`Error::InvalidCheckpoint`](crate::Error::InvalidCheckpoint) if it is too
    /// large, or the message is of a stream; a database failure.
    pub async fn checkpoint(&self, checkpoint: Checkpoint) -> crate::Result<()> {
        self.checkpoints.save(&self.delivery, checkpoint).await
    }

    /// The last checkpoint of this message, whichever delivery saved it.
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
/// Use [`Delivery`] as the payload type's stand-in through [`RawHandler`] for other encodings.
pub trait Handler: Send + Sync + 'static {
    /// What the body holds.
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

/// Handles up to a batch of messages at once.
pub trait BatchHandler: Send + Sync + 'static {
    /// What each body holds.
    type Payload: DeserializeOwned + Send;

    /// Handles the messages; one verdict for each, in the same order. A missing verdict is a
    /// failure of that message.
    fn handle(
        &self,
        batch: Vec<(Context, Self::Payload)>,
    ) -> impl Future<Output = Vec<Result<(), HandlerError>>> + Send;
}

/// Handles up to a batch of messages at once, as bytes.
pub trait RawBatchHandler: Send + Sync + 'static {
    /// Handles the messages, which are in the order of their claim; one verdict for each, in the
    /// same order. A missing verdict is a failure of that message.
    fn handle(
        &self,
        batch: &[Context],
    ) -> impl Future<Output = Vec<Result<(), HandlerError>>> + Send;
}

/// Why a handler did not handle a message, which decides what becomes of it.
///
/// It is no `std::error::Error` itself, so that `?` turns every error into [`HandlerError::Retry`].
#[derive(Debug)]
#[non_exhaustive]
pub enum HandlerError {
    /// Try again after the topic's backoff; counts as a failure.
    Retry(BoxError),
    /// Try again after this time; counts as a failure.
    RetryAfter(Duration, BoxError),
    /// Try again at this time of the server's, or at once if it is over; counts as a failure.
    RetryAt(DateTime<Utc>, BoxError),
    /// Not yet, and not the message's fault: comes back after this time, nothing charged.
    Snooze(Duration),
    /// Never try again: to the dead letters.
    Dead(BoxError),
    /// Not worth handling: acked and counted, and the reason kept.
    Discard(String),
    /// Not now, and not the message's fault: goes back untouched, nothing charged.
    Release,
}

impl HandlerError {
    /// Try again after the topic's backoff, for errors that `?` cannot turn (text, boxes, anyhow).
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// Never try again: to the dead letters.
    pub fn dead(error: impl Into<BoxError>) -> Self {
        Self::Dead(error.into())
    }

    /// Not worth handling: acked and counted, and the reason kept.
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
    /// A transactional handler ended its transaction: what it did cannot be taken back, so that
    /// nothing may run it again.
    EndedTransaction,
    /// The handler was not run: another message with this biz id had been handled.
    Repeated,
    /// The consumer stopped before the handler was through, or before it began.
    Interrupted,
    /// The message's time had run out before the handler began.
    Expired,
    /// Somebody cancelled the message, before the handler began or so that it did not get through.
    Cancelled,
}

impl RunOutcome {
    /// The word for metrics and logs.
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
