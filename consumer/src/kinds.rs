//! Several kinds of messages on one topic, each with a handler of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::{Context, Handler, HandlerError, RunOutcome, TxHandler};
use rowmq_core::worker::Perform;
use rowmq_core::{AsyncMysqlConnection, TopicName};

use crate::error::Error;
use crate::registration::{Run, Tx, Typed};

/// Handlers of one topic by the kind of its messages, the header `queue-kind`.
///
/// A message without the header goes to the only handler, if there is exactly one. A message whose
/// kind has no handler here fails and is retried, because a consumer of a newer version may have
/// one; after the last attempt it is a dead letter that names its kind.
#[derive(Clone, Default)]
#[must_use]
pub struct Kinds {
    handlers: BTreeMap<String, Arc<dyn Run>>,
    /// A kind that was given two handlers.
    twice: Option<String>,
}

impl Kinds {
    /// Starts with no handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the messages of `kind`, whose bodies are JSON. A consumer refuses `Kinds` with two
    /// handlers for one kind.
    pub fn on(mut self, kind: impl Into<String>, handler: impl Handler) -> Self {
        let kind = kind.into();
        if self.handlers.insert(kind.clone(), Arc::new(Typed(handler))).is_some() {
            self.twice.get_or_insert(kind);
        }
        self
    }

    /// Refuses kinds that cannot be the handlers of `topic`.
    pub(crate) fn check(&self, topic: &TopicName) -> Result<(), Error> {
        match &self.twice {
            Some(kind) => {
                Err(Error::TwoHandlersOfKind { topic: topic.clone(), kind: kind.clone() })
            }
            None if self.handlers.is_empty() => Err(Error::NoHandler),
            None => Ok(()),
        }
    }

    fn handler(&self, context: &Context) -> Result<Arc<dyn Run>, RunOutcome> {
        let kind = context.delivery.headers.kind();
        let found = match kind {
            Some(kind) => self.handlers.get(kind),
            None if self.handlers.len() == 1 => self.handlers.values().next(),
            None => None,
        };
        found.cloned().ok_or_else(|| no_handler(kind, self.handlers.keys().map(String::as_str)))
    }
}

impl Run for Kinds {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        async move {
            let mut outcomes = Vec::with_capacity(contexts.len());
            for context in contexts {
                match self.handler(&context) {
                    Ok(handler) => outcomes.extend(handler.run(vec![context]).await),
                    Err(unknown) => outcomes.push(unknown),
                }
            }
            outcomes
        }
        .boxed()
    }
}

/// A transactional handler of one kind of messages.
pub(crate) struct TxOfKind<H> {
    pub(crate) kind: String,
    pub(crate) handler: Tx<H>,
}

impl<H: TxHandler> Perform for TxOfKind<H> {
    async fn perform(&self, contexts: &[Context], tx: &mut AsyncMysqlConnection) -> RunOutcome {
        let mut kinds = contexts.iter().filter_map(|context| context.delivery.headers.kind());
        match kinds.find(|kind| *kind != self.kind) {
            Some(other) => no_handler(Some(other), [self.kind.as_str()]),
            None => self.handler.perform(contexts, tx).await,
        }
    }
}

fn no_handler<'k>(kind: Option<&str>, known: impl IntoIterator<Item = &'k str>) -> RunOutcome {
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    let reason = match kind {
        Some(kind) => format!("no handler for messages of the kind '{kind}'; there are: {known}"),
        None => format!("the message has no header queue-kind; there are handlers for: {known}"),
    };
    RunOutcome::Returned(Err(HandlerError::retry(reason)))
}
