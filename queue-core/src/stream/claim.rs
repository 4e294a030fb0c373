use super::pick::{Picked, pick, pruned};
use crate::connection::Connection;
use crate::model::{DeliveryNo, Group, HeaderFilter, Offset, Result};
use crate::store::claim::Fence;
use crate::store::moves::equal;
use crate::store::stream::cursor::Work;
use crate::store::stream::log::Stretch;
use crate::store::stream::range::{self, Range, Wanted};
use crate::store::stream::{cursor, partition, passed};

/// The result of claiming a range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimedRange {
    /// The range; `None` if there is nothing, or another member has it.
    pub range: Option<Range>,
    /// Messages before it that retention removed before the group could claim them.
    pub lost: u64,
    /// What the filter selected of the messages read, if the group has one. Without a range all of
    /// them are passed, and there may be more.
    pub picked: Option<Picked>,
}

/// A request to claim a range.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'f> {
    /// The group.
    pub group: Group,
    /// What was seen of the partition before, without a lock.
    pub seen: Work,
    /// The claim that will hold the range.
    pub fence: Fence,
    /// The most messages that the range may have.
    pub limit: u32,
    /// Which free ranges to claim.
    pub wanted: Wanted,
    /// The group's filter.
    pub filter: &'f HeaderFilter,
}

/// Claims up to `limit` messages of a partition for a member of the group: first those that another
/// member gave back or died with, otherwise the next ones. Runs within the caller's transaction.
///
/// The group's cursor is locked first. A session that resets the group also takes that lock, so
/// that no range from before the reset remains and none is claimed twice (history H16).
///
/// If no range was free and the group takes every message, one statement locks the cursor and
/// advances it, provided that the cursor has not moved since it was read: a transaction of five
/// round trips. Other claims lock the cursor first and then look for a range, in eight round trips.
///
/// A group with a filter reads the headers first, so that its range holds as many wanted messages
/// as a range without a filter. It passes up to a thousand unwanted messages at once and does not
/// read their bodies.
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn claim_range(conn: &mut impl Connection, claim: Claim<'_>) -> Result<ClaimedRange> {
    if let Some(claimed) = go_on_as_seen(conn, claim).await? {
        return Ok(claimed);
    }
    let (group, no) = (claim.group, claim.seen.partition);
    let Some(next) = cursor::lock(conn, group.id, no).await? else {
        return Ok(ClaimedRange::default());
    };
    let free = range::lock_free(conn, group.id, no, claim.wanted).await?;
    if group.ordered {
        // One range at a time, the lowest first, and nothing beyond one that waits for its due
        // time.
        let ranges = range::of_partition(conn, group.id, no).await?;
        let is_held = |range: &Range| range.fence.worker.0 != 0;
        let head = ranges.first().map(|range| range.id);
        if ranges.iter().any(is_held) || head != free.map(|range| range.id) {
            return Ok(ClaimedRange::default());
        }
    }
    match (free, claim.wanted) {
        (Some(free), _) if claim.filter.wants_all() => {
            take(conn, claim, free, claim.end(free.mark, free.hi), None).await
        }
        (Some(free), _) => take_picked(conn, claim, free).await,
        (None, Wanted::Suspect) => Ok(ClaimedRange::default()),
        (None, Wanted::Shared) => go_on(conn, claim, next).await,
    }
}

impl Claim<'_> {
    /// Returns where a range from `lo` on ends at the latest; a suspect range has one message.
    fn end(&self, lo: Offset, hi: Offset) -> Offset {
        let most = match self.wanted {
            Wanted::Shared => self.limit.max(1),
            Wanted::Suspect => 1,
        };
        Offset(hi.0.min(lo.0 + u64::from(most)))
    }

    async fn pick(
        &self,
        conn: &mut impl Connection,
        (lo, hi): (Offset, Offset),
    ) -> Result<(Offset, Picked)> {
        let stretch = Stretch { stream: self.group.stream, partition: self.seen.partition, lo, hi };
        pick(conn, stretch, self.limit.max(1), self.filter).await
    }
}

/// Claims the beginning of a free range, up to `hi`; the rest stays free.
async fn take(
    conn: &mut impl Connection,
    claim: Claim<'_>,
    free: Range,
    hi: Offset,
    picked: Option<Picked>,
) -> Result<ClaimedRange> {
    range::take(conn, free.id, hi, claim.fence).await?;
    if hi < free.hi {
        let rest = (hi, free.hi);
        let (deliveries, suspicions) = (free.delivery_no, free.suspicions);
        let made =
            range::insert_free(conn, free.group, free.partition, rest, deliveries, suspicions);
        let rest = made.await?;
        passed::hand_on(conn, free.id, rest, (hi, free.hi)).await?;
    }
    let delivery_no = DeliveryNo(free.delivery_no.0 + 1);
    let range = Range { hi, fence: claim.fence, delivery_no, ..free };
    Ok(ClaimedRange { range: Some(range), lost: 0, picked })
}

