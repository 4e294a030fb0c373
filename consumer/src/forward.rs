//! Forwards a topic to another system: [`Stdout`], a [`Webhook`], a [`RedisStream`].
//!
//! A claimed batch is sent in the order of its claim, in parts of at most 1 MiB (a larger message
//! goes alone), and acked when the receiver has confirmed it. What was sent but not confirmed is
//! sent again, so a message arrives at least once, each time with the same message id. One forward
//! with one batch in flight keeps the order of the topic; messages that were delayed, retried or
//! taken back from a forward that died come later.
//!
//! * If a receiver accepts nothing (gone, too slow, busy, not configured), the forward waits for
//!   it, 1 s to 30 s between tries, or as long as it asks. Nothing is charged, and no message
//!   overtakes.
//! * If a batch is refused for its contents, it is halved until the bad message is alone. That
//!   message is dead-lettered, or retried by the topic's policy if the refusal may pass. The others
//!   go on.
//! * If a receiver can never accept anything again, as a closed pipe, the forward ends and releases
//!   what was not confirmed.
//!
//! While a batch waits, its claim lives as long as the forward does: an outage of the receiver is
//! never charged to the messages of that batch. A forward that is stopped releases a waiting batch
//! at once.

mod redis;
mod stdout;
mod webhook;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rowmq_core::handler::{Context, HandlerError, RawBatchHandler};
use rowmq_core::model::{BoxError, RetryPolicy};
use rowmq_core::telemetry;
use rowmq_service::signals::Shutdown;

pub use self::redis::{RedisStream, RedisStreamError, RedisStreamOptions};
pub use self::stdout::Stdout;
pub use self::webhook::Webhook;

/// The most bytes of bodies in one part: a receiver holds a part in memory.
const PART_BYTES: usize = 1 << 20;

/// The waits between tries of a receiver that accepts nothing.
const BACKOFF: RetryPolicy =
    RetryPolicy::Exponential { base: Duration::from_secs(1), cap: Duration::from_secs(30) };

/// A waiting batch is given back this long before the topic's time limit for a run, or a tenth of
/// the time left if that is less.
const MARGIN: Duration = Duration::from_millis(500);

/// A system that messages are forwarded to.
pub trait Destination: Send + Sync + 'static {
    /// Its name in logs, without a password.
    fn name(&self) -> &str;

    /// Sends the messages in order, and returns when the receiver has confirmed all of them. The
    /// future must hold no connection to the queue's database: it is dropped when the forward stops
    /// at once.
    fn send(&self, part: &[Context]) -> impl Future<Output = Result<(), NotTaken>> + Send;
}

/// Why a receiver did not confirm messages.
#[derive(Debug)]
pub enum NotTaken {
    /// It accepts nothing now, and may ask for a pause of this length.
    Unready(BoxError, Option<Duration>),
    /// It refuses the contents: dead-lettered if `dead`, else retried.
    Refused {
        /// What the receiver said.
        error: BoxError,
        /// Whether it will always refuse them.
        dead: bool,
    },
    /// It can never accept anything again.
    Closed(BoxError),
}

/// Why a forward has ended by itself, once it has.
#[derive(Debug, Clone, Default)]
pub struct Ended(Arc<OnceLock<String>>);

impl Ended {
    /// Returns the reason as a sentence; `None` while the forward runs, or if it was asked to stop.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Sends batches to a destination.
#[derive(Debug)]
pub struct Forward<D> {
    destination: D,
    shutdown: Shutdown,
    ended: Ended,
    /// Kept between batches: a batch that is given back while it waits is claimed again at once.
    unready: Mutex<Unready>,
}

/// A receiver that accepts nothing now.
#[derive(Debug, Clone, Copy, Default)]
struct Unready {
    /// How many waits there were in a row.
    waits: u32,
    /// Nothing is sent before this time.
    not_before: Option<Instant>,
}

/// The forward stops: nothing more is sent.
struct Stopped;

impl<D: Destination> Forward<D> {
    /// Makes a forward that ends with `shutdown`, and that requests the shutdown if the destination
    /// closes.
    pub fn new(destination: D, shutdown: Shutdown, ended: Ended) -> Self {
        Self { destination, shutdown, ended, unready: Mutex::default() }
    }

