use std::str::FromStr;
use std::time::Duration;

use tokio::time::Instant;

/// Messages a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix("/s").unwrap_or(text);
        let rate = number.parse().map_err(|_| "a rate looks like 100/s".to_owned())?;
        // One message a day is the slowest rate that makes sense, and keeps the waits finite.
        if (1e-5..=1e9).contains(&rate) { Ok(Self(rate)) } else { Err("0 < N ≤ 1e9".to_owned()) }
    }
}

/// Spaces batches so that they stay below the rate; unused time is not made up for later.
pub(crate) struct Pace {
    rate: Option<Rate>,
    next: Instant,
}

impl Pace {
    pub(crate) fn new(rate: Option<Rate>) -> Self {
        Self { rate, next: Instant::now() }
    }

    /// The largest batch: what a tenth of a second allows, so that the flow is even.
    pub(crate) fn batch(&self, batch: usize) -> usize {
        let Some(Rate(rate)) = self.rate else { return batch };
        // A float out of range is clamped; 1 ≤ n ≤ batch.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let tenth = (rate / 10.0) as usize;
        tenth.clamp(1, batch)
    }

    /// Reserves `n` more messages, and returns when they may go.
    pub(crate) fn book(&mut self, n: usize) -> Instant {
        let Some(Rate(rate)) = self.rate else { return self.next };
        let start = self.next.max(Instant::now());
        self.next = start + Duration::from_secs_f64(n as f64 / rate);
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_messages_a_second() {
        assert_eq!("100/s".parse(), Ok(Rate(100.0)));
        assert_eq!("0.5".parse(), Ok(Rate(0.5)));
        for bad in ["0", "-1", "fast", "10/m", "NaN", "inf"] {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn batches_are_spaced_by_the_rate() {
        let mut pace = Pace::new(Some(Rate(100.0)));
        assert_eq!(pace.batch(500), 10);
        let first = pace.book(10);
        let second = pace.book(10);
        assert_eq!(second - first, Duration::from_millis(100));
        assert_eq!(Pace::new(Some(Rate(1.0))).batch(500), 1);
        assert_eq!(Pace::new(None).batch(500), 500);
    }
}
