use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The most messages for which there is room from the start.
const ROOM: usize = 1 << 21;

/// Counts the messages that handlers started with.
#[derive(Debug)]
pub struct Tally {
    wanted: u64,
    reached: Notify,
    counted: Mutex<Counted>,
}

#[derive(Debug, Default)]
struct Counted {
    numbers: HashSet<u64>,
    duplicates: u64,
    first_and_last: Option<(Instant, Instant)>,
    ended: Vec<String>,
}

/// The result of a drain.
#[derive(Debug)]
pub(crate) struct Drained {
    /// Different messages.
    pub(crate) handled: u64,
    /// Starts of a handler beyond the first for the same message.
    pub(crate) duplicates: u64,
    /// From the first start of a handler to the last for a new message.
    pub(crate) time: Duration,
    /// Why consumers ended by themselves, one sentence for each that did.
    pub(crate) ended: Vec<String>,
}

impl Tally {
    pub(crate) fn new(wanted: u64) -> Self {
        // Room from the start: a set of a million numbers that grows makes all consumers wait.
        let room = usize::try_from(wanted).unwrap_or_default().min(ROOM);
        let numbers = HashSet::with_capacity(room);
        let counted = Counted { numbers, ..Counted::default() };
        Self { wanted, reached: Notify::new(), counted: Mutex::new(counted) }
    }

    /// Counts a handler that has started with this message.
    pub fn started(&self, number: u64) {
        self.all_started([number]);
    }

    /// Counts a handler that has started with each of these messages, one right after the other.
    pub fn all_started(&self, numbers: impl IntoIterator<Item = u64>) {
        let now = Instant::now();
        let mut counted = self.counted();
        let before = counted.numbers.len() as u64;
        for number in numbers {
            if !counted.numbers.insert(number) {
                counted.duplicates += 1;
            }
        }
        let after = counted.numbers.len() as u64;
        if after == before {
            return;
        }
        let (first, _) = counted.first_and_last.unwrap_or((now, now));
        counted.first_and_last = Some((first, now));
        if before < self.wanted && after >= self.wanted {
            self.reached.notify_one();
        }
    }

    /// Records that a consumer has ended by itself.
    pub fn ended(&self, reason: &anyhow::Error) {
        self.counted().ended.push(format!("{reason:#}"));
    }

    /// Returns when handlers have started with the wanted number of messages.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    pub(crate) fn drained(&self) -> Drained {
        let counted = self.counted();
        Drained {
            handled: counted.numbers.len() as u64,
            duplicates: counted.duplicates,
            time: counted.first_and_last.map_or(Duration::ZERO, |(first, last)| last - first),
            ended: counted.ended.clone(),
        }
    }

    /// A handler that panicked while it counted has left no half-finished count.
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_message_counts_once_and_again_as_a_duplicate() {
        let tally = Tally::new(2);
        tally.started(3);
        tally.all_started([3, 4, 3]);
        tally.reached().await;
        let drained = tally.drained();
        assert_eq!((drained.handled, drained.duplicates), (2, 2));
    }
}
