//! A run: some deliveries, one call of a handler with its time limit, its panics and its
//! interruption, and the settlement of each delivery.

mod pace;
mod repeated;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::checkpoint::Checkpoints;
use rowmq_core::handler::{Context, RunOutcome, settlement_for};
use rowmq_core::model::{ClaimNo, PartitionNo, Settlement, TopicSettings};
use rowmq_core::telemetry::TopicMeter;
use rowmq_core::worker::{Effects, Ending, Settled};
use rowmq_core::{Delivery, Topic};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

pub(crate) use self::pace::Pace;
use crate::breaker::Tally;
use crate::permit::Permit;
use crate::registration::{Registration, Run, TxRun};
use crate::services::Services;
use crate::settler::{Finished, OwnRun};
use crate::span;

/// How long a cancelled handler has to stop before it is dropped. Longer than the two seconds that
/// an exec handler's program gets.
const CANCEL_GRACE: Duration = Duration::from_secs(4);

/// How long a transactional run has to end after its handler was dropped, so that a commit in
/// progress can finish. If it is still running after that, the fence decides.
const COMMIT_GRACE: Duration = Duration::from_secs(15);

/// What every run of a topic's handler shares.
pub(crate) struct Runner {
    pub(crate) services: Services,
    pub(crate) registration: Registration,
    pub(crate) performer: Performer,
    pub(crate) meter: TopicMeter,
    pub(crate) pace: Pace,
}

/// A handler, ready to run for a worker.
pub(crate) enum Performer {
    Plain(Arc<dyn Run>),
    Transactional(Arc<dyn TxRun>, Effects),
}

/// A claimed delivery on its way to a handler.
pub(crate) struct Waiting {
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) permit: Permit,
    /// When it was claimed.
    pub(crate) since: Instant,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct RunReport {
    /// How long it took.
    pub(crate) took: Duration,
    /// The partition of its messages.
    pub(crate) partition: Option<PartitionNo>,
    /// The claim that cannot continue, because one of its messages failed.
    pub(crate) held_back: Option<ClaimNo>,
    /// What the run says about its handler.
    pub(crate) tally: Tally,
}

impl Runner {
    /// Runs the handler on a batch (a single message if its group is ordered), and hands each
    /// delivery to the settler. `stop` interrupts from outside.
    pub(crate) async fn run(
        &self,
        topic: &Topic,
        batch: Vec<Waiting>,
        stop: CancellationToken,
    ) -> RunReport {
        tracing::trace!(step = "run");
        let begun = Instant::now();
        let first = batch.first().map(|waiting| &waiting.delivery);
        let partition = first.and_then(|delivery| delivery.position).map(|at| at.partition);
        let claim_no = first.map(|delivery| delivery.claim_no);
        let is_plain = matches!(self.performer, Performer::Plain(_));
        let (batch, looked_up) = match topic.settings.ledger_window {
            // Boxed: otherwise the future of every run would reserve space for it.
            Some(_) if is_plain => Box::pin(self.sift(topic, batch, &stop)).await,
            _ => (batch, true),
        };
        let limit = [self.registration.options.timeout, topic.settings.max_run_time];
        let limit = limit.into_iter().flatten().min();
        let (token, started) = (CancellationToken::new(), std::time::Instant::now());
        let n = batch.len();
        if n == 0 {
            let held_back = claim_no.filter(|_| !looked_up);
            return RunReport {
                took: begun.elapsed(),
                partition,
                held_back,
                tally: Tally::default(),
            };
        }
        let (mut passed, mut tally) = (0, Tally::default());
        let checkpoints = Checkpoints::of_run(&self.services.keeper);
        let context = |waiting: &Waiting| Context {
            topic: topic.name.clone(),
            delivery: Arc::clone(&waiting.delivery),
            cancelled: token.clone(),
            // A deadline beyond the clock's range counts as none.
            deadline: limit.and_then(|limit| started.checked_add(limit)),
            checkpoints: checkpoints.clone(),
        };
        let contexts = batch.iter().map(context).collect();
        let execution = match &self.performer {
            Performer::Plain(run) => Execution::plain(Arc::clone(run), contexts),
            Performer::Transactional(run, effects) => Execution::transactional(
                Arc::clone(run),
                contexts,
                topic.settings.clone(),
                effects.clone(),
            ),
        };
        // A run of several messages belongs to several traces, so it gets no span.
        let span = match batch.as_slice() {
            [alone] => span::of(topic, &alone.delivery),
            _ => Span::none(),
        };
        let execution = execution.within(span.clone());
        let endings = execute(execution, limit, token.clone(), stop, &self.pace).await;
        let took = started.elapsed();
        for (waiting, ending) in batch.into_iter().zip(endings) {
            let ending = match ending {
                Ending::Undone(RunOutcome::Interrupted) if self.is_cancelled(&waiting) => {
                    Ending::Undone(RunOutcome::Cancelled)
                }
                other => other,
            };
            let word = ending.word();
            self.meter.ran(word, took);
            let (settlement, run) = match ending {
                Ending::Undone(outcome) => {
                    let logged = if n == 1 { &span } else { &span::of(topic, &waiting.delivery) };
                    (logged.in_scope(|| decide(topic, &waiting, outcome)), OwnRun::Nothing)
                }
                Ending::Committed => (Settlement::Ack, OwnRun::Committed),
                Ending::InDoubt => (Settlement::Ack, OwnRun::InDoubt),
            };
            span.record("outcome", word).record("settlement", settlement.verb());
            passed += usize::from(settlement.is_final());
            tally.count(&settlement);
            let settled = Settled::in_topic(&waiting.delivery, settlement, &topic.settings);
            self.hand_over(topic, waiting, settled.after_run(&checkpoints), run);
        }
        let held_back = claim_no.filter(|_| passed < n || !looked_up);
        RunReport { took: begun.elapsed(), partition, held_back, tally }
    }

