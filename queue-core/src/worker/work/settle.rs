//! Settling a batch until every delivery of it has an outcome.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Work;
use crate::connection::Link;
use crate::model::{ClaimNo, Error, Result, RowId};
use crate::rescue::{Why, take_back};
use crate::store::{claim, rescue};
use crate::worker::settling::{Batch, Care, SettleOutcome, Settled, Unsettled};

/// The first wait before a settle without a connection is retried; each is twice as long as the one
/// before, up to the longest.
const BACKOFF: Duration = Duration::from_millis(20);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);

/// A delivery within its worker.
pub(super) type Key = (ClaimNo, RowId);

/// Deliveries settled together.
pub(super) struct Part {
    pub(super) settled: Vec<Settled>,
    pub(super) care: Care,
    /// Their commit had no answer.
    pub(super) in_doubt: bool,
}

impl Part {
    pub(super) fn keys(&self) -> Vec<Key> {
        self.settled.iter().map(key).collect()
    }
}

impl Work {
    /// Settles a batch. Retries while the server is away. What the server refuses is set aside, so
    /// that one message holds up no other.
    /// `in_doubt`: an earlier commit of these had no answer.
    pub(super) async fn settle(
        &mut self,
        settled: Vec<Settled>,
        in_doubt: bool,
    ) -> Result<Vec<SettleOutcome>> {
        self.settle_part(Part { settled, care: Care::Quick, in_doubt }).await
    }

