use std::time::{Duration, Instant};

/// Longer than anything a test waits for may take, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// How often the condition is looked at.
const POLL: Duration = Duration::from_millis(5);

/// Waits until the condition holds; returns how long that took.
///
/// # Panics
/// When it does not hold within [`PATIENCE`].
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
    start.elapsed()
}
