use std::time::Duration;

use rowmq_core::chance;
use tokio::time::Instant;

/// The time between polls if there was work within the last minute.
const EAGER: Duration = Duration::from_millis(25);

/// The time between polls after a long time without work.
const CAP: Duration = Duration::from_secs(1);

/// The longest wait after a claim that failed: a server that is back, or the new writer of a
/// cluster, is found within this time.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The time between attempts to take over a member's name: as soon after the member's death as a
/// worker learns of claims that were taken back.
const STANDBY: Duration = Duration::from_millis(50);

/// How long a topic is polled eagerly after its last work.
const EAGER_FOR: Duration = Duration::from_secs(60);

/// The time between polls while the doorbell is active: its listener looks for all topics at once.
const RUNG: Duration = Duration::from_secs(3600);

/// Decides when to claim next: at once while there is work, backing off with jitter when there is
/// none.
///
/// While the doorbell is active, its rings decide.
#[derive(Debug)]
pub(crate) struct Poll {
    due: Instant,
    idle_since: Option<Instant>,
    delay: Duration,
    /// Whether it was woken since the last claim began.
    woken: bool,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self { due: Instant::now(), idle_since: None, delay: EAGER, woken: false }
    }

    /// Whether the last claim found nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.idle_since.is_some()
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Makes a claim due at once: a message may be there.
    pub(crate) fn wake(&mut self) {
        self.woken = true;
        self.due = Instant::now();
    }

    /// Records that a claim begins: it may miss whatever wakes the poll from now on.
    pub(crate) fn begun(&mut self) {
        self.woken = false;
    }

    /// Records that a claim found work.
    pub(crate) fn found(&mut self, now: Instant) {
        self.idle_since = None;
        self.delay = EAGER;
        self.due = now;
    }

    /// Records that a claim found nothing.
    pub(crate) fn empty(&mut self, now: Instant, ringing: bool) {
        let idle_since = *self.idle_since.get_or_insert(now);
        if ringing {
            self.due = now + RUNG;
        } else {
            if now.duration_since(idle_since) >= EAGER_FOR {
                self.delay = (self.delay * 2).min(CAP);
            }
            // The cap is the longest that a message waits for a poll, so the jitter only shortens
            // it. A little jitter is enough to keep consumers apart; more would cost as many more
            // polls.
            self.due = now + jittered(self.delay, 0.95);
        }
        if self.woken {
            self.due = now;
        }
    }

    /// Postpones the next claim: another process is the member that this one would be.
    pub(crate) fn stands_by(&mut self, now: Instant) {
        self.due = now + jittered(STANDBY, 0.9);
    }

    /// Postpones the next claim after one failed, to spare the server.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.due = now + jittered(AFTER_FAILURE, 0.5);
    }
}

/// Returns a random duration between `least` of `duration` and all of it.
fn jittered(duration: Duration, least: f64) -> Duration {
    duration.mul_f64(chance::between(least..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn polling_backs_off_only_after_a_minute_without_work_and_never_beyond_the_cap() {
        let mut poll = Poll::new();
        let start = Instant::now();
        poll.empty(start, false);
        assert!(poll.due() <= start + EAGER && poll.due() >= start + EAGER / 2);
        poll.empty(start + Duration::from_secs(59), false);
        assert!(poll.due() <= start + Duration::from_secs(59) + EAGER);
        let late = start + Duration::from_secs(600);
        for _ in 0..20 {
            poll.empty(late, false);
        }
        assert!(poll.due() <= late + CAP && poll.due() >= late + CAP / 2);
        poll.found(late);
        assert_eq!(poll.due(), late);
        poll.empty(late, false);
        assert!(poll.due() <= late + EAGER);
    }

    #[test]
    fn a_process_that_stands_by_for_a_member_asks_twenty_times_a_second_and_after_a_failure_less() {
        let mut poll = Poll::new();
        let start = Instant::now();
        poll.stands_by(start);
        assert!(poll.due() > start + STANDBY / 2 && poll.due() <= start + STANDBY);
        poll.failed(start);
        assert!(poll.due() >= start + AFTER_FAILURE / 2 && poll.due() <= start + AFTER_FAILURE);
    }

    #[test]
    fn while_the_doorbell_rings_nothing_is_polled_and_polling_is_eager_again_when_it_stops() {
        let mut poll = Poll::new();
        let start = Instant::now();
        assert!(!poll.is_idle());
        poll.empty(start, true);
        assert!(poll.is_idle() && poll.due() > start + RUNG / 2);
        poll.wake();
        poll.begun();
        poll.empty(start + ms(10), false);
        assert!(poll.due() <= start + ms(10) + EAGER);
        poll.found(start + ms(10));
        assert!(!poll.is_idle());
    }

    #[test]
    fn what_wakes_during_a_claim_is_not_lost() {
        let mut poll = Poll::new();
        poll.begun();
        poll.wake();
        let now = Instant::now();
        poll.empty(now, true);
        assert_eq!(poll.due(), now);
    }
}
