//! Declaring workers dead, and how many of them in a second, so that an error of our own
//! observation never takes the whole fleet at once.

use std::collections::VecDeque;
use std::time::Duration;

use rowmq_core::connection::{Link, Session};
use rowmq_core::rescue::rows_held;
use rowmq_core::store::worker::{self, WorkerRow};
use rowmq_core::{Result, telemetry};
use tokio::time::Instant;

use super::observation::Death;

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

/// Declares the worker dead unless its row has changed since; returns how many rows it then held.
pub(super) async fn declare(
    session: &mut Session,
    seen: &WorkerRow,
    death: Death,
) -> Result<Option<u64>> {
    // In one transaction: another sweeper that sees it dead must not take anything back before this
    // one has counted.
    let declare =
        async |conn: &mut Link| match worker::declare_dead(conn, seen, death.reason()).await? {
            0 => Ok(None),
            _ => rows_held(conn, seen.id).await.map(Some),
        };
    let held = session.transaction("declare the worker dead", declare).await?;
    if held.is_none() {
        return Ok(None);
    }
    telemetry::declared_dead(death.label());
    tracing::warn!(
        worker.id = %seen.id, worker.client = seen.client_id, worker.conn = %seen.conn,
        reason = death.reason(), "Worker declared dead."
    );
    Ok(held)
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
