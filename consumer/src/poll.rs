use std::time::{Duration, Instant};

use rand::Rng;

/// Between polls while there was work within the last minute.
const EAGER: Duration = Duration::from_millis(25);

/// Between polls after a long time without work.
const CAP: Duration = Duration::from_secs(1);

/// How long a topic is polled eagerly after its last work.
const EAGER_FOR: Duration = Duration::from_secs(60);

/// When to claim next: at once while there is work, backing off with jitter when there is none.
#[derive(Debug)]
pub(crate) struct Poll {
    due: Instant,
    idle_since: Option<Instant>,
    delay: Duration,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self { due: Instant::now(), idle_since: None, delay: EAGER }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Something may be there: claim at once.
    pub(crate) fn wake(&mut self) {
        self.due = Instant::now();
    }

    /// A claim found work.
    pub(crate) fn found(&mut self, now: Instant) {
        self.idle_since = None;
        self.delay = EAGER;
        self.due = now;
    }

    /// A claim found nothing.
    pub(crate) fn empty(&mut self, now: Instant) {
        let idle_since = *self.idle_since.get_or_insert(now);
        if now.duration_since(idle_since) >= EAGER_FOR {
            self.delay = (self.delay * 2).min(CAP);
        }
        // The cap is the longest a message waits for a poll, so the jitter only shortens.
        self.due = now + self.delay.mul_f64(rand::rng().random_range(0.75..=1.0));
    }

    /// A claim failed: the server has other worries.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.due = now + CAP.mul_f64(rand::rng().random_range(0.5..=1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_backs_off_only_after_a_minute_without_work_and_never_beyond_the_cap() {
        let mut poll = Poll::new();
        let start = Instant::now();
        poll.empty(start);
        assert!(poll.due() <= start + EAGER && poll.due() >= start + EAGER / 2);
        poll.empty(start + Duration::from_secs(59));
        assert!(poll.due() <= start + Duration::from_secs(59) + EAGER);
        let late = start + Duration::from_secs(600);
        for _ in 0..20 {
            poll.empty(late);
        }
        assert!(poll.due() <= late + CAP && poll.due() >= late + CAP / 2);
        poll.found(late);
        assert_eq!(poll.due(), late);
        poll.empty(late);
        assert!(poll.due() <= late + EAGER);
    }
}
