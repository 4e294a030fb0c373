//! Claims of a topic that limits only how many of its messages run at once. Each worker has a share
//! of the limit, and claims within it without waiting for the other workers.

use std::collections::BTreeMap;
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

/// The least time between two requests of a worker under one limit: a deal waits for every claim of
/// the topic, and holds up new ones.
const SPACING: Duration = Duration::from_millis(100);

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
    asked: Option<Instant>,
}

impl Known {
    fn may_ask(&self, limit: u32) -> bool {
        self.share.of != limit || self.asked.is_none_or(|asked| asked.elapsed() >= SPACING)
    }
}

impl Work {
    /// The worker's place in a limit.
    pub(super) fn bound(&self, topic: TopicId, limit: NonZeroU32) -> Bound {
        Bound { limit: limit.get(), running: self.held.running(topic) }
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
        let id = self.id;
        self.cursor(topic).share.asked = Some(Instant::now());
        let session = self.session().await?;
        let ask = async |conn: &mut Link| {
            deal_shares(conn, topic, id, Request { limit: bound.limit, want, keeps }).await
        };
        let share = session.transaction("deal the shares", ask).await?;
        self.cursor(topic).share.share = share;
        Ok(())
    }

    /// Claims a suspect within the worker's share.
    pub(super) async fn suspect_in_share(
        &mut self,
        topic: TopicId,
        limit: NonZeroU32,
        fence: Fence,
    ) -> Result<Vec<Delivery>> {
        let bound = self.bound(topic, limit);
        if bound.room(self.cursor(topic).share.share, 0) == 0 {
            self.ask(topic, bound, 1, false).await?;
        }
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
        Ok(deliveries)
    }

    /// What a claim of a topic whose share has no room returns.
    pub(super) fn without_share(&mut self, topic: TopicId) -> Claimed {
        let suspect_waits = self.cursor(topic).suspect_waits;
        Claimed { suspect_waits, more_later: true, ..Claimed::default() }
    }
}

/// A worker's request for a larger share.
struct Request {
    limit: u32,
    want: u32,
    /// Whether a place is kept for a suspect.
    keeps: bool,
}

/// Deals the topic's limit again, and returns the worker's share.
async fn deal_shares(
    conn: &mut impl Connection,
    topic: TopicId,
    worker: WorkerId,
    request: Request,
) -> Result<Share> {
    let Request { limit, want, keeps } = request;
    gate::lock(conn, topic).await?;
    // No claim within a share runs from here on, so the counts hold.
    let shares = share::lock_all(conn, topic).await?;
    let mut holders = holders(&shares, share::running(conn, topic).await?, worker);
    let kept = keeps && limit::suspect(conn, topic).await?.is_some();
    deal(&mut holders, worker, want, limit - u32::from(kept));
    let mut mine = Share::default();
    for holder in holders {
        let new = Share { n: holder.share, of: limit };
        let is_mine = holder.worker == worker;
        if is_mine {
            mine = new;
        }
        let old = shares.iter().find(|(owner, _)| *owner == holder.worker).map(|(_, old)| *old);
        match old {
            Some(_) if new.n == 0 && holder.running == 0 && !is_mine => {
                share::remove(conn, topic, holder.worker).await?;
            }
            None if new.n == 0 => {}
            old if old == Some(new) => {}
            _ => share::set(conn, topic, holder.worker, new).await?,
        }
    }
    Ok(mine)
}

/// Every worker that has a share or runs something, and `me`.
fn holders(
    shares: &[(WorkerId, Share)],
    running: Vec<(WorkerId, u32)>,
    me: WorkerId,
) -> Vec<Holder> {
    let holder = |worker| Holder { worker, share: 0, running: 0 };
    let mut holders = BTreeMap::from([(me, holder(me))]);
    for (worker, share) in shares {
        holders.entry(*worker).or_insert_with_key(|id| holder(*id)).share = share.n;
    }
    for (worker, n) in running {
        holders.entry(worker).or_insert_with_key(|id| holder(*id)).running = n;
    }
    holders.into_values().collect()
}
