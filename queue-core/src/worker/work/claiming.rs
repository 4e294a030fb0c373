//! Claiming: from a topic's ready rows to the caller's deliveries.

use tokio::time::Instant;

use super::Work;
use super::limited::suspect_within;
use super::shares::{Bound, Known};
use crate::connection::{Connection, Link};
use crate::model::trace::Step;
use crate::model::{
    ClaimNo, Delivery, Error, Limits, Priority, Result, Sampling, TopicId, WorkerId,
};
use crate::store::claim::{self, Fence, ScanPosition};
use crate::store::moves::equal;
use crate::store::row_set::RowSet;
use crate::store::share::{self, Share};
use crate::store::trace;
use crate::worker::cursor::{Claimed, Cursor, Look};
use crate::worker::{ClaimStrategy, Phase};

/// How to claim from a topic.
pub(super) enum Plan {
    /// Not at all: nothing is ready, or the worker may not claim now.
    Nothing(Claimed),
    /// Within limits that claims keep one after the other.
    Within(Limits),
    /// Without waiting for other workers.
    Claim(PlainClaim),
}

/// A claim from a topic without limits, or within the worker's share of one.
pub(super) struct PlainClaim {
    pub(super) topic: TopicId,
    pub(super) limit: u32,
    pub(super) strategy: ClaimStrategy,
    pub(super) bound: Option<Bound>,
    place: ScanPosition,
    fence: Fence,
    tracer: Tracer,
}

/// What a claim took.
pub(super) struct Taken {
    deliveries: Vec<Delivery>,
    /// The most messages that it could take.
    limit: u32,
    /// The worker's share, if the topic's limit is dealt.
    share: Option<Share>,
}

impl PlainClaim {
    /// Claims, in the caller's transaction, which has settled `leaving` messages of the topic.
    pub(super) async fn run(&self, conn: &mut Link, leaving: u32) -> Result<Taken> {
        let Some(bound) = self.bound else {
            let deliveries = self.take(conn, self.limit).await?;
            return Ok(Taken { deliveries, limit: self.limit, share: None });
        };
        let share = share::lock(conn, self.topic, self.fence.worker).await?;
        let limit = self.limit.min(bound.room(share, leaving));
        let deliveries = if limit > 0 { self.take(conn, limit).await? } else { Vec::new() };
        Ok(Taken { deliveries, limit, share: Some(share) })
    }

    async fn take(&self, conn: &mut Link, limit: u32) -> Result<Vec<Delivery>> {
        let &Self { topic, place, fence, .. } = self;
        let deliveries = match self.strategy {
            ClaimStrategy::SkipLocked => skip_locked(conn, fence, topic, place, limit).await?,
            ClaimStrategy::UpdateThenSelect => {
                let owned = claim::own_ready(conn, fence, topic, place, limit).await?;
                read_back(conn, fence, topic, place, limit, owned).await?
            }
            ClaimStrategy::UpdateLimit => {
                let owned = claim::own_first(conn, fence, topic, place, limit).await?;
                read_back(conn, fence, topic, place, limit, owned).await?
            }
        };
        self.tracer.trace(conn, deliveries).await
    }
}

impl Work {
    pub(super) async fn claim(&mut self, topic: TopicId, limit: u32) -> Result<Claimed> {
        tracing::trace!(step = "claim");
        let claim = match self.plan(topic, limit).await? {
            Plan::Nothing(claimed) => return Ok(claimed),
            Plan::Within(limits) => return self.claim_within(topic, limits, limit).await,
            Plan::Claim(claim) => claim,
        };
        if let Some(bound) = claim.bound
            && !self.has_share(topic, bound, claim.limit).await?
        {
            return Ok(self.without_share(topic));
        }
        let session = self.session().await?;
        let run = async |conn: &mut Link| claim.run(conn, 0).await;
        let taken = session.transaction("claim", run).await;
        self.cursor(topic).answered(&taken, claim.limit);
        Ok(self.hold(&claim, taken?))
    }

