//! Middleware: user code around the runs of all handlers.

mod around;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::{Context, HandlerError, RunOutcome};

pub(crate) use self::around::{Around, AroundTx};

/// Wraps the runs of every handler of a consumer, whatever its kind: to log, measure, limit or
/// refuse. A run is one call of a handler with the messages it gets at once: one, or for a batch
/// handler several.
///
/// Registered by [`ConsumerBuilder::middleware`](crate::ConsumerBuilder::middleware), the first one
/// outermost. It runs in the handler's task, so that a `tracing` span or a `tokio::task_local` it
/// sets around [`Next::run`] holds for the handler too.
///
/// ```
/// use std::time::Instant;
///
/// use rowmq_consumer::{Middleware, Next};
/// use rowmq_core::handler::{Context, RunOutcome};
///
/// struct Timed;
///
/// impl Middleware for Timed {
///     async fn around(&self, run: &[Context], next: Next<'_>) -> Vec<RunOutcome> {
///         let begun = Instant::now();
///         let outcomes = next.run().await;
///         for (context, outcome) in run.iter().zip(&outcomes) {
///             let (id, took) = (context.delivery.msg_id, begun.elapsed());
///             tracing::info!(topic = %context.topic, %id, outcome = outcome.word(), ?took);
///         }
///         outcomes
///     }
/// }
/// ```
///
/// * **It is part of the run**: the run's time limit includes it, its panic is a failure of each
///   message, as a handler's is, and the messages stay claimed while it waits.
/// * **It is outside the transaction of a transactional handler**, around all its tries: what it
///   writes is not rolled back with it. What the transaction has settled stands: once it is
///   committed, or the handler has ended it, no outcome and no panic of a middleware changes what
///   becomes of the message. Do not drop [`Next::run`] half-way; to limit the handler's time, use
///   [`TopicOptions::timeout`](crate::TopicOptions).
/// * **It sees only messages for which a handler would be called**: not those that have expired,
///   that no codec decodes, or that the ledger knows of before a plain handler.
pub trait Middleware: Send + Sync + 'static {
    /// Continues the run with [`next.run()`](Next::run), and returns its outcomes or others: one
    /// for each message, in the same order. A missing one is a failure of that message.
    fn around(
        &self,
        run: &[Context],
        next: Next<'_>,
    ) -> impl Future<Output = Vec<RunOutcome>> + Send;
}

/// The rest of a run: the inner middleware, and the handler.
#[must_use = "the handler does not run unless this does"]
pub struct Next<'a> {
    layers: &'a [Arc<dyn Layer>],
    end: &'a dyn End,
    run: &'a [Context],
    /// The positions of these messages among those that the consumer began the run with.
    places: &'a [usize],
}

impl Next<'_> {
    /// Continues with all messages of the run; returns the outcome of each, in the same order. A
    /// panic of inner middleware or of the handler is an outcome too.
    pub async fn run(self) -> Vec<RunOutcome> {
        let rest = match self.layers.split_first() {
            Some((layer, layers)) => layer.around(self.run, Next { layers, ..self }),
            None => self.end.run(self.run, self.places),
        };
        let outcomes = match AssertUnwindSafe(rest).catch_unwind().await {
            Ok(outcomes) => outcomes,
            Err(panic) => {
                return self.run.iter().map(|_| RunOutcome::of_panic(&*panic)).collect();
            }
        };
        one_for_each(outcomes, self.run.len())
    }

    /// Continues with the messages for which `admit` returns `Ok`. Each of the others gets its
    /// error as its outcome, and the handler does not see it.
    pub async fn run_if(
        self,
        mut admit: impl FnMut(&Context) -> Result<(), HandlerError>,
    ) -> Vec<RunOutcome> {
        let mut verdicts = Vec::with_capacity(self.run.len());
        let (mut run, mut places) = (Vec::new(), Vec::new());
        for (context, place) in self.run.iter().zip(self.places) {
            let verdict = admit(context);
            if verdict.is_ok() {
                run.push(context.clone());
                places.push(*place);
            }
            verdicts.push(verdict);
        }
        let outcomes = if run.is_empty() {
            Vec::new()
        } else {
            Next { run: &run, places: &places, ..self }.run().await
        };
        let mut outcomes = outcomes.into_iter();
        verdicts
            .into_iter()
            .map(|verdict| match verdict {
                Ok(()) => outcomes.next().unwrap_or_else(no_outcome),
                refused => RunOutcome::Returned(refused),
            })
            .collect()
    }
}

/// A middleware of any kind, as the consumer holds it.
pub(crate) trait Layer: Send + Sync {
    fn around<'a>(&'a self, run: &'a [Context], next: Next<'a>) -> BoxFuture<'a, Vec<RunOutcome>>;
}

impl<M: Middleware> Layer for M {
    fn around<'a>(&'a self, run: &'a [Context], next: Next<'a>) -> BoxFuture<'a, Vec<RunOutcome>> {
        Middleware::around(self, run, next).boxed()
    }
}

/// What the innermost middleware wraps.
trait End: Sync {
    fn run<'a>(&'a self, run: &'a [Context], places: &'a [usize])
    -> BoxFuture<'a, Vec<RunOutcome>>;
}

fn one_for_each(mut outcomes: Vec<RunOutcome>, n: usize) -> Vec<RunOutcome> {
    outcomes.truncate(n);
    outcomes.resize_with(n, no_outcome);
    outcomes
}

fn no_outcome() -> RunOutcome {
    RunOutcome::Panicked("a middleware gave no outcome of this message".to_owned())
}
