//! Takes back what was found, several claims in a transaction. A claim that cannot be taken back
//! does not hold up the others.

use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::connection::{Link, Session};
use rowmq_core::rescue::{TakenBack, Why, take_back, take_range_back};
use rowmq_core::store::cancel::taken_away;
use rowmq_core::store::claim::{Claim, Fence};
use rowmq_core::store::stream::range::Range;
use rowmq_core::{Error, Result};
use tokio::time::Instant;

use super::{RescueReport, SHARED_BLAME};

/// The most rows of one transaction, unless one claim has more: the server frees them well within
/// the sweeper's deadline.
const ROWS_AT_ONCE: u64 = 5000;

/// The most claims of one transaction.
const CLAIMS_AT_ONCE: usize = 50;

/// How long a claim that could not be taken back is left before it is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The worker held only one message when it crashed.
const LONE_CRASH: Why = Why::Crashed { rows_held: 1 };

/// How long a lone crash is remembered. Sessions rarely lock a row for longer; after this time, the
/// message is charged with a suspicion instead.
const LONE_FOR: Duration = Duration::from_secs(600);

/// What is to be taken back.
#[derive(Debug)]
pub(super) enum What {
    Claim(Claim),
    Range(Range),
}

/// A claim or a range that its worker is to lose.
#[derive(Debug)]
pub(super) struct Found {
    what: What,
    why: Why,
    /// Whether its worker is alive, so that a handler may still run.
    of_living: bool,
}

impl Found {
    /// Records a claim or range that its worker no longer needs.
    pub(super) fn new(what: What, why: Why) -> Self {
        Self { what, why, of_living: false }
    }

    /// Records a claim or range that its living worker has held for too long.
    pub(super) fn overdue(what: What) -> Self {
        Self { what, why: SHARED_BLAME, of_living: true }
    }

    fn fence(&self) -> Fence {
        match &self.what {
            What::Claim(claim) => claim.fence,
            What::Range(range) => range.fence,
        }
    }

    fn rows(&self) -> u64 {
        match &self.what {
            What::Claim(claim) => u64::from(claim.n),
            What::Range(_) => 1,
        }
    }

    async fn take(&self, conn: &mut Link) -> Result<TakenBack> {
        let taken = match &self.what {
            What::Claim(claim) => take_back(conn, claim, self.why).await?,
            What::Range(range) => take_range_back(conn, range, self.why).await?,
        };
        if self.of_living && taken.freed > 0 {
            taken_away(conn, self.fence().worker).await?;
        }
        Ok(taken)
    }
}

/// How many claims are taken back at once, and which ones wait.
#[derive(Debug)]
pub(super) struct Taking {
    rows_at_once: u64,
    /// Claims that could not be taken back, and until when they are left alone.
    waits: HashMap<Fence, Instant>,
    /// The claims and ranges of lone crashes, and until when each is remembered. Only the sweep
    /// that declares the death counts what the worker held, and another session may have the row
    /// locked during that sweep.
    lone: HashMap<Fence, Instant>,
}

impl Default for Taking {
    fn default() -> Self {
        Self { rows_at_once: ROWS_AT_ONCE, waits: HashMap::new(), lone: HashMap::new() }
    }
}

impl Taking {
    /// Takes back everything that it can; the rest is logged, and tried again later.
    ///
    /// # Errors
    /// A failure that has lost the session.
    pub(super) async fn take(
        &mut self,
        session: &mut Session,
        mut found: Vec<Found>,
        now: Instant,
        report: &mut RescueReport,
    ) -> Result<()> {
        self.waits.retain(|_, until| now < *until);
        self.charge_lone_crashes(&mut found, now);
        let due: Vec<_> =
            found.iter().filter(|one| !self.waits.contains_key(&one.fence())).collect();
        let mut rest = due.as_slice();
        while !rest.is_empty() {
            let (some, others) = rest.split_at(self.fitting(rest));
            rest = others;
            if self.take_some(session, some, now, report).await? {
                continue;
            }
            for one in some.chunks(1).filter(|_| some.len() > 1) {
                self.take_some(session, one, now, report).await?;
            }
        }
        Ok(())
    }