    /// Decides how to claim up to `limit` messages of the topic now, and finds the place.
    pub(super) async fn plan(&mut self, topic: TopicId, limit: u32) -> Result<Plan> {
        let limits = self.life.borrow().pulse.limits(topic);
        if limits.only_running().is_none() {
            self.cursor(topic).share = Known::default();
        }
        if !self.may_claim(topic)? || limit == 0 {
            return Ok(Plan::Nothing(Claimed::default()));
        }
        if !limits.is_off() && limits.only_running().is_none() {
            return Ok(Plan::Within(limits));
        }
        let Some(place) = self.look(topic).await? else {
            let suspect_waits = self.cursor(topic).suspect_waits;
            return Ok(Plan::Nothing(Claimed { suspect_waits, ..Claimed::default() }));
        };
        if limits.only_running().is_some() {
            // A session that reopens may find claims that it cannot give back: they count.
            self.session().await?;
        }
        Ok(Plan::Claim(PlainClaim {
            topic,
            place,
            limit: self.cursor(topic).sized(limit),
            bound: limits.only_running().map(|limit| self.bound(topic, limit)),
            fence: self.next_fence(),
            strategy: self.options.strategy,
            tracer: self.tracer(topic),
        }))
    }

    /// Records what a claim took, once its transaction has succeeded.
    pub(super) fn hold(&mut self, claim: &PlainClaim, taken: Taken) -> Claimed {
        let Taken { deliveries, limit, share } = taken;
        self.held.add(claim.fence.claim_no, &deliveries);
        let cursor = self.cursor(claim.topic);
        if let Some(share) = share {
            cursor.share.share = share;
        }
        cursor.claimed(claim.place, &deliveries, limit);
        let suspect_waits = cursor.suspect_waits;
        // What the share has no room for may have it later. Where others took all that the look
        // found, messages of other priorities may be ready.
        let has_lost = deliveries.is_empty();
        let more_later = has_lost || (limit < claim.limit && deliveries.len() >= limit as usize);
        Claimed { suspect_waits, more_later, deliveries, ..Claimed::default() }
    }

    pub(super) async fn claim_suspect(&mut self, topic: TopicId) -> Result<Claimed> {
        if !self.may_claim(topic)? {
            return Ok(Claimed::default());
        }
        let limits = self.life.borrow().pulse.limits(topic);
        let fence = self.next_fence();
        let deliveries = match limits.only_running() {
            Some(limit) => self.suspect_in_share(topic, limit, fence).await?,
            None => self.suspect_within(topic, limits, fence).await?,
        };
        self.held.add(fence.claim_no, &deliveries);
        // The next walk sees whether another suspect waits.
        self.cursor(topic).suspect_waits = false;
        // There may be no room for the suspect, yet room for other messages.
        let more_later = deliveries.is_empty() && !limits.is_off();
        Ok(Claimed { deliveries, more_later, ..Claimed::default() })
    }

    async fn suspect_within(
        &mut self,
        topic: TopicId,
        limits: Limits,
        fence: Fence,
    ) -> Result<Vec<Delivery>> {
        let tracer = self.tracer(topic);
        let session = self.session().await?;
        let claim = async |conn: &mut Link| {
            let deliveries = if limits.is_off() {
                let rows = claim::lock_suspect(conn, topic, fence.claim_no).await?;
                make_own(conn, fence, rows).await?
            } else {
                suspect_within(conn, fence, topic, limits).await?
            };
            tracer.trace(conn, deliveries).await
        };
        session.transaction("claim a suspect", claim).await
    }

    /// Takes over what life has learned of the topic. Returns whether anything may be claimed.
    pub(super) fn may_claim(&mut self, topic: TopicId) -> Result<bool> {
        let life = self.life.borrow().clone();
        if let Phase::Dead { reason } = life.phase {
            return Err(Error::WorkerDead { reason });
        }
        let cursor = self.cursor(topic);
        for floor in life.pulse.floors.iter().filter(|floor| floor.topic == topic) {
            cursor.see(floor);
        }
        Ok(life.phase == Phase::Alive && life.pulse.may_claim(topic))
    }

    pub(super) fn cursor(&mut self, topic: TopicId) -> &mut Cursor {
        self.cursors.entry(topic).or_insert_with(Cursor::new)
    }

    /// Decides which messages claimed from the topic now leave a trace.
    pub(super) fn tracer(&self, topic: TopicId) -> Tracer {
        let sampling = self.life.borrow().pulse.sampling(topic);
        let client = if sampling.is_off() { String::new() } else { self.options.client_id.clone() };
        Tracer { sampling, worker: self.id, client }
    }

    pub(super) fn next_fence(&mut self) -> Fence {
        tracing::trace!(step = "next_fence");
        self.last_claim += 1;
        Fence { worker: self.id, claim_no: ClaimNo(self.last_claim) }
    }

