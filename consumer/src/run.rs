//! A run: some deliveries, one call of a handler, and the settlement of each delivery.

use std::sync::Arc;
use std::time::Duration;

use rowmq_core::checkpoint::Checkpoints;
use rowmq_core::handler::{Context, RunOutcome, settlement_for};
use rowmq_core::model::{ClaimNo, PartitionNo, Settlement};
use rowmq_core::telemetry::TopicMeter;
use rowmq_core::worker::{Effects, Ending, Settled};
use rowmq_core::{Delivery, Topic};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::breaker::Tally;
use crate::crew::Crew;
use crate::executor::{Execution, execute};
use crate::ledger::Ledger;
use crate::permit::Holding;
use crate::registration::{Registration, Run, TxRun};
use crate::settler::{Finished, OwnRun};
use crate::span;

/// How long deliveries are held before they are given back because the ledger cannot be read: once
/// given back, they are claimed again at once.
const PAUSE: Duration = Duration::from_secs(1);

/// What every run of a topic's handler shares.
pub(crate) struct Post {
    pub(crate) crew: Crew,
    pub(crate) registration: Registration,
    pub(crate) performer: Performer,
    pub(crate) meter: TopicMeter,
}

/// A handler, ready to run for a worker.
pub(crate) enum Performer {
    Plain(Arc<dyn Run>),
    Transactional(Arc<dyn TxRun>, Effects),
}

/// A claimed delivery on its way to a handler.
pub(crate) struct Waiting {
    pub(crate) delivery: Arc<Delivery>,
    pub(crate) holding: Holding,
    /// When it was claimed.
    pub(crate) since: Instant,
}

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// How long it took.
    pub(crate) took: Duration,
    /// The partition of its messages.
    pub(crate) partition: Option<PartitionNo>,
    /// The claim that cannot go on, because a message of it failed.
    pub(crate) held_back: Option<ClaimNo>,
    /// What the run says about its handler.
    pub(crate) tally: Tally,
}

impl Post {
    /// Runs the handler on a batch (a single message if its group is ordered), and hands each
    /// delivery to the settler. `stop` interrupts from outside.
    pub(crate) async fn run(
        &self,
        topic: &Topic,
        batch: Vec<Waiting>,
        stop: CancellationToken,
    ) -> Ran {
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
            return Ran { took: begun.elapsed(), partition, held_back, tally: Tally::default() };
        }
        let (mut passed, mut tally) = (0, Tally::default());
        let checkpoints = Checkpoints::of_run(&self.crew.keeper);
        let context = |waiting: &Waiting| Context {
            topic: topic.name.clone(),
            delivery: Arc::clone(&waiting.delivery),
            cancelled: token.clone(),
            // A deadline beyond the clock's range is none.
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
        let endings = execute(execution, limit, token.clone(), stop).await;
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
        Ran { took: begun.elapsed(), partition, held_back, tally }
    }

    /// Filters out messages if another message with their biz id has been handled. If the ledger
    /// cannot be read, gives back the messages with a biz id and returns false. A transactional run
    /// checks the ledger itself.
    async fn sift(
        &self,
        topic: &Topic,
        batch: Vec<Waiting>,
        stop: &CancellationToken,
    ) -> (Vec<Waiting>, bool) {
        let keys: Vec<&[u8]> =
            batch.iter().filter_map(|waiting| Ledger::key(topic, &waiting.delivery)).collect();
        let handled = match self.crew.ledger.handled(topic, &keys).await {
            Ok(handled) => handled,
            Err(error) => {
                tracing::warn!(
                    topic.name = %topic.name, %error,
                    "Deliveries are given back: the ledger cannot be read."
                );
                stop.run_until_cancelled(tokio::time::sleep(PAUSE)).await;
                let has_key = |waiting: &Waiting| Ledger::key(topic, &waiting.delivery).is_some();
                let (unknown, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(has_key);
                for waiting in unknown {
                    self.finish(topic, waiting, RunOutcome::Interrupted);
                }
                return (rest, false);
            }
        };
        let is_repeated = |waiting: &Waiting| {
            Ledger::key(topic, &waiting.delivery).is_some_and(|key| handled.contains(key))
        };
        let (repeated, rest): (Vec<_>, Vec<_>) = batch.into_iter().partition(is_repeated);
        for waiting in repeated {
            self.meter.ran(RunOutcome::Repeated.word(), Duration::ZERO);
            self.finish(topic, waiting, RunOutcome::Repeated);
        }
        (rest, true)
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
        delivery.position.is_none() && self.crew.worker.is_cancelled(delivery.row)
    }

    fn hand_over(&self, topic: &Topic, waiting: Waiting, settled: Settled, run: OwnRun) {
        self.crew.settler.settle(Finished {
            topic: topic.name.clone(),
            topic_id: topic.id,
            msg_id: waiting.delivery.msg_id,
            delivery_no: waiting.delivery.delivery_no,
            settled,
            run,
            holding: waiting.holding,
            reply: None,
        });
    }
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
