//! Settling in micro-batches: outcomes that come close together share a transaction.

use std::time::Duration;

use rowmq_core::model::{DeliveryNo, Settlement, TopicId};
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{Error, MsgId, TopicName, actor, telemetry};
use tokio::sync::{mpsc, oneshot};

use crate::listener::{SettledDelivery, SettledListener};
use crate::permit::{HeldCount, Permit};

/// How long an outcome waits for others. A commit takes about as long, so a lone message is settled
/// hardly later, and fast handlers share a commit.
const LINGER: Duration = Duration::from_millis(2);

/// The most deliveries of one transaction.
const BATCH: usize = 1000;

/// A delivery whose outcome is known.
pub(crate) struct Finished {
    pub(crate) topic: TopicName,
    pub(crate) topic_id: TopicId,
    pub(crate) msg_id: MsgId,
    pub(crate) delivery_no: DeliveryNo,
    pub(crate) settled: Settled,
    /// What its run's own transaction did with it.
    pub(crate) run: OwnRun,
    pub(crate) permit: Permit,
    /// Where to send the result of the settlement, if a caller waits for it.
    pub(crate) reply: Option<oneshot::Sender<Result<SettleOutcome, Error>>>,
}

/// What a run's own transaction did with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnRun {
    /// Nothing, or there was no transaction: the delivery is still to be settled.
    Nothing,
    /// The delivery is acked.
    Committed,
    /// The commit had no answer.
    InDoubt,
}

impl Finished {
    fn notify(&self, listener: Option<&SettledListener>, outcome: Result<SettleOutcome, &Error>) {
        if let Some(listener) = listener {
            listener.notify(SettledDelivery {
                topic: &self.topic,
                msg_id: self.msg_id,
                delivery_no: self.delivery_no,
                settlement: &self.settled.settlement,
                outcome,
            });
        }
    }
}

/// Takes finished deliveries and settles them.
#[derive(Clone)]
pub(crate) struct Settler {
    queue: mpsc::UnboundedSender<Item>,
    held: HeldCount,
}

enum Item {
    Finished(Box<Finished>),
    /// Answered once everything before it is settled.
    Flush(oneshot::Sender<()>),
}

impl Settler {
    /// Starts settling for `worker`; ends when its last clone is dropped.
    pub(crate) fn start(worker: Worker, listener: Option<SettledListener>) -> Self {
        let (queue, finished) = mpsc::unbounded_channel();
        let held = HeldCount::default();
        let held_now = held.clone();
        // Not awaited: it ends with its senders.
        drop(actor::beside(async move {
            settle_all(&worker, listener.as_ref(), finished, held_now).await;
        }));
        Self { queue, held }
    }

    /// Returns the count of deliveries held over all topics.
    pub(crate) fn held(&self) -> HeldCount {
        self.held.clone()
    }

    pub(crate) fn settle(&self, finished: Finished) {
        // The settler outlives every sender; if it has panicked, the janitor takes the claim back.
        drop(self.queue.send(Item::Finished(Box::new(finished))));
    }

    /// Waits until everything handed over so far is settled, or fenced.
    pub(crate) async fn finish(&self) {
        let (done, flushed) = oneshot::channel();
        if self.queue.send(Item::Flush(done)).is_ok() {
            drop(flushed.await);
        }
    }
}

async fn settle_all(
    worker: &Worker,
    listener: Option<&SettledListener>,
    mut items: mpsc::UnboundedReceiver<Item>,
    held: HeldCount,
) {
    tracing::trace!(step = "settle_all");
    let mut some = Vec::new();
    while items.recv_many(&mut some, BATCH).await > 0 {
        // While other deliveries are still held, they may finish within the linger.
        let linger = tokio::time::sleep(LINGER);
        tokio::pin!(linger);
        while some.len() < BATCH && some.len() < held.get() {
            let room = BATCH - some.len();
            tokio::select! {
                biased;
                () = &mut linger => break,
                n = items.recv_many(&mut some, room) => if n == 0 { break },
            }
        }
        let (mut batch, mut flushes) = (Vec::new(), Vec::new());
        for item in some.drain(..) {
            match item {
                Item::Finished(finished) => batch.push(*finished),
                Item::Flush(done) => flushes.push(done),
            }
        }
        if !batch.is_empty() {
            settle(worker, listener, batch).await;
        }
        for done in flushes {
            if done.send(()).is_err() {
                tracing::debug!(worker.id = %worker.id(), "No caller awaited the flush.");
            }
        }
    }
}

