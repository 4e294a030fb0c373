//! Turns signals into one of two requests; nothing else in the project sees a signal's number.

use anyhow::Context;
use futures_util::StreamExt;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio_util::sync::CancellationToken;

use crate::notify;

/// The requests to stop the process.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Take nothing new, finish what runs.
    pub drain: CancellationToken,
    /// Stop at once: give back what has not been finished. Never set without `drain`.
    pub quit: CancellationToken,
}

/// Listens for signals: the first TERM or INT asks to drain; the second, or QUIT, asks to stop at
/// once. systemd is notified that the process stops. Call it within a runtime, once in each
/// process.
///
/// # Errors
/// If the signals cannot be registered with the system.
pub fn shutdown_on_signals() -> anyhow::Result<Shutdown> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT]).context("Cannot take signals")?;
    let shutdown = Shutdown::default();
    let asked = shutdown.clone();
    tokio::spawn(async move {
        while let Some(signal) = signals.next().await {
            notify::stopping();
            if signal == SIGQUIT || asked.drain.is_cancelled() {
                tracing::info!(signal, "Asked to stop at once.");
                asked.drain.cancel();
                asked.quit.cancel();
            } else {
                tracing::info!(signal, "Asked to stop; a second signal stops at once.");
                asked.drain.cancel();
            }
        }
    });
    Ok(shutdown)
}
