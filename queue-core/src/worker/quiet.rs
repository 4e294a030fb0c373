//! When a worker may send little to the server: while the doorbell is active and it holds nothing.
//! Probes would find some events earlier. Either the doorbell rings for these (messages, pauses),
//! or the delay costs nothing: a worker without claims that is declared dead only registers again.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::doorbell::Doorbell;

/// After a ring the worker looks as often as without a doorbell for so long that it reads the whole
/// pulse once: a rule may have changed.
const LOUD_FOR: Duration = Duration::from_millis(250);

/// One session's view of quietness.
#[derive(Debug)]
pub(super) struct Quiet {
    bell: Option<(watch::Receiver<bool>, watch::Receiver<u64>)>,
    holds: watch::Receiver<bool>,
    loud_until: Instant,
}

impl Quiet {
    /// `holds` says whether the worker holds anything.
    pub(super) fn new(doorbell: Option<&Doorbell>, holds: watch::Receiver<bool>) -> Self {
        let bell = doorbell.map(|doorbell| (doorbell.ringing(), doorbell.rings()));
        Self { bell, holds, loud_until: Instant::now() }
    }

    pub(super) fn is_quiet(&self) -> bool {
        let rings = self.bell.as_ref().is_some_and(|(ringing, _)| *ringing.borrow());
        rings && !self.holds() && self.loud_until <= Instant::now()
    }

    /// Whether the worker holds anything.
    pub(super) fn holds(&self) -> bool {
        *self.holds.borrow()
    }

    /// Returns when the quiet may be over. Without a doorbell it never returns.
    pub(super) async fn disturbed(&mut self) {
        let Some((ringing, rings)) = &mut self.bell else { return std::future::pending().await };
        let open = tokio::select! {
            biased;
            changed = ringing.changed() => changed.is_ok(),
            changed = self.holds.changed() => changed.is_ok(),
            changed = rings.changed() => {
                self.loud_until = Instant::now() + LOUD_FOR;
                changed.is_ok()
            }
        };
        if !open {
            // The other end is gone with the worker, and the worker's end is noticed elsewhere.
            std::future::pending::<()>().await;
        }
    }
}
