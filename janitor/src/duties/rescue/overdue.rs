//! What living workers hold for longer than a run may take. The sweeper's own monotonic clock
//! measures how long it is held: a step of the server's clock makes nothing overdue.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use rowmq_core::Result;
use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{ClaimNo, Offset, RangeId, WorkerId};
use rowmq_core::store::claim::Fence;
use rowmq_core::store::rescue::timed_claims;
use rowmq_core::store::stream::range::timed;
use tokio::time::Instant;

use super::PAGE;
use super::taking::{Found, What};

/// Pages of one run; the next run continues after them.
const PAGES_PER_RUN: usize = 20;

/// Claims and ranges that this sweeper sees held.
#[derive(Debug)]
pub(super) struct Overdue {
    claims: Watch<Fence>,
    after_claim: Fence,
    /// The mark is part of a range's key: each message of the range may use the full time.
    ranges: Watch<(Fence, Offset)>,
    after_range: RangeId,
}

const FIRST_CLAIM: Fence = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };

impl Default for Overdue {
    fn default() -> Self {
        Self {
            claims: Watch::default(),
            after_claim: FIRST_CLAIM,
            ranges: Watch::default(),
            after_range: RangeId(0),
        }
    }
}

impl Overdue {
    /// Looks at every claim of a topic that bounds its runs; returns those that are held for too
    /// long.
    pub(super) async fn claims(
        &mut self,
        session: &mut Session,
        now: Instant,
    ) -> Result<Vec<Found>> {
        let mut overdue = Vec::new();
        for _ in 0..PAGES_PER_RUN {
            let after = self.after_claim;
            let look = async |conn: &mut Link| timed_claims(conn, after, PAGE).await;
            let page = session.call("look how long claims are held", look).await?;
            let last = page.last().map(|timed| timed.claim.fence);
            let is_last_page = page.len() < PAGE as usize;
            for timed in page {
                if self.claims.held_for(timed.claim.fence, now) >= timed.may_take {
                    overdue.push(Found::overdue(What::Claim(timed.claim)));
                }
            }
            self.after_claim = last.filter(|_| !is_last_page).unwrap_or(FIRST_CLAIM);
            if is_last_page {
                self.claims.has_seen_all();
                break;
            }
        }
        Ok(overdue)
    }

    /// Does the same for ranges: checks one message of each at a time, the one at the mark.
    pub(super) async fn ranges(
        &mut self,
        session: &mut Session,
        now: Instant,
    ) -> Result<Vec<Found>> {
        let mut overdue = Vec::new();
        for _ in 0..PAGES_PER_RUN {
            let after = self.after_range;
            let look = async |conn: &mut Link| timed(conn, after, PAGE).await;
            let page = session.call("look how long ranges are held", look).await?;
            let last = page.last().map(|timed| timed.range.id);
            let is_last_page = page.len() < PAGE as usize;
            for timed in page {
                let held = (timed.range.fence, timed.range.mark);
                if self.ranges.held_for(held, now) >= timed.may_take {
                    overdue.push(Found::overdue(What::Range(timed.range)));
                }
            }
            self.after_range = last.filter(|_| !is_last_page).unwrap_or(RangeId(0));
            if is_last_page {
                self.ranges.has_seen_all();
                break;
            }
        }
        Ok(overdue)
    }
}

/// Since when each claim or range is held, as far as this sweeper has seen.
#[derive(Debug)]
struct Watch<K> {
    since: HashMap<K, Instant>,
    /// Those that the current look has seen.
    seen: HashMap<K, Instant>,
}

impl<K> Default for Watch<K> {
    fn default() -> Self {
        Self { since: HashMap::new(), seen: HashMap::new() }
    }
}

impl<K: Eq + Hash> Watch<K> {
    /// Records that it is held now; returns for how long it has been seen.
    fn held_for(&mut self, held: K, now: Instant) -> Duration {
        let since = self.since.get(&held).copied().unwrap_or(now);
        self.seen.insert(held, since);
        now.duration_since(since)
    }

    /// Ends the look: what it has not seen is no longer held.
    fn has_seen_all(&mut self) {
        self.since = std::mem::take(&mut self.seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_every_look_has_seen_grows_old() {
        let mut watch = Watch::default();
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let looks: [(u64, &[(char, u64)]); 4] = [
            (0, &[('a', 0), ('b', 0)]),
            (10, &[('a', 10), ('c', 0)]),
            (20, &[('a', 20), ('b', 0), ('c', 10)]),
            (30, &[('b', 10), ('c', 20)]),
        ];
        for (second, held) in looks {
            for (key, age) in held {
                let seen = watch.held_for(*key, at(second));
                assert_eq!(seen, Duration::from_secs(*age), "{key} after {second} s");
            }
            watch.has_seen_all();
        }
    }
}
