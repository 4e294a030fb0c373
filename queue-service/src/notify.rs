//! Notifies systemd about a service of `Type=notify`. Elsewhere all of it does nothing.
//!
//! Only [`Health`](crate::health::Health) and the signals call this, so that systemd always gets
//! the same answers as the probes.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Pings come this many times in each `WatchdogSec=` of the unit. `sd_watchdog_enabled(3)` advises
/// two; a ping may be due between two turns of a loop, so there is room for those.
const PINGS: u32 = 4;

/// The watchdog of the unit, if it has one.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pings: Mutex<Pings>,
}

#[derive(Debug)]
struct Pings {
    /// `None`: there is no watchdog.
    interval: Option<Duration>,
    last: Option<Instant>,
}

impl Watchdog {
    /// Reads the watchdog from the environment.
    pub(crate) fn new() -> Self {
        let interval = sd_notify::watchdog_enabled().map(|limit| limit / PINGS);
        Self { pings: Mutex::new(Pings { interval, last: None }) }
    }

    /// Records that a loop has turned, and that no loop of the process hangs. Never call this from
    /// a timer, which would go on while the work stands still.
    pub(crate) fn turned(&self) {
        let mut pings = self.pings.lock().unwrap_or_else(PoisonError::into_inner);
        if pings.take_due(Instant::now()) {
            send(&[NotifyState::Watchdog]);
        }
    }
}

impl Pings {
    fn take_due(&mut self, now: Instant) -> bool {
        let Some(interval) = self.interval else { return false };
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= interval);
        if due {
            self.last = Some(now);
        }
        due
    }
}

/// Reports that the process can do its work, which ends its start, or why it cannot, which
/// `systemctl status` shows.
pub(crate) fn fares(ready: &Result<(), String>) {
    match ready {
        Ok(()) => send(&[NotifyState::Ready, NotifyState::Status("At work.")]),
        Err(reason) => send(&[NotifyState::Status(&one_line(reason))]),
    }
}

/// Reports that the process has begun to stop.
pub(crate) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("Finishing what runs.")]);
}

/// Joins the lines of a text. A second line would be another message to systemd: the text of a
/// server's error must not pass for a message of the process.
fn one_line(text: &str) -> String {
    text.split(char::is_control).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "Cannot notify systemd of the process's state.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_a_loop_turns_the_watchdog_is_pinged_four_times_in_its_limit() {
        let start = Instant::now();
        let turns = |interval| {
            let mut pings = Pings { interval, last: None };
            let turned = (0..60_000).map(|ms| start + Duration::from_millis(ms));
            turned.filter(|now| pings.take_due(*now)).count()
        };
        assert_eq!(turns(Some(Duration::from_secs(60) / PINGS)), 4);
        assert_eq!(turns(None), 0, "no watchdog is set");
    }

    #[test]
    fn the_text_of_an_error_is_one_message_to_systemd() {
        assert_eq!(one_line("refused:\nMAINPID=1\r\n"), "refused: MAINPID=1");
    }
}
