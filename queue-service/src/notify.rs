//! What systemd is told. Elsewhere all of it does nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// The process is at work: its sessions stand, its loop runs.
pub fn ready() {
    send(NotifyState::Ready);
}

/// The process has begun to stop.
pub fn stopping() {
    send(NotifyState::Stopping);
}

/// How often to ping the watchdog: half of what the unit's `WatchdogSec=` allows, as
/// `sd_watchdog_enabled(3)` advises. `None`: nobody watches.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// The loop still turns. Call it from the loop itself, never from a task of its own.
pub fn watchdog_ping() {
    send(NotifyState::Watchdog);
}

fn send(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "systemd could not be told how the process fares.");
    }
}
