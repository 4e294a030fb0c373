use std::collections::HashSet;

use crate::connection::Connection;
use crate::model::{HeaderFilter, Offset, RangeId, Result};
use crate::store::stream::log::{self, Seen, Stretch};
use crate::store::stream::passed;

/// The most messages whose headers a claim reads under the lock of its group's cursor, while the
/// group's other members wait; a member of a broadcast group reads as many.
pub(crate) const LOOKED_AT: u64 = 1000;

/// The fewest messages that one statement reads.
const LOOK: u64 = 64;

/// What a group's filter selects of a stretch of its stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picked {
    /// The messages that pass the filter, in order.
    pub wanted: Vec<Offset>,
    /// The messages that do not, in order: they count as passed.
    pub filtered: Vec<Offset>,
    /// The messages of damaged pages that are wanted, in order, but for the page's own offset.
    pub hidden: Vec<Offset>,
}

/// Reads a stretch until it has found `limit` wanted messages or has read a thousand offsets, and
/// reads few messages beyond that. Also returns the offset where it stopped, which is at most that
/// of the next wanted message.
pub(crate) async fn pick(
    conn: &mut impl Connection,
    stretch: Stretch,
    limit: u32,
    filter: &HeaderFilter,
) -> Result<(Offset, Picked)> {
    let limit = u64::from(limit);
    let end = stretch.hi.0.min(stretch.lo.0 + LOOKED_AT);
    let mut picked = Picked::default();
    let (mut lo, mut look) = (stretch.lo.0, limit.max(LOOK));
    while lo < end && (picked.wanted.len() as u64) < limit {
        let hi = end.min(lo + look);
        let stretch = Stretch { lo: Offset(lo), hi: Offset(hi), ..stretch };
        for (offset, seen) in log::headers(conn, stretch).await? {
            // A damaged page is for every group: each must hear of it.
            if matches!(&seen, Seen::Headers(headers) if !filter.wants(headers)) {
                picked.filtered.push(offset);
            } else if (picked.wanted.len() as u64) < limit {
                if let Seen::DamagedFrom(first) = seen {
                    picked.hidden.extend((first.max(stretch.lo).0..offset.0).map(Offset));
                }
                picked.wanted.push(offset);
            } else {
                return Ok((offset, picked));
            }
        }
        lo = hi;
        look = picked.next_look(limit);
    }
    Ok((Offset(lo), picked))
}

impl Picked {
    /// Estimates how many more messages must be read to find the missing ones.
    fn next_look(&self, limit: u64) -> u64 {
        let wanted = self.wanted.len() as u64;
        let looked = wanted + self.filtered.len() as u64;
        let missing = limit.saturating_sub(wanted);
        missing.saturating_mul(looked).checked_div(wanted).unwrap_or(LOOKED_AT).max(LOOK)
    }
}

/// Counts the messages that retention removed from a stretch without wanted messages: those that
/// were neither read, nor in a damaged page, nor acked in handlers' transactions.
pub(super) async fn pruned(
    conn: &mut impl Connection,
    range: RangeId,
    stretch: (Offset, Offset),
    picked: &Picked,
) -> Result<u64> {
    let acked = passed::of_range(conn, range).await?;
    let known: HashSet<u64> =
        acked.iter().chain(&picked.filtered).chain(&picked.hidden).map(|at| at.0).collect();
    let pruned = (stretch.0.0..stretch.1.0).filter(|offset| !known.contains(offset)).count();
    Ok(pruned as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_look_is_as_long_as_the_last_ones_let_expect() {
        let picked = |wanted: u64, filtered: u64| Picked {
            wanted: (0..wanted).map(Offset).collect(),
            filtered: (0..filtered).map(Offset).collect(),
            hidden: Vec::new(),
        };
        assert_eq!(picked(0, 100).next_look(10), LOOKED_AT, "nothing is known");
        assert_eq!(picked(50, 50).next_look(100), 100);
        assert_eq!(picked(1, 99).next_look(100), 9900, "cut to what a claim looks at");
        assert_eq!(picked(99, 1).next_look(100), LOOK);
    }
}
