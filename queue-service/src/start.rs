//! The start of a process: it waits for a server that is away, as it does later.

use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use rowmq_core::chance;
use tokio_util::sync::CancellationToken;

use crate::health::Health;

/// The mean pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Repeats a step of the start while it fails because the server is away, as `is_away` says of its
/// error. Until then the process is alive, and says why it is not ready. Returns `None` if `stop`
/// is cancelled first.
///
/// # Errors
/// Any other error of the step.
pub async fn when_there<T, E: Display, F: Future<Output = Result<T, E>>>(
    health: &Health,
    stop: &CancellationToken,
    is_away: impl Fn(&E) -> bool,
    mut step: impl FnMut() -> F,
) -> Result<Option<T>, E> {
    loop {
        match step().await {
            Err(error) if is_away(&error) => {
                tracing::warn!(%error, "Cannot start yet; trying again.");
                health.alive();
                health.ready(Err(error.to_string()));
            }
            done => return done.map(Some),
        }
        let pause = PAUSE.mul_f64(chance::between(0.5..=1.5));
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Ok(None);
        }
    }
}
