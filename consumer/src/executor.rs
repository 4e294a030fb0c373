//! Running a handler: its time, its panics, its interruption.

use std::sync::Arc;
use std::time::Duration;

use queue_core::handler::{Context, RunOutcome};
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::registration::Run;

/// How long a handler that was told to stop has to do so before it is dropped. Longer than the
/// two seconds an exec handler's program gets.
const CANCEL_GRACE: Duration = Duration::from_secs(4);

/// Runs the handler in a task of its own, so that a panic is caught. `token` is the one in the
/// contexts; `stop` interrupts from outside.
pub(crate) async fn execute(
    run: Arc<dyn Run>,
    contexts: Vec<Context>,
    limit: Option<Duration>,
    token: CancellationToken,
    stop: CancellationToken,
) -> Vec<RunOutcome> {
    let n = contexts.len();
    let mut task = tokio::spawn(run.run(contexts));
    tokio::select! {
        biased;
        done = &mut task => returned(done, n),
        () = stop.cancelled() => {
            token.cancel();
            let done = leave(task).await;
            done.map_or_else(|| each(n, || RunOutcome::Interrupted), |done| {
                returned(done, n).into_iter().map(interrupted).collect()
            })
        }
        limit = expired(limit) => {
            token.cancel();
            drop(leave(task).await);
            each(n, || RunOutcome::TimedOut(limit))
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

type Joined = Result<Vec<RunOutcome>, JoinError>;

/// Waits for a handler that was told to stop; after the grace it is dropped.
async fn leave(mut task: JoinHandle<Vec<RunOutcome>>) -> Option<Joined> {
    let done = tokio::time::timeout(CANCEL_GRACE, &mut task).await.ok();
    if done.is_none() {
        task.abort();
    }
    done
}

fn returned(done: Joined, n: usize) -> Vec<RunOutcome> {
    match done {
        Ok(outcomes) => outcomes,
        Err(error) => {
            let text = panic_text(error);
            each(n, || RunOutcome::Panicked(text.clone()))
        }
    }
}

/// A handler that finished in spite of the interruption has finished; one that failed was kept
/// from finishing, which is not the message's fault.
fn interrupted(outcome: RunOutcome) -> RunOutcome {
    match outcome {
        RunOutcome::Returned(Err(_)) => RunOutcome::Interrupted,
        other => other,
    }
}

fn each(n: usize, outcome: impl Fn() -> RunOutcome) -> Vec<RunOutcome> {
    (0..n).map(|_| outcome()).collect()
}

fn panic_text(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "its task was cancelled".to_owned() };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "with something that is no text".to_owned())
}
