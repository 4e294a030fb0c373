use crate::connection::Connection;
use crate::error::Result;
use crate::message::DeliveryNo;
use crate::store::claim::Fence;
use crate::store::stream::range::{self, Range, Wanted};
use crate::store::stream::{cursor, partition, passed};
use crate::stream::{Group, Offset, PartitionNo};

/// What a claim of a range came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClaimedRange {
    /// The range; `None` if there is nothing, or somebody else has it.
    pub range: Option<Range>,
    /// Messages before it that retention had removed before the group had claimed them.
    pub lost: u64,
}

/// Claims up to `limit` offsets of a partition for a member of the group: what somebody gave back
/// or died with, or else what comes next. Runs within the caller's transaction.
///
/// The group's cursor is locked first. Whoever resets the group holds that lock too, so that no
/// range of before is left over, and none comes to be twice (history H16).
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn claim_range(
    conn: &mut impl Connection,
    group: Group,
    no: PartitionNo,
    fence: Fence,
    limit: u32,
    wanted: Wanted,
) -> Result<ClaimedRange> {
    let Some(next) = cursor::lock(conn, group.id, no).await? else {
        return Ok(ClaimedRange::default());
    };
    let free = range::lock_free(conn, group.id, no, wanted).await?;
    if group.ordered {
        // One range at a time, the lowest first, and nothing beyond one that waits.
        let ranges = range::of_partition(conn, group.id, no).await?;
        let is_held = |range: &Range| range.fence.worker.0 != 0;
        let head = ranges.first().map(|range| range.id);
        if ranges.iter().any(is_held) || head != free.map(|range| range.id) {
            return Ok(ClaimedRange::default());
        }
    }
    match (free, wanted) {
        (Some(free), Wanted::Shared) => take(conn, free, fence, limit).await,
        (Some(free), Wanted::Suspect) => take(conn, free, fence, 1).await,
        (None, Wanted::Suspect) => Ok(ClaimedRange::default()),
        (None, Wanted::Shared) => go_on(conn, group, no, next, fence, limit).await,
    }
}

/// Takes the beginning of a free range; the rest stays free.
async fn take(
    conn: &mut impl Connection,
    free: Range,
    fence: Fence,
    limit: u32,
) -> Result<ClaimedRange> {
    let hi = Offset(free.hi.0.min(free.mark.0 + u64::from(limit.max(1))));
    range::take(conn, free.id, hi, fence).await?;
    if hi < free.hi {
        let rest = (hi, free.hi);
        let (deliveries, suspicions) = (free.delivery_no, free.suspicions);
        let made =
            range::insert_free(conn, free.group, free.partition, rest, deliveries, suspicions);
        let rest = made.await?;
        passed::hand_on(conn, free.id, rest, (hi, free.hi)).await?;
    }
    let range = Range { hi, fence, delivery_no: DeliveryNo(free.delivery_no.0 + 1), ..free };
    Ok(ClaimedRange { range: Some(range), lost: 0 })
}

/// Takes the group's cursor on. What retention has removed before it was claimed is counted.
async fn go_on(
    conn: &mut impl Connection,
    group: Group,
    no: PartitionNo,
    next: Offset,
    fence: Fence,
    limit: u32,
) -> Result<ClaimedRange> {
    let Some(partition) = partition::find(conn, group.stream, no).await? else {
        return Ok(ClaimedRange::default());
    };
    let lo = next.max(partition.first);
    let lost = lo.0 - next.0;
    let hi = Offset(partition.next.0.min(lo.0 + u64::from(limit)));
    if hi.max(lo) > next {
        // Also if all that there was has been removed: it would look like work for ever.
        cursor::advance(conn, group.id, no, hi.max(lo), lost).await?;
    }
    if hi <= lo {
        return Ok(ClaimedRange { range: None, lost });
    }
    let id = range::insert_own(conn, group.id, no, (lo, hi), fence).await?;
    let range = Range {
        id,
        group: group.id,
        partition: no,
        mark: lo,
        hi,
        fence,
        delivery_no: DeliveryNo(1),
        failures: 0,
        crashes: 0,
        suspicions: 0,
    };
    Ok(ClaimedRange { range: Some(range), lost })
}
