use std::time::Duration;

use rowmq_core::chance;
use tokio::time::Instant;

/// The time between polls if there was work within the last minute.
const EAGER: Duration = Duration::from_millis(25);

/// The time between polls after a long time without work.
const CAP: Duration = Duration::from_secs(1);

/// The time between attempts to take over a member's name: as soon after the member's death as a
/// worker learns of claims that were taken back.
const STANDBY: Duration = Duration::from_millis(50);

/// How long a topic is polled eagerly after its last work.
const EAGER_FOR: Duration = Duration::from_secs(60);

/// When to claim after a ring, in milliseconds. The server reports a transaction once it is in the
/// log, and makes it visible afterwards: as a rule at once, but late with a synchronous replica.
const TRIES: [u64; 7] = [0, 1, 3, 8, 20, 60, 200];

/// From this try on everything is visible as a rule. A topic whose last ring found nothing begins
/// here: other consumers were quicker, and are likely to be again.
const LATE_TRY: usize = 3;

/// How many tries remain after one found something, which may belong to an earlier ring.
const LAST_TRIES: usize = 4;

/// Rings closer together than this count as one.
const SPACING: Duration = Duration::from_millis(20);

/// Decides when to claim next: at once while there is work, backing off with jitter when there is
/// none.
///
/// While the doorbell is active, its rings decide, and polling is only a safety net.
#[derive(Debug)]
pub(crate) struct Poll {
    due: Instant,
    idle_since: Option<Instant>,
    delay: Duration,
    /// The time between polls while the doorbell is active.
    safety: Duration,
    /// Whether it was woken since the last claim began.
    woken: bool,
    ring: Option<Ring>,
    /// The try that the next ring begins with.
    first_try: usize,
}

/// The tries that follow a ring.
#[derive(Debug, Clone, Copy)]
struct Ring {
    at: Instant,
    next: usize,
    /// Whether it rang again within the spacing.
    again: bool,
    /// Whether a try found something.
    found: bool,
}

impl Ring {
    fn due(&self) -> Option<Instant> {
        TRIES.get(self.next).map(|ms| self.at + Duration::from_millis(*ms))
    }
}

impl Poll {
    /// Starts polling; every `safety` while the doorbell is active.
    pub(crate) fn new(safety: Duration) -> Self {
        Self {
            due: Instant::now(),
            idle_since: None,
            delay: EAGER,
            safety,
            woken: false,
            ring: None,
            first_try: 0,
        }
    }

    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Makes a claim due at once: a message may be there.
    pub(crate) fn wake(&mut self) {
        self.woken = true;
        self.due = Instant::now();
    }

    /// Records a ring of the doorbell: a message is there, or will be in a moment.
    pub(crate) fn rang(&mut self, now: Instant) {
        match &mut self.ring {
            Some(ring) if now < ring.at + SPACING => ring.again = true,
            _ => self.begin_tries(now),
        }
    }

    fn begin_tries(&mut self, now: Instant) {
        let ring = Ring { at: now, next: self.first_try, again: false, found: false };
        self.ring = Some(ring);
        self.due = self.due.min(ring.due().unwrap_or(now));
    }

    /// Records that a claim begins: it may miss whatever wakes the poll from now on.
    pub(crate) fn begun(&mut self) {
        self.woken = false;
    }

    /// Records that a claim found work.
    pub(crate) fn found(&mut self, now: Instant) {
        self.idle_since = None;
        self.delay = EAGER;
        self.first_try = 0;
        if let Some(ring) = &mut self.ring {
            ring.next = ring.next.max(LAST_TRIES);
            ring.found = true;
        }
        self.due = now;
    }

    /// Records that a claim found nothing.
    pub(crate) fn empty(&mut self, now: Instant, ringing: bool) {
        let idle_since = *self.idle_since.get_or_insert(now);
        if ringing {
            self.due = now + jittered(self.safety, 0.9);
        } else {
            if now.duration_since(idle_since) >= EAGER_FOR {
                self.delay = (self.delay * 2).min(CAP);
            }
            // The cap is the longest that a message waits for a poll, so the jitter only shortens
            // it. A little jitter is enough to keep consumers apart; more would cost as many more
            // polls.
            self.due = now + jittered(self.delay, 0.95);
        }
        self.next_try(now);
        if self.woken {
            self.due = now;
        }
    }

