use std::time::{Duration, Instant};

use rowmq_core::AsyncMysqlConnection;
use rowmq_core::Result;
use rowmq_core::connection::{ServerUrl, Session, SessionKind, connect};
use rowmq_core::model::Fault;

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

/// Connects, however long a busy server takes to greet.
///
/// # Panics
/// When the server refuses, or is not there within [`PATIENCE`].
pub async fn connected(url: &ServerUrl) -> AsyncMysqlConnection {
    greeted(async || connect(url, SessionKind::Plain).await).await.expect("the server answers")
}

/// Opens a session with this deadline for each call, however long a busy server takes to greet.
///
/// # Panics
/// When the server refuses, or is not there within [`PATIENCE`].
pub async fn session_at(url: &ServerUrl, deadline: Duration) -> Session {
    let open = async || Session::open(url, SessionKind::Plain, deadline).await;
    greeted(open).await.expect("the server answers")
}

/// Repeats `work`, which connects first, while the server does not greet it in time, or has no
/// connection left: the library gives up after seconds, or at once.
///
/// # Errors
/// Any other error of `work`, and this one after [`PATIENCE`].
pub async fn greeted<T>(mut work: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match work().await {
            Err(error)
                if matches!(error.fault(), Fault::Gone | Fault::Busy)
                    && start.elapsed() < PATIENCE =>
            {
                tokio::time::sleep(POLL).await;
            }
            done => return done,
        }
    }
}
