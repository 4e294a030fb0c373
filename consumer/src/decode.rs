//! Decodes bodies before the handler, and the middleware around it, get them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::codec::{Codecs, Room};
use rowmq_core::handler::{Context, RunOutcome};
use rowmq_core::model::TopicSettings;
use rowmq_core::worker::{Effects, Ending};
use tokio_util::sync::CancellationToken;

use crate::registration::{Run, TxRun};

/// A handler of any kind, with codecs before it.
pub(crate) struct Decoding<H: ?Sized> {
    pub(crate) codecs: Codecs,
    pub(crate) handler: Arc<H>,
}

impl Run for Decoding<dyn Run> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        let handler = Arc::clone(&self.handler);
        if passes(&self.codecs, &contexts) {
            return handler.run(contexts);
        }
        async move {
            let (contexts, refused, _room) = decode(&self.codecs, contexts).await;
            let outcomes =
                if contexts.is_empty() { Vec::new() } else { handler.run(contexts).await };
            join(refused, outcomes, |outcome| outcome)
        }
        .boxed()
    }
}

impl TxRun for Decoding<dyn TxRun> {
    fn run(
        self: Arc<Self>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
        give_up: CancellationToken,
    ) -> BoxFuture<'static, Vec<Ending>> {
        let handler = Arc::clone(&self.handler);
        if passes(&self.codecs, &contexts) {
            return handler.run(contexts, topic, effects, give_up);
        }
        async move {
            let (contexts, refused, _room) = decode(&self.codecs, contexts).await;
            let endings = if contexts.is_empty() {
                Vec::new()
            } else {
                handler.run(contexts, topic, effects, give_up).await
            };
            join(refused, endings, Ending::Undone)
        }
        .boxed()
    }
}

fn passes(codecs: &Codecs, contexts: &[Context]) -> bool {
    contexts.iter().all(|context| codecs.pass(&context.delivery.headers))
}

/// Decodes a batch. Returns the messages that can be handled, the outcome of each message that is
/// refused, and the room that the decoded bodies take until they are handled. All bodies of a batch
/// together may have no more bytes than one body may; messages beyond that are given back, for
/// another batch.
async fn decode(
    codecs: &Codecs,
    contexts: Vec<Context>,
) -> (Vec<Context>, Vec<Option<RunOutcome>>, Room) {
    let mut room = codecs.room().await;
    let mut readable = Vec::with_capacity(contexts.len());
    let mut left = Some(codecs.limit());
    let refused = contexts.into_iter().map(|mut context| {
        let Some(bytes) = left else { return Some(RunOutcome::Interrupted) };
        match codecs.decoded(&context.topic, &context.delivery) {
            Ok(None) => {}
            Ok(Some(decoded)) => {
                left = bytes.checked_sub(decoded.body.len());
                if left.is_none() {
                    return Some(RunOutcome::Interrupted);
                }
                context.delivery = Arc::new(decoded);
            }
            Err(error) => return Some(RunOutcome::Undecodable(error.to_string())),
        }
        readable.push(context);
        None
    });
    let refused = refused.collect();
    room.shrink_to(codecs.limit() - left.unwrap_or(0));
    (readable, refused, room)
}

/// Merges the outcomes into one for each message, in their order.
fn join<T>(
    refused: Vec<Option<RunOutcome>>,
    handled: Vec<T>,
    ending: impl Fn(RunOutcome) -> T,
) -> Vec<T> {
    let mut handled = handled.into_iter();
    let no_verdict = || ending(RunOutcome::Panicked("it gave no verdict on this message".into()));
    let one = |refused: Option<RunOutcome>| match refused {
        Some(outcome) => ending(outcome),
        None => handled.next().unwrap_or_else(no_verdict),
    };
    refused.into_iter().map(one).collect()
}
