//! Runs whose effects and ack are one transaction, on their own connections.
//!
//! The work session never settles what such a run has committed: it learns of the commit afterwards
//! and forgets the claims.

mod acks;
mod attempt;
mod doubt;
mod failure;
mod ground;

use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::time::Duration;

use diesel_async::AsyncMysqlConnection;
use tokio_util::sync::CancellationToken;

use self::attempt::Attempt;
#[cfg(feature = "simulation")]
pub use self::ground::Links;
pub use self::ground::{Ground, Held};
use super::Worker;
use crate::chance;
use crate::connection::{Pool, ServerUrl};
use crate::handler::{Context, HandlerError, RunOutcome};
use crate::model::{Error, Result, TopicSettings, WorkerId};
use crate::telemetry;

/// How often a handler is run with the same deliveries while only conflicts stop it: each lock wait
/// has already cost a second.
const TRIES: u32 = 5;

/// How many lost connections are not charged to the message. A handler that is silent for longer
/// than the lease loses each one.
const LOSSES: u32 = 2;

/// The first wait after a conflict; it doubles, with jitter.
const BACKOFF: Duration = Duration::from_millis(5);

/// The wait before deliveries are given back because no transaction could begin for them: they are
/// claimed again at once.
const PAUSE: Duration = Duration::from_secs(1);

/// The user's part of a transactional run.
pub trait Perform<C = AsyncMysqlConnection>: Send + Sync {
    /// Runs the handler on the deliveries, in the open transaction.
    fn perform(&self, contexts: &[Context], tx: &mut C) -> impl Future<Output = RunOutcome> + Send;
}

/// How a delivery's run ended.
#[derive(Debug)]
pub enum Ending {
    /// Nothing of it is in the database: it must still be settled as its outcome says.
    Undone(RunOutcome),
    /// It is acked, and its effects are in the database: the worker must [forget](Worker::forget)
    /// it.
    Committed,
    /// The commit had no answer. Most likely it happened; the work session must
    /// [find out](Worker::release_in_doubt).
    InDoubt,
}

impl Ending {
    /// The label for metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Undone(outcome) => outcome.word(),
            Self::Committed => "ok",
            Self::InDoubt => "unknown",
        }
    }
}

/// Runs handlers in transactions that also ack.
#[derive(Debug, Clone)]
pub struct Effects<G = Pool> {
    worker: WorkerId,
    ground: G,
    /// How long each step but the handler's may take.
    deadline: Duration,
}

/// Deliveries of one transaction.
struct Part {
    /// Their indexes among the deliveries of the run.
    places: Vec<usize>,
    tries: u32,
    /// How many tries lost their connection.
    losses: u32,
}

impl Part {
    fn of(places: Vec<usize>, losses: u32) -> Self {
        Self { places, tries: 0, losses }
    }
}

impl Effects {
    /// Runs for the claims of `worker`, at most `size` at once. The server drops their connections
    /// after the worker's lease of silence, as it does the worker's own.
    ///
    /// # Errors
    /// [`crate::Error::Connect`] if the pool cannot be built.
    pub fn new(url: ServerUrl, worker: &Worker, size: usize) -> Result<Self> {
        let (lease, deadline) = (worker.lease(), worker.lease() / 2);
        // One more, to resolve a commit in doubt.
        let ground = Pool::leased(url, size.saturating_add(1), deadline, lease)?;
        Ok(Self { worker: worker.id(), ground, deadline })
    }
}

impl<G: Ground> Effects<G> {
    /// Runs for the claims of `worker` on other ground.
    #[cfg(feature = "simulation")]
    pub fn on(ground: G, worker: &Worker) -> Self {
        Self { worker: worker.id(), ground, deadline: worker.lease() / 2 }
    }