    fn next_try(&mut self, now: Instant) {
        let Some(ring) = &mut self.ring else { return };
        if ring.again && now >= ring.at + SPACING {
            self.begin_tries(now);
            return;
        }
        while ring.due().is_some_and(|due| due <= now) {
            ring.next += 1;
        }
        match ring.due() {
            Some(due) => self.due = self.due.min(due),
            None => {
                if !ring.found {
                    self.first_try = LATE_TRY;
                }
                self.ring = None;
            }
        }
    }

    /// Postpones the next claim: another process is the member that this one would be.
    pub(crate) fn stands_by(&mut self, now: Instant) {
        self.due = now + jittered(STANDBY, 0.9);
    }

    /// Postpones the next claim after one failed, to spare the server.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.due = now + jittered(CAP, 0.5);
    }
}

/// Returns a random duration between `least` of `duration` and all of it.
fn jittered(duration: Duration, least: f64) -> Duration {
    duration.mul_f64(chance::between(least..=1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAFETY: Duration = Duration::from_secs(5);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn polling_backs_off_only_after_a_minute_without_work_and_never_beyond_the_cap() {
        let mut poll = Poll::new(SAFETY);
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
        let mut poll = Poll::new(SAFETY);
        let start = Instant::now();
        poll.stands_by(start);
        assert!(poll.due() > start + STANDBY / 2 && poll.due() <= start + STANDBY);
        poll.failed(start);
        assert!(poll.due() >= start + CAP / 2 && poll.due() <= start + CAP);
    }

    #[test]
    fn while_the_doorbell_rings_polling_is_a_safety_net_and_eager_again_when_it_stops() {
        let mut poll = Poll::new(SAFETY);
        let start = Instant::now();
        poll.empty(start, true);
        assert!(poll.due() > start + SAFETY / 2 && poll.due() <= start + SAFETY);
        poll.wake();
        poll.begun();
        poll.empty(start + ms(10), false);
        assert!(poll.due() <= start + ms(10) + EAGER);
    }

    #[test]
    fn a_ring_that_comes_before_its_message_is_tried_again() {
        let mut poll = Poll::new(SAFETY);
        let start = Instant::now();
        poll.empty(start, true);
        poll.rang(start);
        let mut tried = Vec::new();
        while poll.due() < start + SAFETY / 2 {
            tried.push(poll.due().duration_since(start));
            poll.begun();
            poll.empty(poll.due(), true);
        }
        assert_eq!(tried, TRIES.map(ms));
        // No try found anything after this ring, so other consumers go first at the next one.
        let later = start + SAFETY;
        poll.empty(later, true);
        poll.rang(later);
        assert_eq!(poll.due(), later + ms(TRIES[LATE_TRY]));
        poll.found(later);
        for at in [0, 20, 60, 200] {
            poll.empty(later + ms(at), true);
        }
        poll.rang(later + SPACING * 50);
        assert_eq!(poll.due(), later + SPACING * 50, "the one that finds is first again");
    }

    #[test]
    fn a_ring_during_the_tries_of_another_is_not_lost() {
        let mut poll = Poll::new(SAFETY);
        let start = Instant::now();
        poll.rang(start);
        poll.empty(start, true);
        poll.rang(start + ms(2));
        poll.found(start + ms(3));
        poll.empty(start + ms(4), true);
        assert_eq!(poll.due(), start + ms(20), "it may have been the other one's message");
        poll.empty(start + ms(20), true);
        assert_eq!(poll.due(), start + ms(20), "the tries start from the first");
    }

    #[test]
    fn what_wakes_during_a_claim_is_not_lost() {
        let mut poll = Poll::new(SAFETY);
        poll.begun();
        poll.wake();
        let now = Instant::now();
        poll.empty(now, true);
        assert_eq!(poll.due(), now);
    }
}
