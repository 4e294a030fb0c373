//! Claims of ranges that a worker has lost, shared with the handlers that have messages of them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::ClaimNo;

/// How many of the latest are remembered: more than a worker holds at once.
const REMEMBERED: usize = 4096;

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct LostClaims(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    claims: Mutex<BTreeSet<ClaimNo>>,
    ever: AtomicU64,
}

impl LostClaims {
    pub(super) fn add(&self, claim: ClaimNo) {
        let mut claims = self.0.claims.lock().unwrap_or_else(PoisonError::into_inner);
        claims.insert(claim);
        if claims.len() > REMEMBERED {
            claims.pop_first();
        }
        self.0.ever.fetch_add(1, Ordering::Release);
    }

    pub(super) fn has(&self, claim: ClaimNo) -> bool {
        self.0.claims.lock().unwrap_or_else(PoisonError::into_inner).contains(&claim)
    }

    /// How many claims have been lost.
    pub(super) fn ever(&self) -> u64 {
        self.0.ever.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_and_all_are_counted() {
        let lost = LostClaims::default();
        let all = REMEMBERED as u64 + 10;
        (0..all).for_each(|n| lost.clone().add(ClaimNo(n)));
        assert_eq!(lost.ever(), all);
        assert!(lost.has(ClaimNo(all - 1)) && lost.has(ClaimNo(10)) && !lost.has(ClaimNo(9)));
    }
}
