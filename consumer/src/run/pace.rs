//! Whether a topic's handler is so quick that a task of its own would cost more than its run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A task of its own cost a run 0.5 to 1.2 µs of CPU in five of six loads of the benchmark's cases
/// `drain-1000` and `groups` (MariaDB, two cores), and nothing in the sixth. A handler that takes
/// well over that gains more from a second core.
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
