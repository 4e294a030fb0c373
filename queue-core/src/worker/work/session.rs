//! Keeping the work session open, and comparing the database with what the worker holds.

use tokio::time::Instant;

use super::Work;
use crate::connection::Session;
use crate::model::{ClaimNo, Error, Result};
use crate::rescue::{Why, give_back, take_back};
use crate::store::claim;
use crate::store::worker::Role;
use crate::telemetry;
use crate::worker::{Phase, held::Held, ranges::HeldRanges, take_up::take_up};

impl Work {
    /// Sends something while there is nothing to send, because the server drops a session that is
    /// silent for the lease. It sends the comparison of history H6, and then retries what could not
    /// be settled.
    pub(super) async fn keep_alive(&mut self) {
        let compared = match self.session().await {
            Ok(_) => self.reconcile().await,
            Err(error) => Err(error),
        };
        // A session found lost is reopened at once: the next claim should not wait for it.
        let kept = match compared {
            Err(_) => self.session().await.map(|_| ()),
            Ok(()) => self.settle_deferred().await,
        };
        self.compared = Instant::now();
        if let Err(error) = kept {
            tracing::debug!(worker.id = %self.id, %error, "Work session fails.");
        }
    }

    /// Returns the open session, after a reconnect if it was lost.
    pub(super) async fn session(&mut self) -> Result<&mut Session> {
        if let Phase::Dead { reason } = &self.life.borrow().phase {
            return Err(Error::WorkerDead { reason: reason.clone() });
        }
        let lost = self.session.as_ref().is_none_or(Session::is_lost);
        if lost {
            if self.session.take().is_some() {
                telemetry::session_lost(Role::Work.word());
                tracing::warn!(worker.id = %self.id, "Work session lost; reconnecting.");
            }
            self.reopen().await?;
        }
        self.spoke = Instant::now();
        self.session.as_mut().ok_or(Error::WorkerStopped)
    }

    /// [Reopens](take_up) the work session, and gives back claims whose commit succeeded without an
    /// answer. A worker that cannot reopen it ends: life would vouch for claims that no worker
    /// settles.
    pub(super) async fn reopen(&mut self) -> Result<()> {
        let taken_up = take_up(&self.options, self.id, self.instance, Role::Work).await;
        if let Err(Error::WorkerDead { reason }) = &taken_up {
            tracing::warn!(worker.id = %self.id, reason, "Work session cannot be taken up; the worker ends.");
            self.ended.cancel();
        }
        self.session = Some(taken_up?);
        // It may lead to another server, which has lost what this worker had settled.
        self.compared_from = ClaimNo(0);
        self.reopened = Instant::now();
        self.doubtful = self.held.claims().collect();
        let mut compared = self.reconcile().await;
        if compared.is_ok() {
            compared = self.give_back_undone().await;
        }
        if compared.is_err() {
            // No statement runs on a session that has not been compared: rows left in doubt by a
            // lost reply would seem to be another worker's doing.
            self.session = None;
        }
        compared
    }

    /// Releases rows of held claims that this worker has settled: the server has lost those
    /// settlements.
    async fn give_back_undone(&mut self) -> Result<()> {
        let (id, from) = (self.id, self.held.claims().min());
        let (Some(from), Some(session)) = (from, self.session.as_mut()) else { return Ok(()) };
        let claims = session
            .call("compare claims", async |conn| claim::of_worker(conn, id, from).await)
            .await?;
        for claim in claims {
            let Some(held) = self.held.rows(claim.fence.claim_no) else { continue };
            let undone = session
                .transaction("release rows that were settled", async |conn| {
                    give_back(conn, &claim, held).await
                })
                .await?;
            if undone > 0 {
                tracing::warn!(
                    worker.id = %id, rows = undone,
                    "Released rows that were settled: the server has lost their settlement."
                );
            }
        }
        Ok(())
    }

    /// Releases claims that the database has and this worker does not hold: their commit had no
    /// answer.
    pub(super) async fn reconcile(&mut self) -> Result<()> {
        let (id, from) = (self.id, self.compared_from);
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let claims = session
            .call("compare claims", async |conn| claim::of_worker(conn, id, from).await)
            .await?;
        self.left.clear();
        for claim in claims.iter().filter(|claim| !self.held.has(claim.fence.claim_no)) {
            let taken = session
                .transaction("release a claim", async |conn| {
                    take_back(conn, claim, Why::NotNeeded).await
                })
                .await?;
            let left = u32::try_from(taken.left).unwrap_or(u32::MAX);
            *self.left.entry(claim.topic).or_default() += left;
            tracing::info!(
                worker.id = %id, rows = taken.freed, "Released a claim whose reply was lost."
            );
        }
        // This session's own claims have ended, and an earlier session's with its name lock. But in
        // a Galera cluster each node has its own locks: another node may commit such a claim until
        // it drops that session, a lease after its last packet.
        if self.reopened.elapsed() >= self.options.lease {
            let lowest = claims.iter().map(|claim| claim.fence.claim_no).min();
            self.compared_from = lowest.unwrap_or(ClaimNo(self.last_claim + 1));
        }
        self.reconcile_ranges().await?;
        self.compared = Instant::now();
        Ok(())
    }

    /// Gives back every row that any claim of this worker still has.
    pub(super) async fn release_all(&mut self) -> Result<()> {
        self.settle_deferred().await?;
        self.ranges.release_rest();
        // Twice, because the first time may find the connection lost.
        for _ in 0..2 {
            self.session().await?;
            self.report_members(true).await?;
            self.ranges.end_waits();
            self.report_ranges(true).await?;
        }
        self.held = Held::default();
        self.ranges = HeldRanges::default();
        self.session().await?;
        self.reconcile().await
    }
}