async fn settle(worker: &Worker, listener: Option<&SettledListener>, batch: Vec<Finished>) {
    let (committed, rest) = part(batch, OwnRun::Committed);
    let (in_doubt, rest) = part(rest, OwnRun::InDoubt);
    if !committed.is_empty() {
        forget(worker, listener, committed).await;
    }
    if !in_doubt.is_empty() {
        let rows = in_doubt.iter().map(|finished| finished.settled.clone()).collect();
        let outcomes = worker.release_in_doubt(rows).await;
        let in_doubt = as_found(in_doubt, outcomes.as_deref().unwrap_or_default());
        conclude(worker, listener, in_doubt, outcomes);
    }
    if !rest.is_empty() {
        let settled = rest.iter().map(|finished| finished.settled.clone()).collect();
        let outcomes = worker.settle(settled).await;
        conclude(worker, listener, rest, outcomes);
    }
}

/// Completes deliveries in doubt: rows that are gone were most likely acked by that commit, and the
/// others have been released now.
fn as_found(mut in_doubt: Vec<Finished>, outcomes: &[SettleOutcome]) -> Vec<Finished> {
    for (finished, outcome) in in_doubt.iter_mut().zip(outcomes) {
        if *outcome != SettleOutcome::Unknown {
            finished.settled.settlement = Settlement::Release;
        }
    }
    in_doubt
}

/// Splits off the deliveries whose own run is `run`.
fn part(batch: Vec<Finished>, run: OwnRun) -> (Vec<Finished>, Vec<Finished>) {
    batch.into_iter().partition(|finished| finished.run == run)
}

fn conclude(
    worker: &Worker,
    listener: Option<&SettledListener>,
    batch: Vec<Finished>,
    outcomes: Result<Vec<SettleOutcome>, Error>,
) {
    match outcomes {
        Ok(outcomes) => {
            count(worker, &batch, &outcomes);
            for (finished, outcome) in batch.into_iter().zip(outcomes) {
                finished.notify(listener, Ok(outcome));
                report(worker, finished, outcome);
            }
        }
        Err(error) => {
            tracing::warn!(
                worker.id = %worker.id(), deliveries = batch.len(), %error,
                "Deliveries are fenced: they will be handled again elsewhere."
            );
            for finished in batch {
                finished.notify(listener, Err(&error));
                telemetry::fenced(finished.topic.as_str());
                if let Some(reply) = finished.reply {
                    let reason = error.to_string();
                    drop(reply.send(Err(Error::WorkerDead { reason })));
                }
            }
        }
    }
}

/// Makes the worker forget deliveries that their run's own transaction has acked.
async fn forget(worker: &Worker, listener: Option<&SettledListener>, batch: Vec<Finished>) {
    let rows = batch.iter().map(|finished| (finished.settled.claim_no, finished.settled.row));
    if let Err(error) = worker.forget(rows.collect()).await {
        // The worker's comparison of its claims finds the empty ones, or else a janitor does.
        tracing::debug!(worker.id = %worker.id(), %error, "Cannot forget claims yet.");
    }
    let outcomes = vec![SettleOutcome::Settled; batch.len()];
    conclude(worker, listener, batch, Ok(outcomes));
}

/// Counts what was settled, a batch at a time: most of a batch has the same topic and verb.
fn count(worker: &Worker, batch: &[Finished], outcomes: &[SettleOutcome]) {
    let mut counts: Vec<(&TopicName, &'static str, usize)> = Vec::new();
    for (finished, outcome) in batch.iter().zip(outcomes) {
        // A deferred settlement counts as well: the worker itself completes it.
        if *outcome == SettleOutcome::Fenced {
            continue;
        }
        worker.counter().settled(finished.topic_id, &finished.settled.settlement);
        let (topic, verb) = (&finished.topic, finished.settled.settlement.verb());
        match counts.iter_mut().find(|known| known.0 == topic && known.1 == verb) {
            Some(known) => known.2 += 1,
            None => counts.push((topic, verb, 1)),
        }
    }
    for (topic, verb, n) in counts {
        telemetry::settled(topic.as_str(), verb, n);
    }
}

fn report(worker: &Worker, finished: Finished, outcome: SettleOutcome) {
    let topic = finished.topic.as_str();
    match outcome {
        SettleOutcome::Settled | SettleOutcome::Deferred => {}
        SettleOutcome::Unknown => telemetry::settled_unknown(topic),
        SettleOutcome::Fenced => {
            telemetry::fenced(topic);
            let verb = finished.settled.settlement.verb();
            tracing::warn!(
                worker.id = %worker.id(), message.id = %finished.msg_id, topic.name = topic, verb,
                "Delivery is fenced: its claim was taken back."
            );
        }
    }
    if let Some(reply) = finished.reply {
        drop(reply.send(Ok(outcome)));
    }
    drop(finished.permit);
}