    async fn settle_part(&mut self, part: Part) -> Result<Vec<SettleOutcome>> {
        tracing::trace!(step = "settle_part");
        let keys = part.keys();
        let Part { settled, care, in_doubt } = part;
        let (streamed, settled): (Vec<_>, Vec<_>) =
            settled.into_iter().partition(|one| one.position.is_some());
        let is_member = |one: &Settled| self.members.contains_key(&one.topic);
        let (broadcast, streamed): (Vec<_>, Vec<_>) = streamed.into_iter().partition(is_member);
        let mut outcomes = self.settle_ranges(&streamed, in_doubt).await?;
        outcomes.extend(self.settle_for_members(&broadcast).await?);
        if settled.is_empty() {
            return Ok(keys.iter().filter_map(|key| outcomes.get(key).copied()).collect());
        }
        let mut parts = VecDeque::from([Part { settled, care, in_doubt }]);
        let (mut backoff, mut failing_since) = (BACKOFF, None);
        while let Some(mut part) = parts.pop_front() {
            let error = match self.try_settle(&part).await {
                Ok(unsettled) => {
                    (backoff, failing_since) = (BACKOFF, None);
                    self.conclude(part, &unsettled, &mut outcomes);
                    continue;
                }
                Err(error @ (Error::WorkerDead { .. } | Error::WorkerStopped)) => {
                    return Err(error);
                }
                Err(error) => error,
            };
            let was_careful = std::mem::replace(&mut part.care, Care::LockFirst) == Care::LockFirst;
            // A session that could not be reopened has refused no row.
            let lost = error.fault().ends_connection() || self.session.is_none();
            let slow = matches!(error, Error::UnknownOutcome { .. } | Error::Deadline { .. });
            part.in_doubt |= matches!(error, Error::UnknownOutcome { .. });
            if !was_careful && !lost {
                parts.push_front(part);
                continue;
            }
            tracing::warn!(worker.id = %self.id, %error, "Settling fails; trying again.");
            if lost {
                let since = *failing_since.get_or_insert_with(Instant::now);
                if self.gives_up(since) {
                    return Err(error);
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
            // Half the rows take half the time, and leave half the suspects of a refusal.
            if part.settled.len() > 1 && (slow || !lost) {
                let rest = part.settled.split_off(part.settled.len() / 2);
                parts.push_front(Part { settled: rest, ..part });
            } else if !lost {
                self.defer(part, &mut outcomes);
                continue;
            }
            parts.push_front(part);
        }
        self.forget_doubtful().await;
        Ok(keys.iter().filter_map(|key| outcomes.get(key).copied()).collect())
    }

    /// Forgets doubtful claims of which the worker holds nothing any more. If that fails, the next
    /// settlement or comparison does it.
    pub(super) async fn forget_doubtful(&mut self) {
        let over: Vec<_> =
            self.doubtful.iter().copied().filter(|claim| !self.held.has(*claim)).collect();
        if let Err(error) = self.forget_empty(&over).await {
            tracing::debug!(worker.id = %self.id, %error, "Cannot forget claims yet.");
        }
    }

    /// Retries what was set aside, without waiting for locks: another transaction may keep one for
    /// long, and the worker's other work comes first.
    pub(super) async fn settle_deferred(&mut self) -> Result<()> {
        let deferred = std::mem::take(&mut self.deferred);
        if !deferred.is_empty() {
            let part = Part { settled: deferred, care: Care::LockFirst, in_doubt: false };
            self.settle_part(part).await?;
        }
        Ok(())
    }

    /// Records deliveries whose rows are no longer the claims' own, and forgets the claims that
    /// this empties. If that fails, the next comparison does it.
    pub(super) async fn forget(&mut self, gone: &[Key]) -> Result<()> {
        self.passed(gone);
        let mut emptied = self.held.emptied_by(gone);
        // A claim that is not held is being released.
        emptied.retain(|claim| self.held.has(*claim));
        self.held.remove(gone);
        self.forget_empty(&emptied).await
    }

    /// Forgets the claims that have no row left, and gives back those that still have rows. Another
    /// session has settled this worker's rows, or a server that the session no longer reaches.
    async fn forget_empty(&mut self, claims: &[ClaimNo]) -> Result<()> {
        let (id, lowest) = (self.id, claims.iter().min().copied());
        let Some(lowest) = lowest else { return Ok(()) };
        let session = self.session().await?;
        let forget = async |conn: &mut Link| {
            let mut empty = Vec::with_capacity(claims.len());
            for claim in claim::of_worker(conn, id, lowest).await? {
                if !claims.contains(&claim.fence.claim_no) {
                    continue;
                }
                if rescue::rows_left(conn, &claim).await? == 0 {
                    empty.push(claim.fence.claim_no);
                } else {
                    take_back(conn, &claim, Why::NotNeeded).await?;
                }
            }
            if empty.is_empty() { Ok(0) } else { claim::forget(conn, id, &empty).await }
        };
        session.transaction("forget the claims", forget).await?;
        self.doubtful.retain(|claim| !claims.contains(claim));
        Ok(())
    }

    /// The claims to forget once these deliveries are settled. A doubtful one may have other rows.
    pub(super) fn emptied_by(&self, keys: &[Key]) -> Vec<ClaimNo> {
        let mut emptied = self.held.emptied_by(keys);
        emptied.retain(|claim| !self.doubtful.contains(claim));
        emptied
    }

    async fn try_settle(&mut self, part: &Part) -> Result<Unsettled> {
        let id = self.id;
        let emptied = self.emptied_by(&part.keys());
        let batch = Batch::new(id, part.settled.clone());
        let care = part.care;
        let session = self.session().await?;
        session.transaction("settle", async |conn| batch.run(conn, id, &emptied, care).await).await
    }

    /// Records a part that was settled except for `unsettled`.
    pub(super) fn conclude(
        &mut self,
        part: Part,
        unsettled: &Unsettled,
        outcomes: &mut HashMap<Key, SettleOutcome>,
    ) {
        tracing::trace!(step = "conclude");
        let missing: HashSet<Key> = unsettled.missing.iter().copied().collect();
        let blocked: HashSet<Key> = unsettled.blocked.iter().copied().collect();
        let gone = if part.in_doubt { SettleOutcome::Unknown } else { SettleOutcome::Fenced };
        let mut done = Vec::with_capacity(part.settled.len());
        for settled in part.settled {
            let key = key(&settled);
            if blocked.contains(&key) {
                outcomes.insert(key, SettleOutcome::Deferred);
                self.deferred.push(settled);
            } else {
                let outcome = if missing.contains(&key) { gone } else { SettleOutcome::Settled };
                outcomes.insert(key, outcome);
                done.push(key);
            }
        }
        self.held.remove(&done);
    }

    fn defer(&mut self, part: Part, outcomes: &mut HashMap<Key, SettleOutcome>) {
        for settled in part.settled {
            outcomes.insert(key(&settled), SettleOutcome::Deferred);
            self.deferred.push(settled);
        }
    }

    /// Whether to give up: a stopping worker does not wait for the server for ever. The janitor
    /// then releases.
    fn gives_up(&self, since: Instant) -> bool {
        self.stopping.load(Ordering::Relaxed) && since.elapsed() >= self.options.deadline()
    }
}

pub(super) fn key(settled: &Settled) -> Key {
    (settled.claim_no, settled.row)
}
