use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use rowmq_core::codec::Codecs;
use rowmq_core::connection::{ServerUrl, transaction};
use rowmq_core::handler::{
    Context, Handler, HandlerError, RawHandler, RunOutcome, TxHandler, settlement_for,
};
use rowmq_core::model::Settlement;
use rowmq_core::store::claim::walk;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::scheduled::{self, Reach};
use rowmq_core::store::{floor, ledger, lookup};
use rowmq_core::worker::{Effects, Ending, Perform, SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{AsyncMysqlConnection, Delivery, Topic};
use tokio_util::sync::CancellationToken;

use crate::patience::greeted;

/// How many messages one claim takes.
const CLAIM: u32 = 100;

/// How many due messages one move makes ready.
const PROMOTE: u32 = 512;

/// The lease of a drain's worker.
const LEASE: Duration = Duration::from_secs(60);

/// The pause before a claim that found nothing is tried again, while something is ready.
const PAUSE: Duration = Duration::from_millis(5);

/// The result of draining a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a drain whose result is not read proves nothing"]
pub struct Drained {
    /// Acked after being handled.
    pub acked: usize,
    /// Acked without being handled: another message with the biz id had been handled within the
    /// topic's ledger window.
    pub repeated: usize,
    /// Failed, and retried later: [advance](crate::TestQueue::advance) the clock and drain again.
    pub retried: usize,
    /// Snoozed, with nothing charged: [advance](crate::TestQueue::advance) the clock and drain
    /// again.
    pub snoozed: usize,
    /// Dead-lettered.
    pub dead: usize,
    /// Discarded by the handler.
    pub discarded: usize,
    /// Given back unhandled.
    pub released: usize,
    /// Why messages were retried, dead-lettered or discarded, in order.
    pub reasons: Vec<String>,
}

impl Drained {
    fn count(&mut self, settlement: &Settlement) {
        let (counter, reason) = match settlement {
            Settlement::Ack => (&mut self.acked, None),
            Settlement::Repeated => (&mut self.repeated, None),
            Settlement::Retry { error, .. } | Settlement::RetryAt { error, .. } => {
                (&mut self.retried, Some(error))
            }
            Settlement::Snooze { .. } => (&mut self.snoozed, None),
            Settlement::DeadLetter { error, .. } => (&mut self.dead, Some(error)),
            Settlement::Discard { reason } => (&mut self.discarded, Some(reason)),
            Settlement::Release => (&mut self.released, None),
        };
        *counter += 1;
        self.reasons.extend(reason.cloned());
    }
}

/// One run of a handler.
pub(crate) trait Run {
    async fn run(&self, worker: &Worker, topic: &Topic, context: &Context) -> Ending;
}

/// Decodes the body and runs the handler on it.
pub(crate) struct Typed<'h, H>(pub(crate) &'h H);

impl<H: Handler> Run for Typed<'_, H> {
    async fn run(&self, _: &Worker, _: &Topic, context: &Context) -> Ending {
        Ending::Undone(match context.delivery.json() {
            Ok(payload) => guarded(self.0.handle(context, payload)).await,
            Err(error) => RunOutcome::Undecodable(error.to_string()),
        })
    }
}

/// Runs the handler on the bytes.
pub(crate) struct Raw<'h, H>(pub(crate) &'h H);

impl<H: RawHandler> Run for Raw<'_, H> {
    async fn run(&self, _: &Worker, _: &Topic, context: &Context) -> Ending {
        Ending::Undone(guarded(self.0.handle(context)).await)
    }
}

/// Runs a handler in the transaction that acks its message.
pub(crate) struct InTransaction<'h, H> {
    pub(crate) handler: &'h H,
    pub(crate) url: &'h ServerUrl,
}

impl<H: TxHandler> Perform for InTransaction<'_, H> {
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        for context in contexts {
            let handled = match context.delivery.json() {
                Ok(payload) => self.handler.handle(context, payload, tx).await,
                Err(error) => return RunOutcome::Undecodable(error.to_string()),
            };
            if handled.is_err() {
                return RunOutcome::Returned(handled);
            }
        }
        RunOutcome::Returned(Ok(()))
    }
}

impl<H: TxHandler> Run for InTransaction<'_, H> {
    async fn run(&self, worker: &Worker, topic: &Topic, context: &Context) -> Ending {
        let effects = Effects::new(self.url.clone(), worker, 1).expect("a pool can be made");
        let (contexts, never) = ([context.clone()], CancellationToken::new());
        let mut endings = effects.run(&contexts, &topic.settings, self, &never).await;
        endings.remove(0)
    }
}

async fn guarded(run: impl Future<Output = Result<(), HandlerError>>) -> RunOutcome {
    match AssertUnwindSafe(run).catch_unwind().await {
        Ok(result) => RunOutcome::Returned(result),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            RunOutcome::Panicked(text.unwrap_or_else(|| "with no text".to_owned()))
        }
    }
}

