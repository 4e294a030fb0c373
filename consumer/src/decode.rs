//! Decoding bodies before a handler, and the middleware around it, get them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use queue_core::codec::{Codecs, is_encoded};
use queue_core::handler::{Context, RunOutcome};
use queue_core::topic::TopicSettings;
use queue_core::worker::{Effects, Ending};
use tokio_util::sync::CancellationToken;

use crate::registration::{Run, TxRun};

/// A handler of any kind with codecs before it.
pub(crate) struct Decoding<H: ?Sized> {
    pub(crate) codecs: Codecs,
    pub(crate) handler: Arc<H>,
}

impl Run for Decoding<dyn Run> {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        let handler = Arc::clone(&self.handler);
        if !needs_decoding(&contexts) {
            return handler.run(contexts);
        }
        async move {
            let (contexts, refused) = decode(&self.codecs, contexts);
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
        if !needs_decoding(&contexts) {
            return handler.run(contexts, topic, effects, give_up);
        }
        async move {
            let (contexts, refused) = decode(&self.codecs, contexts);
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

fn needs_decoding(contexts: &[Context]) -> bool {
    contexts.iter().any(|context| is_encoded(&context.delivery.headers))
}

/// What can be handled, and for each of the messages what it is refused with, if it is. All bodies
/// of a batch together have no more bytes than one may have: those that are beyond are given back,
/// for another batch.
fn decode(codecs: &Codecs, contexts: Vec<Context>) -> (Vec<Context>, Vec<Option<RunOutcome>>) {
    let mut readable = Vec::with_capacity(contexts.len());
    let mut room = Some(codecs.limit());
    let refused = contexts.into_iter().map(|mut context| {
        let Some(left) = room else { return Some(RunOutcome::Interrupted) };
        match codecs.decoded(&context.delivery) {
            Ok(None) => {}
            Ok(Some(decoded)) => {
                room = left.checked_sub(decoded.body.len());
                if room.is_none() {
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
    (readable, refused)
}

/// One for each message again, in their order.
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
