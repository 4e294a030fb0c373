use std::cell::Cell;

use tokio::sync::Notify;

/// Whether the packets of a host are swallowed. Waiters continue in the order in which they came; a
/// watch channel would wake them in random order, and a seed would not be played the same way
/// twice.
#[derive(Debug, Default)]
pub(crate) struct Hole {
    dark: Cell<bool>,
    ended: Notify,
}

impl Hole {
    pub(crate) fn is_dark(&self) -> bool {
        self.dark.get()
    }

    pub(crate) fn set(&self, dark: bool) {
        self.dark.set(dark);
        if !dark {
            self.ended.notify_waiters();
        }
    }

    /// Waits until packets pass.
    pub(crate) async fn passed(&self) {
        while self.is_dark() {
            self.ended.notified().await;
        }
    }
}