    /// Sends a part until it is confirmed or refused.
    async fn send(&self, part: &[Context]) -> Result<Result<(), HandlerError>, Stopped> {
        let Some(first) = part.first() else { return Ok(Ok(())) };
        loop {
            self.wait(first).await?;
            // This waits on the network or a pipe, never on the queue's database.
            let sent = tokio::select! {
                biased;
                sent = self.destination.send(part) => sent,
                () = first.cancelled.cancelled() => return Err(Stopped),
            };
            let verdict = match sent {
                Ok(()) => Ok(()),
                Err(NotTaken::Refused { error, dead: true }) => Err(HandlerError::Dead(error)),
                Err(NotTaken::Refused { error, dead: false }) => Err(HandlerError::Retry(error)),
                Err(NotTaken::Closed(error)) => {
                    self.end(&*error);
                    return Err(Stopped);
                }
                Err(NotTaken::Unready(error, asked)) => {
                    let wait = self.unready(asked);
                    tracing::warn!(
                        topic.name = %first.topic, destination = self.destination.name(),
                        batch.messages = part.len(), wait_ms = wait.as_millis(), %error,
                        "The receiver takes nothing; the forward waits."
                    );
                    telemetry::forward_waits(first.topic.as_str());
                    continue;
                }
            };
            *self.readiness() = Unready::default();
            return Ok(verdict);
        }
    }

    fn readiness(&self) -> MutexGuard<'_, Unready> {
        self.unready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the receiver accepts nothing; returns how long to wait. It may have asked for a
    /// pause.
    fn unready(&self, asked: Option<Duration>) -> Duration {
        let mut unready = self.readiness();
        unready.waits = unready.waits.saturating_add(1);
        let wait = asked.unwrap_or_else(|| BACKOFF.delay(unready.waits));
        unready.not_before = Instant::now().checked_add(wait);
        wait
    }

    /// Waits until the receiver is to be tried again, or until the batch that begins with this
    /// message must be given back.
    async fn wait(&self, first: &Context) -> Result<(), Stopped> {
        let Some(ready) = self.readiness().not_before else { return Ok(()) };
        // A run that is cut off by the topic's limit would be charged as a failure.
        let last = first.deadline.map(|end| {
            let left = end.saturating_duration_since(Instant::now());
            end.checked_sub((left / 10).min(MARGIN)).unwrap_or(end)
        });
        let until = last.map_or(ready, |last| last.min(ready));
        tokio::select! {
            biased;
            () = first.cancelled.cancelled() => return Err(Stopped),
            () = self.shutdown.drain.cancelled() => return Err(Stopped),
            () = tokio::time::sleep_until(until.into()) => {}
        }
        if until < ready { Err(Stopped) } else { Ok(()) }
    }

    fn end(&self, error: &(dyn std::error::Error + Send + Sync)) {
        let name = self.destination.name();
        let reason = format!("{name} takes no more ({error}); the messages stay in the queue");
        // Only the first reason counts.
        drop(self.ended.0.set(reason));
        self.shutdown.drain.cancel();
    }
}

impl<D: Destination> RawBatchHandler for Forward<D> {
    async fn handle(&self, batch: &[Context]) -> Vec<Result<(), HandlerError>> {
        let mut verdicts = Vec::with_capacity(batch.len());
        // The next part to send is the last of the list.
        let mut parts = parts(batch);
        parts.reverse();
        while let Some(part) = parts.pop() {
            match self.send(part).await {
                Err(Stopped) => break,
                Ok(Ok(())) => verdicts.extend(part.iter().map(|_| Ok(()))),
                Ok(Err(_)) if part.len() > 1 => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Ok(Err(error)) => verdicts.push(Err(error)),
            }
        }
        verdicts.resize_with(batch.len(), || Err(HandlerError::Release));
        verdicts
    }
}

/// Cuts a batch into parts of bounded bytes.
fn parts(mut batch: &[Context]) -> Vec<&[Context]> {
    let mut parts = Vec::new();
    while !batch.is_empty() {
        let mut bytes = 0;
        let fitting = batch.iter().take_while(|context| {
            bytes += context.delivery.body.len();
            bytes <= PART_BYTES
        });
        let (part, rest) = batch.split_at(fitting.count().max(1));
        parts.push(part);
        batch = rest;
    }
    parts
}