    /// Hands a delivery to the settler with the settlement that its outcome calls for.
    pub(crate) fn finish(&self, topic: &Topic, waiting: Waiting, outcome: RunOutcome) {
        let span = span::of(topic, &waiting.delivery);
        let settlement = span.in_scope(|| decide(topic, &waiting, outcome));
        let settled = Settled::in_topic(&waiting.delivery, settlement, &topic.settings);
        self.hand_over(topic, waiting, settled, OwnRun::Nothing);
    }

    /// Returns whether a cancellation was requested for the interrupted message.
    fn is_cancelled(&self, waiting: &Waiting) -> bool {
        let delivery = &waiting.delivery;
        delivery.position.is_none() && self.services.worker.is_cancelled(delivery.row)
    }

    fn hand_over(&self, topic: &Topic, waiting: Waiting, settled: Settled, run: OwnRun) {
        self.services.settler.settle(Finished {
            topic: topic.name.clone(),
            topic_id: topic.id,
            msg_id: waiting.delivery.msg_id,
            delivery_no: waiting.delivery.delivery_no,
            settled,
            run,
            permit: waiting.permit,
            reply: None,
        });
    }
}

/// A run that has not begun.
struct Execution {
    run: BoxFuture<'static, Vec<Ending>>,
    deliveries: usize,
    /// Drops the handler of a transactional run; a run of another kind is dropped as a whole.
    give_up: Option<CancellationToken>,
}

impl Execution {
    fn plain(run: Arc<dyn Run>, contexts: Vec<Context>) -> Self {
        let deliveries = contexts.len();
        let undone = |outcomes: Vec<_>| outcomes.into_iter().map(Ending::Undone).collect();
        Self { run: run.run(contexts).map(undone).boxed(), deliveries, give_up: None }
    }

    fn transactional(
        run: Arc<dyn TxRun>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
    ) -> Self {
        let (deliveries, give_up) = (contexts.len(), CancellationToken::new());
        let run = run.run(contexts, topic, effects, give_up.clone());
        Self { run, deliveries, give_up: Some(give_up) }
    }

    /// Puts the run in a span.
    fn within(self, span: Span) -> Self {
        if span.is_none() {
            return self;
        }
        Self { run: self.run.instrument(span).boxed(), ..self }
    }
}

