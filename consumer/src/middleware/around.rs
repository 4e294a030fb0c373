//! Handlers with the middleware around them, as the consumer runs them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::{Context, RunOutcome};
use rowmq_core::model::TopicSettings;
use rowmq_core::worker::{Effects, Ending};
use tokio_util::sync::CancellationToken;

use super::{End, Layer, Next};
use crate::registration::{Run, TxRun};

async fn through(layers: &[Arc<dyn Layer>], end: &dyn End, run: &[Context]) -> Vec<RunOutcome> {
    let places: Vec<usize> = (0..run.len()).collect();
    Next { layers, end, run, places: &places }.run().await
}

/// A plain handler with middleware around it.
pub(crate) struct Around {
    pub(crate) layers: Vec<Arc<dyn Layer>>,
    pub(crate) handler: Arc<dyn Run>,
}

impl Run for Around {
    fn run(self: Arc<Self>, contexts: Vec<Context>) -> BoxFuture<'static, Vec<RunOutcome>> {
        async move { through(&self.layers, &Plain(&self.handler), &contexts).await }.boxed()
    }
}

struct Plain<'h>(&'h Arc<dyn Run>);

impl End for Plain<'_> {
    fn run<'a>(&'a self, run: &'a [Context], _: &'a [usize]) -> BoxFuture<'a, Vec<RunOutcome>> {
        Arc::clone(self.0).run(run.to_vec())
    }
}

/// A transactional handler with middleware around it.
pub(crate) struct AroundTx {
    pub(crate) layers: Vec<Arc<dyn Layer>>,
    pub(crate) handler: Arc<dyn TxRun>,
}

impl TxRun for AroundTx {
    fn run(
        self: Arc<Self>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
        give_up: CancellationToken,
    ) -> BoxFuture<'static, Vec<Ending>> {
        async move {
            let over = Mutex::new(contexts.iter().map(|_| None).collect());
            let handler = Arc::clone(&self.handler);
            let end = Transactional { handler, topic, effects, give_up, over };
            let outcomes = through(&self.layers, &end, &contexts).await;
            let over = end.over.into_inner().unwrap_or_else(PoisonError::into_inner);
            let ending = |(over, outcome): (Option<_>, _)| over.unwrap_or(Ending::Undone(outcome));
            over.into_iter().zip(outcomes).map(ending).collect()
        }
        .boxed()
    }
}

struct Transactional {
    handler: Arc<dyn TxRun>,
    topic: TopicSettings,
    effects: Effects,
    give_up: CancellationToken,
    /// Endings that no middleware can change.
    over: Mutex<Vec<Option<Ending>>>,
}

impl Transactional {
    fn over(&self) -> MutexGuard<'_, Vec<Option<Ending>>> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl End for Transactional {
    fn run<'a>(
        &'a self,
        run: &'a [Context],
        places: &'a [usize],
    ) -> BoxFuture<'a, Vec<RunOutcome>> {
        async move {
            // If a middleware drops this half-way, it is unknown what was committed.
            for at in places {
                self.over()[*at] = Some(Ending::InDoubt);
            }
            let handler = Arc::clone(&self.handler);
            let (topic, effects) = (self.topic.clone(), self.effects.clone());
            let endings = handler.run(run.to_vec(), topic, effects, self.give_up.clone()).await;
            let mut over = self.over();
            places.iter().zip(endings).map(|(at, ending)| part(ending, &mut over[*at])).collect()
        }
        .boxed()
    }
}

/// Splits off what a middleware sees of an ending; what cannot change is kept in `over`.
fn part(ending: Ending, over: &mut Option<Ending>) -> RunOutcome {
    match ending {
        Ending::Committed | Ending::InDoubt => {
            *over = Some(ending);
            RunOutcome::Returned(Ok(()))
        }
        Ending::Undone(RunOutcome::EndedTransaction) => {
            *over = Some(Ending::Undone(RunOutcome::EndedTransaction));
            RunOutcome::EndedTransaction
        }
        Ending::Undone(outcome) => {
            *over = None;
            outcome
        }
    }
}
