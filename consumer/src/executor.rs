//! Runs a handler: its time limit, its panics, its interruption.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rowmq_core::handler::{Context, RunOutcome};
use rowmq_core::model::TopicSettings;
use rowmq_core::worker::{Effects, Ending};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::registration::{Run, TxRun};

/// How long a cancelled handler has to stop before it is dropped. Longer than the two seconds that
/// an exec handler's program gets.
const CANCEL_GRACE: Duration = Duration::from_secs(4);

/// How long a transactional run has to end after its handler was dropped, so that a commit in
/// progress can finish. If it is still running after that, the fence decides.
const COMMIT_GRACE: Duration = Duration::from_secs(15);

/// A run that has not begun.
pub(crate) struct Execution {
    run: BoxFuture<'static, Vec<Ending>>,
    deliveries: usize,
    /// Drops the handler of a transactional run; a run of another kind is dropped as a whole.
    give_up: Option<CancellationToken>,
}

impl Execution {
    pub(crate) fn plain(run: Arc<dyn Run>, contexts: Vec<Context>) -> Self {
        let deliveries = contexts.len();
        let undone = |outcomes: Vec<_>| outcomes.into_iter().map(Ending::Undone).collect();
        Self { run: run.run(contexts).map(undone).boxed(), deliveries, give_up: None }
    }

    pub(crate) fn transactional(
        run: Arc<dyn TxRun>,
        contexts: Vec<Context>,
        topic: TopicSettings,
        effects: Effects,
    ) -> Self {
        let (deliveries, give_up) = (contexts.len(), CancellationToken::new());
        let run = run.run(contexts, topic, effects, give_up.clone());
        Self { run, deliveries, give_up: Some(give_up) }
    }
}

impl Execution {
    /// Puts the run in a span.
    pub(crate) fn within(self, span: Span) -> Self {
        if span.is_none() {
            return self;
        }
        Self { run: self.run.instrument(span).boxed(), ..self }
    }
}

/// Runs the handler in a task of its own, so that a panic is caught. `token` is the one in the
/// contexts; `stop` interrupts from outside.
pub(crate) async fn execute(
    execution: Execution,
    limit: Option<Duration>,
    token: CancellationToken,
    stop: CancellationToken,
) -> Vec<Ending> {
    let Execution { run, deliveries: n, give_up } = execution;
    let mut task = tokio::spawn(run);
    tokio::select! {
        biased;
        done = &mut task => returned(done, n),
        () = stop.cancelled() => {
            token.cancel();
            let endings = Box::pin(leave(task, give_up, n)).await;
            endings.into_iter().map(interrupted).collect()
        }
        limit = expired(limit) => {
            token.cancel();
            let endings = Box::pin(leave(task, give_up, n)).await;
            endings.into_iter().map(|ending| timed_out(ending, limit)).collect()
        }
    }
}

async fn expired(limit: Option<Duration>) -> Duration {
    match limit {
        Some(limit) => {
            tokio::time::sleep(limit).await;
            limit
        }
        None => std::future::pending().await,
    }
}

type Joined = Result<Vec<Ending>, JoinError>;

/// Waits for a cancelled handler to stop; after the grace it is dropped.
async fn leave(
    mut task: JoinHandle<Vec<Ending>>,
    give_up: Option<CancellationToken>,
    n: usize,
) -> Vec<Ending> {
    let mut done = tokio::time::timeout(CANCEL_GRACE, &mut task).await.ok();
    if let (None, Some(give_up)) = (&done, give_up) {
        give_up.cancel();
        done = tokio::time::timeout(COMMIT_GRACE, &mut task).await.ok();
    }
    done.map_or_else(
        || {
            task.abort();
            each(n, || RunOutcome::Interrupted)
        },
        |done| returned(done, n),
    )
}

fn returned(done: Joined, n: usize) -> Vec<Ending> {
    match done {
        Ok(endings) => endings,
        Err(error) => {
            let text = panic_text(error);
            each(n, || RunOutcome::Panicked(text.clone()))
        }
    }
}

/// A handler that finished despite the interruption counts as finished. One that failed was
/// prevented from finishing, which is not the message's fault.
fn interrupted(ending: Ending) -> Ending {
    match ending {
        Ending::Undone(RunOutcome::Returned(Err(_))) => Ending::Undone(RunOutcome::Interrupted),
        other => other,
    }
}

/// A run that took too long has failed, but whatever it committed stays committed.
fn timed_out(ending: Ending, limit: Duration) -> Ending {
    match ending {
        over @ (Ending::Committed
        | Ending::InDoubt
        | Ending::Undone(RunOutcome::EndedTransaction)) => over,
        Ending::Undone(_) => Ending::Undone(RunOutcome::TimedOut(limit)),
    }
}

fn each(n: usize, outcome: impl Fn() -> RunOutcome) -> Vec<Ending> {
    (0..n).map(|_| Ending::Undone(outcome())).collect()
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "its task was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "with something that is no text".to_owned())
}