    /// Finds the place to claim from; `None` if nothing is ready.
    async fn look(&mut self, topic: TopicId) -> Result<Option<ScanPosition>> {
        tracing::trace!(step = "look");
        loop {
            let at = Instant::now();
            match self.cursor(topic).look(at) {
                Look::Claim(place) => return Ok(Some(place)),
                Look::Walk => {
                    let session = self.session().await?;
                    let walk = async |conn: &mut Link| claim::walk(conn, topic).await;
                    let walk = session.call("walk", walk).await;
                    let cursor = self.cursor(topic);
                    // A walk that failed has cost its time too: until the next one, claims continue
                    // from the marks.
                    cursor.walk_cost(at, at.elapsed());
                    cursor.walked(&walk?);
                    return Ok(cursor.position());
                }
                Look::Next(place) => {
                    let session = self.session().await?;
                    let next = async |conn: &mut Link| claim::next_ready(conn, topic, place).await;
                    let found = session.call("look for ready rows", next).await?;
                    let cursor = self.cursor(topic);
                    cursor.found(found);
                    return Ok(cursor.position());
                }
                Look::Skip(priority) => {
                    let session = self.session().await?;
                    let see = async |conn: &mut Link| claim::frontier(conn, topic, priority).await;
                    let frontier = session.call("see how far claims have come", see).await?;
                    self.cursor(topic).skip(priority, frontier);
                }
                Look::Urgent(priority) => self.look_for_urgent(topic, priority, at).await?,
            }
        }
    }

    async fn look_for_urgent(
        &mut self,
        topic: TopicId,
        priority: Priority,
        at: Instant,
    ) -> Result<()> {
        let session = self.session().await?;
        let look = async |conn: &mut Link| match claim::urgent(conn, topic, priority).await? {
            Some(_) => Ok(claim::walk(conn, topic).await?.first),
            None => Ok(None),
        };
        let found = session.call("look for urgent rows", look).await;
        let cursor = self.cursor(topic);
        cursor.look_up_cost(at, at.elapsed());
        if let Some(first) = found? {
            cursor.found(Some(first));
        }
        Ok(())
    }
}

/// The claiming worker, and the rule for which messages leave a trace.
pub(super) struct Tracer {
    sampling: Sampling,
    worker: WorkerId,
    client: String,
}

impl Tracer {
    /// Marks the deliveries that leave a trace: from here on they say so themselves.
    pub(super) fn mark(&self, deliveries: &mut [Delivery]) {
        if !self.sampling.is_off() {
            for delivery in deliveries {
                delivery.traced = self.sampling.takes(delivery.msg_id);
            }
        }
    }

    /// Records their claim in their traces; sends no statement unless one of them leaves a trace.
    pub(super) async fn record(
        &self,
        conn: &mut impl Connection,
        deliveries: &[Delivery],
    ) -> Result<()> {
        let step = |delivery| Step::claimed(delivery, self.worker, &self.client);
        let steps: Vec<_> = deliveries.iter().filter_map(step).collect();
        trace::record(conn, &steps).await
    }

    pub(super) async fn trace(
        &self,
        conn: &mut impl Connection,
        mut deliveries: Vec<Delivery>,
    ) -> Result<Vec<Delivery>> {
        self.mark(&mut deliveries);
        self.record(conn, &deliveries).await?;
        Ok(deliveries)
    }
}

async fn skip_locked(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: ScanPosition,
    limit: u32,
) -> Result<Vec<Delivery>> {
    let rows = claim::lock_ready(conn, topic, place, limit, fence.claim_no).await?;
    make_own(conn, fence, rows).await
}

/// Makes rows that this transaction has locked the claim's own, and records the claim.
pub(super) async fn make_own(
    conn: &mut impl Connection,
    fence: Fence,
    deliveries: Vec<Delivery>,
) -> Result<Vec<Delivery>> {
    tracing::trace!(step = "make_own");
    if let Some(first) = deliveries.first() {
        let rows: RowSet = deliveries.iter().map(|delivery| delivery.row).collect();
        let (topic, priority) = (first.topic_id, first.priority);
        let owned = claim::own(conn, fence, topic, priority, &rows).await?;
        equal("claim", rows.len(), owned)?;
        claim::record(conn, fence, topic, priority, &rows).await?;
    }
    Ok(deliveries)
}

/// Reads the deliveries of the `owned` rows that an UPDATE of this transaction has marked, once the
/// claim is recorded.
async fn read_back(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    place: ScanPosition,
    limit: u32,
    owned: usize,
) -> Result<Vec<Delivery>> {
    let deliveries = claim::owned(conn, fence, topic, place, limit).await?;
    equal("claim", owned, deliveries.len())?;
    let rows: RowSet = deliveries.iter().map(|delivery| delivery.row).collect();
    claim::record(conn, fence, topic, place.priority, &rows).await?;
    Ok(deliveries)
}
