//! Signals become one of two wishes at the edge; nothing else in the project sees a number.

use anyhow::Context;
use futures_util::StreamExt;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio_util::sync::CancellationToken;

use crate::notify;

/// How the process is asked to stop.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Take nothing new, finish what runs.
    pub drain: CancellationToken,
    /// Stop at once: give back what has not been finished. Never without `drain`.
    pub quit: CancellationToken,
}

/// Listens for signals: the first TERM or INT asks to drain, the second, or QUIT, to stop at once.
/// systemd is told that the process stops.
/// Call it within a runtime, once a process.
///
/// # Errors
/// If the signals cannot be had from the system.
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
