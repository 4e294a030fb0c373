//! How long a worker's sessions must be missing before it is dead: longer than a reconnect takes,
//! as far as this sweeper has seen. Pure: all times are passed in, and are from the sweeper's own
//! monotonic clock.

use std::collections::HashSet;
use std::time::Duration;

use rowmq_core::store::worker::WorkerRow;
use tokio::time::Instant;

/// For how long a slow reconnect counts.
const RECONNECTS_COUNT: Duration = Duration::from_secs(60);

/// For how long a slow look counts: it shows that the server or this machine is busy now.
const LOOKS_COUNT: Duration = Duration::from_secs(5);

/// A worker that holds messages notices within this time that it has lost its session.
const NOTICED: Duration = Duration::from_millis(50);

/// A reconnect, once it is noticed, counts as taking this many times as long as the slowest look of
/// late: it has ten round trips, and the server starts a thread for it. Beside 20 busy processes on
/// two cores the slowest looks took 3 to 5 ms, and 99 of 100 reconnects at most 220 ms.
const LOOKS: u32 = 20;

/// From this many processes on, a common cause is likely: a proxy, a switch, the network.
const MANY: usize = 3;

/// The grace of many workers, in units of the least grace; no grace is longer.
const OF_MANY: u32 = 3;

/// The least grace of a worker whose server is gone. It asks the hosts of its URL one after the
/// other and waits up to 2 s for one that gives no answer; then it asks the others first.
pub(super) const OF_A_MOVE: Duration = Duration::from_secs(4);

/// The grace, and what it depends on.
#[derive(Debug)]
pub(super) struct Grace {
    least: Duration,
    reconnects: Slowest,
    looks: Slowest,
}

impl Grace {
    pub(super) fn new(least: Duration) -> Self {
        Self {
            least,
            reconnects: Slowest::over(RECONNECTS_COUNT),
            looks: Slowest::over(LOOKS_COUNT),
        }
    }

    /// Records how long the sessions of a worker that is back were missing.
    pub(super) fn reconnected(&mut self, missing: Duration, now: Instant) {
        self.reconnects.add(missing, now);
    }

    /// Records how long the server took to answer this sweeper.
    pub(super) fn looked(&mut self, took: Duration, now: Instant) {
        self.looks.add(took, now);
    }

    /// Returns the grace; `many`: for workers that are [missing together](are_many).
    pub(super) fn now(&self, many: bool, now: Instant) -> Duration {
        let least = if many { of_many(self.least) } else { self.least };
        // Without a grace, nothing that was seen prolongs it.
        if least.is_zero() {
            return least;
        }
        let (reconnect, look) = (self.reconnects.at(now), self.looks.at(now));
        let seen = (reconnect * 2).max(NOTICED + look * LOOKS);
        least.max(seen.min(of_many(self.least)))
    }
}

/// Returns the grace while many workers are missing at once.
pub(super) fn of_many(least: Duration) -> Duration {
    least * OF_MANY
}

/// Returns whether so many of the workers are missing that a common cause is likely: more than a
/// quarter of the processes, and at least three. One that dies takes all its workers with it.
pub(super) fn are_many<'w>(
    missing: impl Iterator<Item = &'w WorkerRow>,
    all: &'w [WorkerRow],
) -> bool {
    let missing: HashSet<&str> = missing.map(process).collect();
    let all: HashSet<&str> = all.iter().map(process).collect();
    missing.len() >= MANY && missing.len() * 4 > all.len()
}

/// Returns the worker's process: its name without its instance and slot.
fn process(worker: &WorkerRow) -> &str {
    worker.client_id.rsplitn(3, ' ').last().unwrap_or(&worker.client_id)
}

/// The slowest of the last times: of the last period at least, and of two at most.
#[derive(Debug)]
struct Slowest {
    period: Duration,
    began: Option<Instant>,
    this: Duration,
    last: Duration,
}

impl Slowest {
    fn over(period: Duration) -> Self {
        Self { period, began: None, this: Duration::ZERO, last: Duration::ZERO }
    }

    fn add(&mut self, time: Duration, now: Instant) {
        let began = *self.began.get_or_insert(now);
        let age = now.duration_since(began);
        if age >= self.period {
            self.last = if age < self.period * 2 { self.this } else { Duration::ZERO };
            (self.this, self.began) = (Duration::ZERO, Some(now));
        }
        self.this = self.this.max(time);
    }

    fn at(&self, now: Instant) -> Duration {
        let age = self.began.map_or(Duration::ZERO, |began| now.duration_since(began));
        if age < self.period {
            self.this.max(self.last)
        } else if age < self.period * 2 {
            self.this
        } else {
            Duration::ZERO
        }
    }
}

#[cfg(test)]
mod tests;