    /// Charges a crash as a lone one if an earlier sweep knew that it was.
    fn charge_lone_crashes(&mut self, found: &mut [Found], now: Instant) {
        self.lone.retain(|_, until| now < *until);
        for one in found {
            if one.why == LONE_CRASH {
                self.lone.insert(one.fence(), now + LONE_FOR);
            } else if one.why == SHARED_BLAME && self.lone.contains_key(&one.fence()) {
                one.why = LONE_CRASH;
            }
        }
    }

    /// Returns how many of the first of these go into one transaction.
    fn fitting(&self, found: &[&Found]) -> usize {
        let mut rows = 0;
        let fits = |one: &&&Found| {
            rows += one.rows();
            rows <= self.rows_at_once
        };
        found.iter().take(CLAIMS_AT_ONCE).take_while(fits).count().max(1)
    }

    /// Takes these back in one transaction. Returns false if that failed and the session is intact.
    async fn take_some(
        &mut self,
        session: &mut Session,
        some: &[&Found],
        now: Instant,
        report: &mut RescueReport,
    ) -> Result<bool> {
        let take = async |conn: &mut Link| {
            let mut sum = TakenBack::default();
            for one in some {
                let taken = one.take(conn).await?;
                sum.freed += taken.freed;
                sum.dead_lettered += taken.dead_lettered;
                sum.left += taken.left;
            }
            Ok(sum)
        };
        let error = match session.transaction("rescue", take).await {
            Ok(taken) => {
                self.rows_at_once = (self.rows_at_once * 2).min(ROWS_AT_ONCE);
                report.rescued += taken.freed;
                report.dead_lettered += taken.dead_lettered;
                report.still_locked += taken.left;
                return Ok(true);
            }
            Err(error) => error,
        };
        if matches!(error, Error::UnknownOutcome { .. } | Error::Deadline { .. }) {
            let rows: u64 = some.iter().map(|one| one.rows()).sum();
            self.rows_at_once = (rows / 2).max(1);
        }
        if let [one] = some {
            let Fence { worker, claim_no } = one.fence();
            tracing::warn!(
                worker.id = %worker, claim.no = %claim_no, %error,
                "A claim cannot be taken back; trying again."
            );
            // A conflict is over by the next sweep.
            if !error.fault().is_conflict() {
                self.waits.insert(one.fence(), now + AGAIN_AFTER);
            }
        }
        if session.is_lost() { Err(error) } else { Ok(false) }
    }
}

#[cfg(test)]
mod tests {
    use rowmq_core::Priority;
    use rowmq_core::model::{ClaimNo, ConnId, RowId, TopicId, WorkerId};

    use super::*;

    fn found(claim_no: u64, n: u32) -> Found {
        let fence = Fence { worker: WorkerId(1), claim_no: ClaimNo(claim_no) };
        let claim = Claim {
            fence,
            topic: TopicId(1),
            priority: Priority::default(),
            lo: RowId(1),
            hi: RowId(u64::from(n)),
            n,
            conn: ConnId(1),
        };
        Found::new(What::Claim(claim), Why::NotNeeded)
    }

    #[test]
    fn a_transaction_is_bounded_by_its_rows_and_has_one_claim_at_least() {
        let taking = Taking::default();
        for (sizes, expected) in [
            (&[5000, 1][..], 1),
            (&[2500, 2500, 1], 2),
            (&[9000, 1], 1),
            (&[1; 70], CLAIMS_AT_ONCE),
            (&[10, 10], 2),
        ] {
            let all: Vec<_> = (0..).zip(sizes).map(|(no, n)| found(no, *n)).collect();
            let all: Vec<_> = all.iter().collect();
            assert_eq!(taking.fitting(&all), expected, "{sizes:?}");
        }
        let slow = Taking { rows_at_once: 10, ..Taking::default() };
        let all: Vec<_> = (0..4).map(|no| found(no, 4)).collect();
        assert_eq!(slow.fitting(&all.iter().collect::<Vec<_>>()), 2, "after missed deadlines");
    }
}
