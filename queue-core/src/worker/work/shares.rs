//! Claims of a topic that limits only how many of its messages run at once. Each worker has a share
//! of the limit, and claims within it without waiting for the other workers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use super::Work;
use super::claiming::make_own;
use crate::connection::{Connection, Link};
use crate::model::{Delivery, Result, TopicId, WorkerId};
use crate::store::claim::{self, Fence};
use crate::store::limit;
use crate::store::share::{self, Share};
use crate::worker::cursor::Claimed;
use crate::worker::deal::{Holder, deal};
use crate::worker::gate;

/// The least time between two requests of a worker under one limit.
const SPACING: Duration = Duration::from_millis(100);

/// The next request waits this many times as long as the last one took, so that a large fleet
/// before a small limit does not spend its time waiting for the gate.
const SPACING_SHARE: u32 = 20;

/// But no longer than this: the last one may have waited for a worker that was frozen in a deal.
const LONGEST_SPACING: Duration = Duration::from_secs(1);

/// A worker's place in a topic's limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    /// The limit.
    pub(super) limit: u32,
    /// How many messages of the topic the worker holds.
    pub(super) running: u32,
}

impl Bound {
    /// How many more messages the share allows once `leaving` of those that run are settled.
    pub(super) fn room(self, share: Share, leaving: u32) -> u32 {
        share.room(self.limit, self.running.saturating_sub(leaving))
    }
}

/// What a worker knows of its share in a topic's limit.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::worker) struct Known {
    pub(super) share: Share,
    last: Option<LastRequest>,
}

#[derive(Debug, Clone, Copy)]
struct LastRequest {
    limit: u32,
    at: Instant,
    took: Duration,
}

impl Known {
    fn may_ask(&self, limit: u32) -> bool {
        self.last.is_none_or(|last| {
            let spacing = (last.took * SPACING_SHARE).clamp(SPACING, LONGEST_SPACING);
            last.limit != limit || last.at.elapsed() >= spacing
        })
    }
}

impl Work {
    /// The worker's place in a limit.
    pub(super) fn bound(&self, topic: TopicId, limit: NonZeroU32) -> Bound {
        let left = self.left.get(&topic).copied().unwrap_or(0);
        Bound { limit: limit.get(), running: self.held.running(topic).saturating_add(left) }
    }

    /// Returns whether the worker's share has room, after a request for more if it has none. While
    /// a suspect waits, the request leaves a place for it.
    pub(super) async fn has_share(
        &mut self,
        topic: TopicId,
        bound: Bound,
        want: u32,
    ) -> Result<bool> {
        let cursor = self.cursor(topic);
        let since = cursor.suspect_since.unwrap_or_else(Instant::now);
        cursor.suspect_since = cursor.suspect_waits.then_some(since);
        let keeps = cursor.suspect_waits && cursor.keeps_place();
        let known = &cursor.share;
        if (bound.room(known.share, 0) == 0 || keeps) && known.may_ask(bound.limit) {
            self.ask(topic, bound, want, keeps).await?;
        }
        Ok(bound.room(self.cursor(topic).share.share, 0) > 0)
    }

    async fn ask(&mut self, topic: TopicId, bound: Bound, want: u32, keeps: bool) -> Result<()> {
        let request = Request { worker: self.id, bound, want, keeps };
        let session = self.session().await?;
        let at = Instant::now();
        let ask = async |conn: &mut Link| deal_shares(conn, topic, request).await;
        let share = session.transaction("deal the shares", ask).await;
        let known = &mut self.cursor(topic).share;
        known.last = Some(LastRequest { limit: bound.limit, at, took: at.elapsed() });
        known.share = share?;
        Ok(())
    }

    /// Claims a suspect within the worker's share. It asks for a share even if it has just asked:
    /// the caller spaces these claims, and a place that was kept for the suspect must be taken
    /// before another message gets it.
    pub(super) async fn suspect_in_share(
        &mut self,
        topic: TopicId,
        limit: NonZeroU32,
        fence: Fence,
    ) -> Result<Vec<Delivery>> {
        self.session().await?;
        let bound = self.bound(topic, limit);
        // The worker may have lost the share that it knows of.
        for _ in 0..2 {
            if bound.room(self.cursor(topic).share.share, 0) == 0 {
                self.ask(topic, bound, 1, false).await?;
            }
            let (room, deliveries) = self.try_suspect(topic, bound, fence).await?;
            if room > 0 {
                return Ok(deliveries);
            }
        }
        Ok(Vec::new())
    }

    /// Returns the room that the share had, and the suspect if there is one.
    async fn try_suspect(
        &mut self,
        topic: TopicId,
        bound: Bound,
        fence: Fence,
    ) -> Result<(u32, Vec<Delivery>)> {
        let tracer = self.tracer(topic);
        let session = self.session().await?;
        let claim = async |conn: &mut Link| {
            let share = share::lock(conn, topic, fence.worker).await?;
            if bound.room(share, 0) == 0 {
                return Ok((share, Vec::new()));
            }
            let rows = claim::lock_suspect(conn, topic, fence.claim_no).await?;
            let deliveries = make_own(conn, fence, rows).await?;
            Ok((share, tracer.trace(conn, deliveries).await?))
        };
        let (share, deliveries) = session.transaction("claim a suspect", claim).await?;
        self.cursor(topic).share.share = share;
        Ok((bound.room(share, 0), deliveries))
    }

