use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::chance;

/// Exponential backoff with full upper-half jitter: after the n-th failure a message waits
/// between half and all of `base * 2^(n-1)`, at most `cap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// The wait after the first failure.
    #[serde(with = "humantime_serde")]
    pub base: Duration,
    /// The longest wait.
    #[serde(with = "humantime_serde")]
    pub cap: Duration,
}

impl RetryPolicy {
    /// The longest wait after the `failures`-th failure (1 is the first).
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let base = u64::try_from(self.base.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(base.saturating_mul(factor)).min(self.cap)
    }

    /// A wait for the `failures`-th failure, with jitter so that messages that failed together do
    /// not come back together.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        self.ceiling(failures).mul_f64(chance::between(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy =
        RetryPolicy { base: Duration::from_secs(1), cap: Duration::from_secs(3600) };

    #[test]
    fn the_wait_doubles_up_to_the_cap() {
        assert_eq!(POLICY.ceiling(1), Duration::from_secs(1));
        assert_eq!(POLICY.ceiling(2), Duration::from_secs(2));
        assert_eq!(POLICY.ceiling(5), Duration::from_secs(16));
        assert_eq!(POLICY.ceiling(13), POLICY.cap);
        assert_eq!(POLICY.ceiling(u32::MAX), POLICY.cap);
    }

    #[test]
    fn jitter_stays_in_the_upper_half() {
        for failures in 1..20 {
            let delay = POLICY.delay(failures);
            let ceiling = POLICY.ceiling(failures);
            assert!(delay >= ceiling / 2 && delay <= ceiling, "{failures}: {delay:?}");
        }
    }
}