    /// Runs the handler on the deliveries in one transaction, and acks them in it. Returns how each
    /// ended. `give_up` drops a running handler; a commit under way is completed.
    pub async fn run(
        &self,
        contexts: &[Context],
        topic: &TopicSettings,
        handler: &impl Perform<<G::Held as Held>::Conn>,
        give_up: &CancellationToken,
    ) -> Vec<Ending> {
        let mut endings: Vec<Option<Ending>> = contexts.iter().map(|_| None).collect();
        let mut parts = VecDeque::from([Part::of(first_of_each(contexts, topic), 0)]);
        while let Some(mut part) = parts.pop_front() {
            let Some(first) = part.places.first() else { continue };
            if give_up.is_cancelled() || contexts[*first].cancelled.is_cancelled() {
                continue;
            }
            part.tries += 1;
            let some: Vec<Context> = part.places.iter().map(|at| contexts[*at].clone()).collect();
            let attempt = self.attempt(&some, topic, handler, give_up).await;
            if let Some(next) = self.conclude(part, attempt, &mut endings, give_up).await {
                parts.extend(next);
            }
        }
        // The deliveries left over were never begun, or were given up.
        let ending =
            |ending: Option<Ending>| ending.unwrap_or(Ending::Undone(RunOutcome::Interrupted));
        endings.into_iter().map(ending).collect()
    }

    /// Records an attempt's outcome. Returns what must still be tried.
    async fn conclude(
        &self,
        mut part: Part,
        attempt: Attempt,
        endings: &mut [Option<Ending>],
        give_up: &CancellationToken,
    ) -> Option<Vec<Part>> {
        let mut all = |ending: fn() -> Ending| {
            part.places.iter().for_each(|at| endings[*at] = Some(ending()));
            None
        };
        match attempt {
            Attempt::Committed => all(|| Ending::Committed),
            Attempt::InDoubt => all(|| Ending::InDoubt),
            Attempt::Ended => all(|| Ending::Undone(RunOutcome::EndedTransaction)),
            Attempt::GivenUp => None,
            Attempt::Unable => {
                give_up.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                None
            }
            Attempt::Without(found) => {
                for (nth, outcome) in found {
                    endings[part.places[nth]] = Some(Ending::Undone(outcome));
                }
                let rest = part.places.into_iter().filter(|at| endings[*at].is_none()).collect();
                Some(vec![Part { places: rest, tries: part.tries - 1, ..part }])
            }
            Attempt::Lost(error) => {
                self.ground.close_idle();
                part.losses += 1;
                tracing::warn!(worker.id = %self.worker, %error, "A transaction was lost.");
                again(part, error, endings).await
            }
            Attempt::Again(error) => again(part, error, endings).await,
            Attempt::Blocked(error) => {
                telemetry::conflict_retried("run in a transaction", error.fault());
                tracing::debug!(worker.id = %self.worker, %error, "A transaction is blocked.");
                // Not a failure of the messages: blocked deliveries are given back, uncharged.
                singly(part, RunOutcome::Interrupted, endings)
            }
            Attempt::Failed(outcome) => singly(part, outcome, endings),
        }
    }
}

/// Schedules another try, unless there were enough.
async fn again(part: Part, error: Error, endings: &mut [Option<Ending>]) -> Option<Vec<Part>> {
    if part.tries >= TRIES || part.losses > LOSSES {
        let failed = RunOutcome::Returned(Err(HandlerError::retry(error)));
        return singly(part, failed, endings);
    }
    if error.fault().is_conflict() {
        telemetry::conflict_retried("run in a transaction", error.fault());
    }
    let wait = BACKOFF * 2_u32.pow(part.tries);
    tokio::time::sleep(wait.mul_f64(chance::between(0.5..=1.5))).await;
    Some(vec![part])
}

/// Splits a failed batch to try each delivery alone; a lone one gets its outcome.
fn singly(part: Part, outcome: RunOutcome, endings: &mut [Option<Ending>]) -> Option<Vec<Part>> {
    match part.places.as_slice() {
        [at] => {
            endings[*at] = Some(Ending::Undone(outcome));
            None
        }
        places => Some(places.iter().map(|at| Part::of(vec![*at], part.losses)).collect()),
    }
}

/// Leaves out deliveries whose biz id an earlier one has: the ledger takes only one of them. The
/// others are given back; their next run finds the biz id in the ledger.
fn first_of_each(contexts: &[Context], topic: &TopicSettings) -> Vec<usize> {
    let mut seen = HashSet::new();
    let mut is_first = |at: &usize| match &contexts[*at].delivery.biz_id {
        Some(biz_id) if topic.ledger_window.is_some() => seen.insert(biz_id),
        _ => true,
    };
    (0..contexts.len()).filter(|at| is_first(at)).collect()
}
