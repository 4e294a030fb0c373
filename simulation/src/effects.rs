//! Transactional handlers: each writes an effect with its ack. The key of the effects' table
//! refuses a second effect of a message.

use std::sync::Arc;
use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::handler::{Context, HandlerError, RunOutcome};
use rowmq_core::model::{MsgId, TopicId, TopicSettings};
use rowmq_core::worker::{Effects, Ending, Links, Perform, Worker};
use rowmq_core::{Delivery, Fault, TopicName, store};
use tokio_util::sync::CancellationToken;

use crate::model::Value;
use crate::recorder::Share;
use crate::stage::Stage;

/// Effects are stored under their messages' topics plus this number: no real topics of the ledger.
const EFFECTS: u32 = 4_000_000_000;

/// The error of a handler that finds an effect of its message.
const TWICE: &str = "it has an effect already";

/// Writes the effects, and takes its time.
struct Book(Duration);

impl Perform<Link> for Book {
    async fn perform(&self, contexts: &[Context], tx: &mut Link) -> RunOutcome {
        for context in contexts {
            let id = context.delivery.msg_id;
            let topic = TopicId(EFFECTS + context.delivery.topic_id.0);
            if let Err(error) = store::ledger::enter_alone(tx, topic, id).await {
                return RunOutcome::Returned(Err(match error.fault() {
                    Fault::Duplicate => HandlerError::discard(TWICE),
                    _ => HandlerError::retry(error),
                }));
            }
        }
        tokio::time::sleep(self.0).await;
        RunOutcome::Returned(Ok(()))
    }
}

/// Runs a transactional handler on the deliveries.
pub(crate) async fn run(
    stage: &Stage,
    name: &str,
    worker: &Worker,
    deliveries: &[Delivery],
    give_up: CancellationToken,
) -> Vec<Ending> {
    let links = Links { url: stage.url(name), lease: stage.settings.lease };
    if stage.below(8) == 0 {
        let (later, token) = (Duration::from_millis(stage.below(600).into()), give_up.clone());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(later).await;
            token.cancel();
        });
    }
    let context = |delivery: &Delivery| Context {
        topic: TopicName::new("work").expect("a name"),
        delivery: Arc::new(delivery.clone()),
        cancelled: CancellationToken::new(),
        deadline: None,
        checkpoints: rowmq_core::checkpoint::Checkpoints::default(),
    };
    let contexts: Vec<_> = deliveries.iter().map(context).collect();
    let topic = TopicSettings { on_done: stage.settings.on_done, ..TopicSettings::default() };
    let book = Book(Duration::from_millis(stage.below(300).into()));
    Effects::on(links, worker).run(&contexts, &topic, &book, &give_up).await
}

/// Returns whether the handler has found an effect of the message.
pub(crate) fn found_one(ending: &Ending) -> bool {
    matches!(
        ending,
        Ending::Undone(RunOutcome::Returned(Err(HandlerError::Discard(reason)))) if reason == TWICE
    )
}

/// Returns the messages that have an effect.
pub(crate) fn written(stage: &Stage) -> Vec<Share> {
    let engine = stage.server.engine.borrow();
    let table = &engine.tables[engine.table("queue_ledger")];
    let id = table.definition.place("msg_id").expect("a column");
    let topic = table.definition.place("topic_id").expect("a column");
    let rows = table.slots.values().filter_map(|slot| slot.committed.as_ref());
    rows.filter_map(|row| match &row[id] {
        Value::Bytes(bytes) => {
            let topic = u32::try_from(row[topic].number()).ok()?.checked_sub(EFFECTS)?;
            Some((TopicId(topic), MsgId::from_bytes(bytes)?))
        }
        _ => None,
    })
    .collect()
}
