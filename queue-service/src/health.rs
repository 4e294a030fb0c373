//! The health of a process, for its probes and for systemd.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::notify::{self, Watchdog};

/// A loop that has not turned for this long hangs: its longest wait, for a lease and a reconnect,
/// is far below.
const HUNG: Duration = Duration::from_secs(30);

/// The health of the process, as its probes report it. Under systemd with `Type=notify` it also
/// reports the end of the start, pings the watchdog, and sets the status in `systemctl status`.
/// Cheap to clone; all clones share one state.
#[derive(Debug, Clone)]
pub struct Health {
    ticked: Arc<watch::Sender<Instant>>,
    ready: Arc<watch::Sender<Result<(), String>>>,
    pulses: Arc<Mutex<Vec<Weak<Mutex<Instant>>>>>,
    watchdog: Arc<Watchdog>,
}

/// One of several loops of a process. While it exists, the process is alive only if this loop, too,
/// has turned within 30 s. Clones share one state.
#[derive(Debug, Clone)]
pub struct Pulse {
    health: Health,
    turned: Arc<Mutex<Instant>>,
}

impl Health {
    /// Starts alive but not ready.
    #[must_use]
    pub fn new() -> Self {
        let not_yet = Err("the process is starting".to_owned());
        Self {
            ticked: Arc::new(watch::Sender::new(Instant::now())),
            ready: Arc::new(watch::Sender::new(not_yet)),
            pulses: Arc::default(),
            watchdog: Arc::new(Watchdog::new()),
        }
    }

    /// Records that the process's loop has turned once more. `/livez` fails 30 s after the last
    /// call. Call it from the loop itself, never from a task of its own.
    pub fn alive(&self) {
        self.ticked.send_replace(Instant::now());
        if self.liveness().is_ok() {
            self.watchdog.turned();
        }
    }

    /// Adds another loop, which could hang while the other loops turn.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        let turned = Arc::new(Mutex::new(Instant::now()));
        let mut pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.retain(|pulse| pulse.strong_count() > 0);
        pulses.push(Arc::downgrade(&turned));
        Pulse { health: self.clone(), turned }
    }

    /// Returns when a loop of the process last turned.
    #[must_use]
    pub fn last_turn(&self) -> Instant {
        *self.ticked.borrow()
    }

    /// Sets whether the process can do its work now, or why it cannot.
    pub fn ready(&self, ready: Result<(), String>) {
        let changed = self.ready.send_if_modified(|now| {
            let changed = *now != ready;
            now.clone_from(&ready);
            changed
        });
        if changed {
            notify::fares(&ready);
        }
    }

    pub(crate) fn liveness(&self) -> Result<(), String> {
        let pulses = self.pulses.lock().unwrap_or_else(PoisonError::into_inner);
        let turned = pulses.iter().filter_map(Weak::upgrade).map(|at| read(&at)).min();
        let silent = turned.unwrap_or_else(|| self.last_turn()).elapsed();
        if silent < HUNG {
            return Ok(());
        }
        Err(format!("the loop has not turned for {} s", silent.as_secs()))
    }

    #[cfg(feature = "endpoint")]
    pub(crate) fn readiness(&self) -> Result<(), String> {
        self.ready.borrow().clone()
    }
}

impl Pulse {
    /// Records that this loop has turned once more. Call it from the loop itself.
    pub fn beat(&self) {
        *self.turned.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.health.alive();
    }
}

fn read(at: &Mutex<Instant>) -> Instant {
    *at.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago() -> Instant {
        Instant::now().checked_sub(HUNG).expect("a clock that ran for 30 s")
    }

    #[test]
    fn a_loop_that_does_not_turn_is_not_alive() {
        let health = Health::new();
        assert!(health.liveness().is_ok());
        health.ticked.send_replace(long_ago());
        assert!(health.clone().liveness().is_err());
        health.alive();
        assert!(health.liveness().is_ok());
    }

    #[test]
    fn a_process_with_a_loop_that_hangs_is_not_alive_however_others_turn() {
        let health = Health::new();
        let (turning, hanging) = (health.pulse(), health.pulse());
        *hanging.turned.lock().expect("not poisoned") = long_ago();
        turning.beat();
        assert!(health.liveness().is_err());
        hanging.beat();
        assert!(health.liveness().is_ok());
        *hanging.turned.lock().expect("not poisoned") = long_ago();
        drop(hanging);
        assert!(health.liveness().is_ok(), "a loop that has ended does not hang");
        drop(turning);
        assert!(health.liveness().is_ok(), "nor does a process between two loops");
    }

    #[test]
    fn a_process_is_ready_only_when_it_says_so() {
        let health = Health::new();
        assert_eq!(health.readiness(), Err("the process is starting".to_owned()));
        health.ready(Ok(()));
        assert_eq!(health.readiness(), Ok(()));
        health.ready(Err("the session is lost".to_owned()));
        assert_eq!(health.readiness(), Err("the session is lost".to_owned()));
    }
}