/// Runs the handler in a task of its own, so that a panic is caught and handlers run side by side;
/// a quick one begins in the caller's task. `token` is the one in the contexts; `stop` interrupts
/// from outside.
async fn execute(
    execution: Execution,
    limit: Option<Duration>,
    token: CancellationToken,
    stop: CancellationToken,
    pace: &Pace,
) -> Vec<Ending> {
    tracing::trace!(step = "execute");
    let Execution { mut run, deliveries: n, give_up } = execution;
    if pace.is_quick() {
        let begun = Instant::now();
        if let Some(done) = AssertUnwindSafe(&mut run).catch_unwind().now_or_never() {
            pace.learn(begun.elapsed());
            return done.unwrap_or_else(|panic| each(n, || RunOutcome::of_panic(&*panic)));
        }
    }
    let mut task = tokio::spawn(pace.clone().timed(run));
    tokio::select! {
        biased;
        done = &mut task => returned(done, n),
        () = stop.cancelled() => {
            token.cancel();
            let endings = Box::pin(leave(task, give_up, n)).await;
            endings.into_iter().map(interrupted).collect()
        }
        limit = expired(limit) => {
            token.cancel();
            let endings = Box::pin(leave(task, give_up, n)).await;
            endings.into_iter().map(|ending| timed_out(ending, limit)).collect()
        }
    }
}

async fn expired(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

type Joined = Result<Vec<Ending>, JoinError>;

/// Waits for a cancelled handler to stop; after the grace it is dropped.
async fn leave(
    mut task: JoinHandle<Vec<Ending>>,
    give_up: Option<CancellationToken>,
    n: usize,
) -> Vec<Ending> {
    let mut done = tokio::time::timeout(CANCEL_GRACE, &mut task).await.ok();
    if let (None, Some(give_up)) = (&done, give_up) {
        give_up.cancel();
        done = tokio::time::timeout(COMMIT_GRACE, &mut task).await.ok();
    }
    done.map_or_else(
        || {
            task.abort();
            each(n, || RunOutcome::Interrupted)
        },
        |done| returned(done, n),
    )
}

fn returned(done: Joined, n: usize) -> Vec<Ending> {
    match done {
        Ok(endings) => endings,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => each(n, || RunOutcome::of_panic(&*panic)),
            Err(_) => each(n, || RunOutcome::Panicked("its task was cancelled".to_owned())),
        },
    }
}

/// A handler that finished despite the interruption counts as finished. One that failed was
/// prevented from finishing, which is not the message's fault.
fn interrupted(ending: Ending) -> Ending {
    match ending {
        Ending::Undone(RunOutcome::Returned(Err(_))) => Ending::Undone(RunOutcome::Interrupted),
        other => other,
    }
}

/// A run that took too long has failed, but whatever it committed stays committed.
fn timed_out(ending: Ending, limit: Duration) -> Ending {
    match ending {
        over @ (Ending::Committed
        | Ending::InDoubt
        | Ending::Undone(RunOutcome::EndedTransaction)) => over,
        Ending::Undone(_) => Ending::Undone(RunOutcome::TimedOut(limit)),
    }
}

fn each(n: usize, outcome: impl Fn() -> RunOutcome) -> Vec<Ending> {
    (0..n).map(|_| Ending::Undone(outcome())).collect()
}

/// Decides and logs the settlement of a delivery by its outcome.
fn decide(topic: &Topic, waiting: &Waiting, outcome: RunOutcome) -> Settlement {
    let word = outcome.word();
    let settlement = settlement_for(outcome, &waiting.delivery, &topic.settings);
    log(topic, &waiting.delivery, word, &settlement);
    settlement
}

/// Logs a failure, once, with what becomes of the message.
fn log(topic: &Topic, delivery: &Delivery, outcome: &str, settlement: &Settlement) {
    let (topic, id, no) = (topic.name.as_str(), delivery.msg_id, delivery.delivery_no);
    match settlement {
        Settlement::Ack | Settlement::Release | Settlement::Snooze { .. } => {}
        Settlement::Repeated => tracing::debug!(
            topic.name = topic, message.id = %id, delivery.no = %no,
            "Message is not handled: another one with its biz id has been."
        ),
        Settlement::RetryAt { at, error } => tracing::warn!(
            topic.name = topic, message.id = %id, delivery.no = %no, outcome, retry_at = %at,
            error, "Message failed and will be tried again."
        ),
        Settlement::Retry { delay, error } => tracing::warn!(
            topic.name = topic, message.id = %id, delivery.no = %no, outcome,
            delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), error,
            "Message failed and will be tried again."
        ),
        Settlement::DeadLetter { cause, error } => tracing::error!(
            topic.name = topic, message.id = %id, delivery.no = %no, outcome, %cause, error,
            "Message is dead-lettered."
        ),
        Settlement::Discard { reason } => tracing::info!(
            topic.name = topic, message.id = %id, delivery.no = %no, reason,
            "Message is discarded."
        ),
    }
}
