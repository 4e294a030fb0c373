//! Several kinds of messages on one topic, each with a handler of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::{Context, Handler, HandlerError, RunOutcome};

use crate::registration::{Run, Typed};

/// Handlers of one topic by the kind of its messages, the header `queue-kind`.
///
/// A message without the header goes to the only handler, if there is exactly one. A message whose
/// kind has no handler here fails and is retried, because a consumer of a newer version may have
/// one; after the last attempt it is a dead letter that names its kind.
#[derive(Clone, Default)]
#[must_use]
pub struct Kinds {
    handlers: BTreeMap<String, Arc<dyn Run>>,
}

impl Kinds {
    /// Starts with no handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the messages of `kind`, whose bodies are JSON. A second handler of a kind replaces
    /// the first.
    pub fn on(mut self, kind: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.insert(kind.into(), Arc::new(Typed(handler)));
        self
    }

    /// Returns whether the kind has a handler.
    #[must_use]
    pub fn has(&self, kind: &str) -> bool {
        self.handlers.contains_key(kind)
    }

    fn handler(&self, context: &Context) -> Result<Arc<dyn Run>, HandlerError> {
        let kind = context.delivery.headers.kind();
        let found = match kind {
            Some(kind) => self.handlers.get(kind),
            None if self.handlers.len() == 1 => self.handlers.values().next(),
            None => None,
        };
        found.cloned().ok_or_else(|| HandlerError::retry(self.unknown(kind)))
    }

    fn unknown(&self, kind: Option<&str>) -> String {
        let known: Vec<&str> = self.handlers.keys().map(String::as_str).collect();
        let known = known.join(", ");
        match kind {
            Some(kind) => {
                format!("no handler here takes messages of the kind '{kind}'; there are: {known}")
            }
            None => format!("the message has no header queue-kind; there are handlers of: {known}"),
        }
    }
}

impl Run for Kinds {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        async move {
            let mut outcomes = Vec::with_capacity(contexts.len());
            for context in contexts {
                match self.handler(&context) {
                    Ok(handler) => outcomes.extend(handler.run(vec![context]).await),
                    Err(unknown) => outcomes.push(RunOutcome::Returned(Err(unknown))),
                }
            }
            outcomes
        }
        .boxed()
    }
}
