//! What a claimed delivery holds until it is settled: its worker's gate, and its places in the
//! counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, OwnedRwLockReadGuard, OwnedRwLockWriteGuard};

/// How the gate is held; freed when the last delivery of the claim is settled.
pub(crate) enum GatePermit {
    Shared(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockReadGuard<()>),
    Alone(#[expect(dead_code, reason = "held for its drop")] OwnedRwLockWriteGuard<()>),
}

/// Counts deliveries that are claimed and not yet settled.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldCount(Arc<Held>);

#[derive(Debug, Default)]
struct Held {
    count: AtomicUsize,
    settled: Notify,
}

impl HeldCount {
    pub(crate) fn get(&self) -> usize {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Returns once deliveries have been settled since the last call.
    pub(crate) async fn settled(&self) {
        self.0.settled.notified().await;
    }
}

/// One delivery's part of its claim. It counts until it is dropped, when the delivery is settled.
pub(crate) struct Permit {
    gate: Arc<GatePermit>,
    counts: [HeldCount; 2],
}

impl Permit {
    pub(crate) fn new(gate: Arc<GatePermit>, counts: [HeldCount; 2]) -> Self {
        for count in &counts {
            count.0.count.fetch_add(1, Ordering::Relaxed);
        }
        Self { gate, counts }
    }

    /// Returns whether it is the only delivery that its worker holds.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(*self.gate, GatePermit::Alone(_))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for count in &self.counts {
            count.0.count.fetch_sub(1, Ordering::Relaxed);
            count.0.settled.notify_one();
        }
    }
}
