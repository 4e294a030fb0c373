use std::collections::HashSet;

use crate::connection::Connection;
use crate::error::Result;
use crate::store::stream::log::{self, Stretch};
use crate::store::stream::passed;
use crate::stream::{HeaderFilter, Offset, RangeId};

/// The most messages whose headers a claim looks at under the lock of its group's cursor, where the
/// group's other members wait meanwhile.
const LOOKED_AT: u64 = 1000;

/// What a group wants of a stretch of its stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picked {
    /// The messages that it wants, in order.
    pub wanted: Vec<Offset>,
    /// Those that its filter does not let through, in order: they count as passed.
    pub filtered: Vec<Offset>,
}

/// Looks at the stretch until `limit` messages are wanted, or a thousand are looked at. With where
/// that ends: before the next one that is wanted.
pub(super) async fn pick(
    conn: &mut impl Connection,
    stretch: Stretch,
    limit: u32,
    filter: &HeaderFilter,
) -> Result<(Offset, Picked)> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let end = Offset(stretch.hi.0.min(stretch.lo.0 + LOOKED_AT));
    let mut picked = Picked::default();
    for (offset, headers) in log::headers(conn, Stretch { hi: end, ..stretch }).await? {
        if !filter.wants(&headers) {
            picked.filtered.push(offset);
        } else if picked.wanted.len() < limit {
            picked.wanted.push(offset);
        } else {
            return Ok((offset, picked));
        }
    }
    Ok((end, picked))
}

/// How many messages of a stretch, of which nothing is wanted, retention has removed: they are
/// neither there nor acked by transactions of their own.
pub(super) async fn pruned(
    conn: &mut impl Connection,
    range: RangeId,
    stretch: (Offset, Offset),
    picked: &Picked,
) -> Result<u64> {
    let acked = passed::of_range(conn, range).await?;
    let known: HashSet<u64> = acked.iter().chain(&picked.filtered).map(|at| at.0).collect();
    let pruned = (stretch.0.0..stretch.1.0).filter(|offset| !known.contains(offset)).count();
    Ok(pruned as u64)
}
