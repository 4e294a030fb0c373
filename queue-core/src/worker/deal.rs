//! How a topic's limit is dealt to its workers.
//!
//! The sum over all workers of what each may run, or runs if that is more, never grows beyond the
//! limit: a worker gets only what no other worker may use.

use crate::model::WorkerId;

/// A worker before and after a deal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) worker: WorkerId,
    /// The most messages that it may run at once.
    pub(super) share: u32,
    /// How many it runs.
    pub(super) running: u32,
}

impl Holder {
    /// The places of the limit that it takes up.
    pub(super) fn used(&self) -> u32 {
        self.share.max(self.running)
    }

    fn unused(&self) -> u32 {
        self.share.saturating_sub(self.running)
    }
}

/// Changes the shares so that `me` may run up to `goal` messages, as far as the limit allows:
///
/// 1. Shares beyond the limit, which has been lowered, are cut.
/// 2. It gets what is in no share, and the shares of workers that run nothing.
/// 3. If it still has less than an equal part, it gets what workers with more than that do not use.
/// 4. Of those, the ones that use everything lose the rest, which is free for the next deal as soon
///    as their messages end.
///
/// What a worker with less than an equal part does not use stays with it: between a settle and the
/// next claim busy workers would otherwise take each other's places.
pub(super) fn deal(holders: &mut [Holder], me: WorkerId, goal: u32, limit: u32) {
    cut(holders, limit);
    let Some(at) = holders.iter().position(|holder| holder.worker == me) else { return };
    let goal = goal.min(limit);
    let rest = |of: fn(&Holder) -> u32, holders: &[Holder]| {
        holders.iter().map(of).fold(limit, u32::saturating_sub)
    };
    let missing = |holders: &[Holder], goal: u32| goal.saturating_sub(holders[at].share);
    let used: u64 = holders.iter().map(|holder| u64::from(holder.used())).sum();
    // Where more runs than the limit, nothing is free until enough of it has ended.
    if used <= u64::from(limit) {
        // What it runs beyond its share counts already, but every share must be within the limit.
        let beyond = holders[at].used() - holders[at].share;
        let free = rest(Holder::used, holders).saturating_add(beyond);
        let free = free.min(rest(|holder| holder.share, holders));
        holders[at].share += missing(holders, goal).min(free);
    }
    let others =
        |holders: &[Holder]| (0..holders.len()).filter(|other| *other != at).collect::<Vec<_>>();
    for other in others(holders) {
        if holders[other].running == 0 {
            let given = missing(holders, goal).min(holders[other].share);
            holders[other].share -= given;
            holders[at].share += given;
        }
    }
    let active = holders.iter().enumerate().filter(|(n, it)| *n == at || it.running > 0).count();
    let equal = (limit / u32::try_from(active).unwrap_or(u32::MAX)).max(1);
    let goal = goal.min(equal);
    for other in others(holders) {
        let above = holders[other].share.saturating_sub(equal);
        let given = missing(holders, goal).min(above).min(holders[other].unused());
        holders[other].share -= given;
        holders[at].share += given;
    }
    let mut owed = missing(holders, goal);
    for other in others(holders) {
        let lost = holders[other].share.saturating_sub(equal).min(owed);
        holders[other].share -= lost;
        owed -= lost;
    }
}

/// Cuts shares until their sum is within the limit: first what is not used.
fn cut(holders: &mut [Holder], limit: u32) {
    let total: u64 = holders.iter().map(|holder| u64::from(holder.share)).sum();
    let mut beyond = u32::try_from(total.saturating_sub(limit.into())).unwrap_or(u32::MAX);
    for holder in &mut *holders {
        let lost = holder.unused().min(beyond);
        holder.share -= lost;
        beyond -= lost;
    }
    while beyond > 0
        && let Some(largest) = holders.iter_mut().max_by_key(|holder| holder.share)
        && largest.share > 0
    {
        let lost = largest.share.div_ceil(2).min(beyond);
        largest.share -= lost;
        beyond -= lost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(of: &[(u32, u32)]) -> Vec<Holder> {
        let holder = |(n, &(share, running)): (usize, &(u32, u32))| Holder {
            worker: WorkerId(n as u64),
            share,
            running,
        };
        of.iter().enumerate().map(holder).collect()
    }

    /// The shares, once the first worker has asked for `want` more than it runs.
    fn dealt(of: &[(u32, u32)], want: u32, limit: u32) -> Vec<u32> {
        let mut holders = holders(of);
        deal(&mut holders, WorkerId(0), of[0].1 + want, limit);
        holders.iter().map(|holder| holder.share).collect()
    }

    #[test]
    fn a_worker_gets_what_is_free_and_what_idle_workers_have() {
        assert_eq!(dealt(&[(0, 0)], 5, 3), [3]);
        assert_eq!(dealt(&[(0, 0), (2, 2)], 5, 3), [1, 2]);
        assert_eq!(dealt(&[(1, 1), (9, 0)], 5, 10), [6, 4]);
    }

    #[test]
    fn a_worker_below_an_equal_part_gets_what_the_others_do_not_use() {
        // Two of four are unused, and an equal part is five.
        assert_eq!(dealt(&[(0, 0), (10, 8)], 5, 10), [2, 5]);
        // Everything is used: the other one loses what it has beyond an equal part, when it ends.
        assert_eq!(dealt(&[(0, 0), (10, 10)], 5, 10), [0, 5]);
        assert_eq!(dealt(&[(0, 0), (5, 10)], 5, 10), [0, 5]);
        assert_eq!(dealt(&[(0, 0), (5, 6)], 5, 10), [4, 5]);
    }

    #[test]
    fn a_lowered_limit_cuts_shares_and_first_what_is_not_used() {
        assert_eq!(dealt(&[(4, 0), (4, 4)], 4, 4), [0, 2]);
        assert_eq!(dealt(&[(0, 0), (8, 8)], 1, 4), [0, 3]);
    }

    #[test]
    fn what_runs_beyond_a_share_needs_no_room_of_its_own() {
        assert_eq!(dealt(&[(0, 4)], 4, 6), [6]);
        assert_eq!(dealt(&[(0, 4), (0, 2)], 4, 6), [4, 0]);
    }

    #[test]
    fn no_deal_lets_more_run_than_the_limit() {
        let used = |of: &[Holder]| of.iter().map(Holder::used).sum::<u32>();
        // Every state of three workers with shares and messages of up to three each.
        for state in 0..4_u32.pow(6) {
            let digit = |n: u32| state / 4_u32.pow(n) % 4;
            let of = [(digit(0), digit(1)), (digit(2), digit(3)), (digit(4), digit(5))];
            for limit in 0..8 {
                for goal in 0..9 {
                    let mut after = holders(&of);
                    deal(&mut after, WorkerId(0), goal, limit);
                    let most = used(&holders(&of)).max(limit);
                    assert!(used(&after) <= most, "{of:?}, {goal} within {limit}: {after:?}");
                    let shares: u32 = after.iter().map(|holder| holder.share).sum();
                    assert!(shares <= limit, "{of:?} within {limit}: {after:?}");
                }
            }
        }
    }
}