/// Claims the wanted messages of a free range, or passes the others.
async fn take_picked(
    conn: &mut impl Connection,
    claim: Claim<'_>,
    free: Range,
) -> Result<ClaimedRange> {
    let (hi, mut picked) = claim.pick(conn, (free.mark, free.hi)).await?;
    let head = picked.wanted.first().copied().unwrap_or(hi);
    let alone = claim.wanted == Wanted::Suspect;
    if !picked.wanted.is_empty() && (head == free.mark || !alone) {
        let hi = if alone { Offset(head.0 + 1) } else { hi };
        picked.filtered.retain(|offset| *offset < hi);
        return take(conn, claim, free, hi, Some(picked)).await;
    }
    picked.wanted.clear();
    picked.filtered.retain(|offset| *offset < head);
    let lost = pruned(conn, free.id, (free.mark, head), &picked).await?;
    if lost > 0 {
        cursor::count_lost(conn, free.group, free.partition, lost).await?;
    }
    passed::forget(conn, free.id, head).await?;
    let passed = if head == free.hi {
        range::end(conn, free.id, free.fence).await?
    } else {
        range::pass(conn, free.id, free.fence, (free.mark, head)).await?
    };
    equal("claim: pass what is not wanted", 1, passed)?;
    Ok(ClaimedRange { range: None, lost, picked: Some(picked) })
}

/// Claims at the group's cursor, if the cursor has not moved since it was read, and no order,
/// filter or free range decides what is claimed. A partition only grows, so the end that was read
/// is still within it.
async fn go_on_as_seen(
    conn: &mut impl Connection,
    claim: Claim<'_>,
) -> Result<Option<ClaimedRange>> {
    let (group, seen) = (claim.group, claim.seen);
    let is_plain = !group.ordered && claim.wanted == Wanted::Shared && claim.filter.wants_all();
    let lo = seen.next.max(seen.first);
    let hi = claim.end(lo, Offset(seen.next.0 + seen.unclaimed));
    if !is_plain || seen.free > 0 || hi <= lo {
        return Ok(None);
    }
    let lost = lo.0 - seen.next.0;
    if !cursor::advance_from(conn, group.id, seen.partition, (seen.next, hi), lost).await? {
        return Ok(None);
    }
    own(conn, claim, (lo, hi), lost).await.map(Some)
}

/// Records the range of a claim whose cursor has been advanced.
async fn own(
    conn: &mut impl Connection,
    claim: Claim<'_>,
    (lo, hi): (Offset, Offset),
    lost: u64,
) -> Result<ClaimedRange> {
    let (group, partition) = (claim.group.id, claim.seen.partition);
    let id = range::insert_own(conn, group, partition, (lo, hi), claim.fence).await?;
    let range = Range {
        id,
        group,
        partition,
        mark: lo,
        hi,
        fence: claim.fence,
        delivery_no: DeliveryNo(1),
        failures: 0,
        crashes: 0,
        suspicions: 0,
    };
    Ok(ClaimedRange { range: Some(range), lost, picked: None })
}

/// Claims at the group's cursor and advances it. Messages that retention removed before they were
/// claimed are counted as lost.
async fn go_on(conn: &mut impl Connection, claim: Claim<'_>, next: Offset) -> Result<ClaimedRange> {
    let (group, no) = (claim.group, claim.seen.partition);
    let Some(partition) = partition::find(conn, group.stream, no).await? else {
        return Ok(ClaimedRange::default());
    };
    let lo = next.max(partition.first);
    let mut lost = lo.0 - next.0;
    let mut hi = claim.end(lo, partition.next);
    let mut picked = None;
    if !claim.filter.wants_all() && partition.next > lo {
        let (end, found) = claim.pick(conn, (lo, partition.next)).await?;
        if found.wanted.is_empty() {
            // Messages neither found nor filtered were removed after the partition was read.
            lost += end.0 - lo.0 - found.filtered.len() as u64;
            cursor::advance(conn, group.id, no, end, lost).await?;
            return Ok(ClaimedRange { range: None, lost, picked: Some(found) });
        }
        (hi, picked) = (end, Some(found));
    }
    if hi.max(lo) > next {
        // Even if every message was removed: otherwise the partition would seem to have work for
        // ever.
        cursor::advance(conn, group.id, no, hi.max(lo), lost).await?;
    }
    if hi <= lo {
        return Ok(ClaimedRange { lost, ..ClaimedRange::default() });
    }
    let claimed = own(conn, claim, (lo, hi), lost).await?;
    Ok(ClaimedRange { picked, ..claimed })
}
