//! Whether a topic's handler is so quick that a task of its own would cost more than its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// About what it costs to start a task and to be woken by its end. A handler that takes longer
/// gains more from a core of its own.
const QUICK: Duration = Duration::from_micros(2);

/// What the last run of a topic's handler took.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace(Arc<AtomicBool>);

impl Pace {
    /// Whether the last run was quick.
    pub(crate) fn is_quick(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records that a run took so long.
    pub(crate) fn learn(&self, took: Duration) {
        self.0.store(took < QUICK, Ordering::Relaxed);
    }

    /// Runs `run`, and records how long it took.
    pub(crate) async fn timed<T>(self, run: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = run.await;
        self.learn(begun.elapsed());
        done
    }
}
