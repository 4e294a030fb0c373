//! How many workers may be declared dead in a second, so that an error of our own observation never
//! takes the whole fleet at once. Pure: all times are passed in.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// The deaths of the last second.
#[derive(Debug)]
pub(super) struct Deaths {
    per_second: usize,
    declared: VecDeque<Instant>,
}

impl Deaths {
    pub(super) fn new(per_second: usize) -> Self {
        Self { per_second, declared: VecDeque::new() }
    }

    /// Returns until when no more workers may be declared dead; `None`: one may be now.
    pub(super) fn barred_until(&mut self, now: Instant) -> Option<Instant> {
        while self.declared.front().is_some_and(|at| *at + SECOND <= now) {
            self.declared.pop_front();
        }
        let first = self.declared.front().filter(|_| self.declared.len() >= self.per_second);
        first.map(|first| *first + SECOND)
    }

    pub(super) fn declared(&mut self, now: Instant) {
        self.declared.push_back(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_deaths_than_it_may() {
        let mut deaths = Deaths::new(2);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for ms in [0, 400] {
            assert_eq!(deaths.barred_until(at(ms)), None);
            deaths.declared(at(ms));
        }
        assert_eq!(deaths.barred_until(at(999)), Some(at(1000)));
        assert_eq!(deaths.barred_until(at(1000)), None);
        deaths.declared(at(1000));
        assert_eq!(deaths.barred_until(at(1001)), Some(at(1400)));
    }
}