/// Handles every message of `topic` until none is ready.
pub(crate) async fn drain(
    url: &ServerUrl,
    conn: &mut AsyncMysqlConnection,
    (topic, codecs): (&Topic, &Codecs),
    run: impl Run,
) -> Drained {
    let open = topic.effective_access.may_claim();
    assert!(open, "the claims of the topic '{}' are paused", topic.name);
    let mut options = WorkerOptions::new(url.clone(), "queue-test");
    // A call may take half of it, and on a busy machine does take long.
    options.lease = LEASE;
    let start = async || Worker::start(options.clone()).await;
    let worker = greeted(start).await.expect("a worker starts");
    let mut report = Drained::default();
    // Kept until the end: if they were settled at once, they could be claimed again for ever.
    let mut put_off = Vec::new();
    loop {
        promote(conn).await;
        let deliveries = claim(&worker, topic).await;
        if deliveries.is_empty() {
            let walk = walk(conn, topic.id).await.expect("the topic can be read");
            if walk.first.is_none() && !walk.suspect {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        for delivery in deliveries {
            let delivery = Arc::new(delivery);
            let ending = if delivery.is_expired() {
                Ending::Undone(RunOutcome::Expired)
            } else if is_repeated(conn, topic, &delivery).await {
                Ending::Undone(RunOutcome::Repeated)
            } else {
                match codecs.decoded(&topic.name, &delivery) {
                    Err(error) => Ending::Undone(RunOutcome::Undecodable(error.to_string())),
                    Ok(decoded) => {
                        let in_hands = decoded.map_or_else(|| Arc::clone(&delivery), Arc::new);
                        run.run(&worker, topic, &context(topic, &in_hands)).await
                    }
                }
            };
            let outcome = match ending {
                Ending::Undone(outcome) => outcome,
                Ending::Committed => {
                    report.count(&Settlement::Ack);
                    let row = vec![(delivery.claim_no, delivery.row)];
                    worker.forget(row).await.expect("a claim can be forgotten");
                    continue;
                }
                Ending::InDoubt => panic!("the server did not answer a commit"),
            };
            let settlement = settlement_for(outcome, &delivery, &topic.settings);
            report.count(&settlement);
            let settled = Settled::in_topic(&delivery, settlement, &topic.settings);
            match settled.settlement {
                Settlement::Release | Settlement::Snooze { .. } => put_off.push(settled),
                _ => settle(&worker, vec![settled]).await,
            }
        }
    }
    settle(&worker, put_off).await;
    worker.stop().await.expect("the worker stops");
    report
}

async fn claim(worker: &Worker, topic: &Topic) -> Vec<Delivery> {
    let claimed = worker.claim(topic.id, CLAIM).await.expect("messages can be claimed");
    if claimed.deliveries.is_empty() && claimed.suspect_waits {
        let claimed = worker.claim_suspect(topic.id).await.expect("a suspect can be claimed");
        return claimed.deliveries;
    }
    claimed.deliveries
}

/// Returns whether the ledger has the message's biz id.
async fn is_repeated(conn: &mut AsyncMysqlConnection, topic: &Topic, delivery: &Delivery) -> bool {
    let Some(biz_id) = topic.settings.ledger_window.and(delivery.biz_id.as_deref()) else {
        return false;
    };
    let found = ledger::look(conn, topic.id, &[biz_id]).await.expect("the ledger can be read");
    found.iter().any(|entry| !entry.expired)
}

fn context(topic: &Topic, delivery: &Arc<Delivery>) -> Context {
    Context {
        topic: topic.name.clone(),
        delivery: Arc::clone(delivery),
        cancelled: CancellationToken::new(),
        deadline: None,
        checkpoints: rowmq_core::checkpoint::Checkpoints::default(),
    }
}

async fn settle(worker: &Worker, batch: Vec<Settled>) {
    let outcomes = worker.settle(batch).await.expect("deliveries can be settled");
    let settled = outcomes.iter().all(|outcome| *outcome == SettleOutcome::Settled);
    assert!(settled, "a delivery of this drain was taken away or locked: {outcomes:?}");
}

/// Makes due messages ready, as the janitor does.
async fn promote(conn: &mut AsyncMysqlConnection) {
    let moved = transaction(conn, "promote", async |conn| {
        let due = scheduled::lock_due(conn, Reach::All, PROMOTE).await?;
        if due.is_empty() {
            return Ok(());
        }
        let rows: RowSet = due.iter().map(|due| due.row).collect();
        let first = scheduled::promote(conn, &rows).await?;
        lookup::follow_promoted(conn, first, &due).await?;
        let mut places: Vec<_> = due.iter().map(|due| (due.topic, due.priority)).collect();
        places.sort_unstable();
        places.dedup();
        for (topic, priority) in places {
            floor::publish(conn, topic, priority, first).await?;
        }
        Ok(())
    });
    moved.await.expect("due messages can be made ready");
}