    /// What a claim of a topic whose share has no room returns.
    pub(super) fn without_share(&mut self, topic: TopicId) -> Claimed {
        let suspect_waits = self.cursor(topic).suspect_waits;
        Claimed { suspect_waits, more_later: true, ..Claimed::default() }
    }
}

/// A worker's request for a larger share.
#[derive(Debug, Clone, Copy)]
struct Request {
    worker: WorkerId,
    bound: Bound,
    /// How many messages more it would run.
    want: u32,
    /// Whether a place is kept for a suspect.
    keeps: bool,
}

/// Deals the topic's limit again, and returns the worker's share.
async fn deal_shares(
    conn: &mut impl Connection,
    topic: TopicId,
    request: Request,
) -> Result<Share> {
    let Request { worker, bound, want, keeps } = request;
    gate::lock(conn, topic).await?;
    let stored = share::all(conn, topic).await?;
    let shares: BTreeMap<_, _> = stored.iter().map(|it| (it.worker, it.share)).collect();
    let gone: BTreeSet<_> = stored.iter().filter(|it| it.is_gone).map(|it| it.worker).collect();
    let locked = share::lock_unused(conn, topic).await?;
    // No claim within a locked share runs from here on, so the counts hold.
    let running = running(conn, topic).await?;
    if let Some(mine) = shares.get(&worker).filter(|_| !locked.contains(&worker)) {
        return Ok(*mine);
    }
    let mut holders: BTreeMap<_, _> = BTreeMap::new();
    for id in shares.keys().chain(running.keys()).chain([&worker]) {
        let is_gone = gone.contains(id) && locked.contains(id);
        let share = shares.get(id).filter(|_| !is_gone).map_or(0, |share| share.n);
        let running = running.get(id).copied().unwrap_or(0);
        holders.insert(*id, Holder { worker: *id, share, running });
    }
    // Its handlers may still run what was taken back from it, and its share must cover that, too.
    let mine = running.get(&worker).copied().unwrap_or(0);
    let goal = mine.max(bound.running).saturating_add(want);
    // A claim within another share may be under way: it keeps its share as it is.
    let is_fixed = |id: &WorkerId| shares.contains_key(id) && !locked.contains(id);
    let (fixed, holders): (Vec<_>, Vec<_>) =
        holders.into_values().partition(|holder| is_fixed(&holder.worker));
    let kept = keeps && limit::suspect(conn, topic).await?.is_some();
    let limit = fixed.iter().map(Holder::used).fold(bound.limit, u32::saturating_sub);
    let mut dealt = holders;
    deal(&mut dealt, worker, goal, limit.saturating_sub(kept.into()));
    store(conn, topic, bound.limit, &shares, &dealt, worker).await
}

/// How many messages of the topic each worker has claimed. A claim may be without messages: when
/// they were cancelled, it stays until its worker forgets it.
async fn running(conn: &mut impl Connection, topic: TopicId) -> Result<BTreeMap<WorkerId, u32>> {
    let claims = claim::of_topic(conn, topic).await?;
    let mut running = BTreeMap::new();
    for (worker, n) in share::running(conn, &claims).await? {
        let of_worker: &mut u32 = running.entry(worker).or_default();
        *of_worker = of_worker.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
    }
    Ok(running)
}

/// Stores the shares that have changed, and returns the worker's own.
async fn store(
    conn: &mut impl Connection,
    topic: TopicId,
    limit: u32,
    shares: &BTreeMap<WorkerId, Share>,
    dealt: &[Holder],
    worker: WorkerId,
) -> Result<Share> {
    let mut mine = Share::default();
    for holder in dealt {
        let new = Share { n: holder.share, of: limit };
        let is_mine = holder.worker == worker;
        if is_mine {
            mine = new;
        }
        match shares.get(&holder.worker) {
            Some(_) if new.n == 0 && holder.running == 0 && !is_mine => {
                share::remove(conn, topic, holder.worker).await?;
            }
            None if new.n == 0 => {}
            Some(old) if *old == new => {}
            _ => share::set(conn, topic, holder.worker, new).await?,
        }
    }
    Ok(mine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_waited_for_the_gate_delays_the_next_one_by_a_second() {
        let now = Instant::now();
        let second = Duration::from_secs(1);
        let known = |at: Instant| Known {
            share: Share::default(),
            last: Some(LastRequest { limit: 2, at, took: 5 * second }),
        };
        assert!(!known(now).may_ask(2) && known(now).may_ask(3));
        assert!(known(now.checked_sub(second).unwrap()).may_ask(2));
    }
}
