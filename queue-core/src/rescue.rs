//! Taking a claim back from a worker that no longer uses it: the worker is dead or stopped, or
//! never learned that the claim was committed.

use std::collections::BTreeSet;

use crate::connection::Connection;
use crate::model::trace::{Step, Traced};
use crate::model::{
    ClaimNo, DeadCause, Group, Position, Priority, Result, RowId, TopicId, WorkerId,
};
use crate::store::claim::{self, Claim};
use crate::store::rescue::{self, Charge, LONE_CRASH, SHARED_CRASHES, Zombie};
use crate::store::row_set::RowSet;
use crate::store::settle::ClaimedRows;
use crate::store::stream::filing::{self, Filed, Past};
use crate::store::stream::log::{self, Stretch};
use crate::store::stream::passed;
use crate::store::stream::range::{self, Range};
use crate::store::{cancel, floor, moves, settle, topic, trace, unique};

/// Why a claim is taken back. This decides how its rows are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Its worker crashed; `rows_held` is how many rows the worker held in total.
    Crashed {
        /// The result of [`rows_held`], right after the worker was declared dead.
        rows_held: u64,
    },
    /// Its worker is alive or stopped cleanly: nothing is charged.
    NotNeeded,
}

impl Why {
    /// The reason in a trace.
    fn text(self) -> Option<&'static str> {
        match self {
            Self::Crashed { rows_held: 1 } => Some(LONE_CRASH),
            Self::Crashed { .. } => Some("its worker crashed"),
            Self::NotNeeded => None,
        }
    }
}

/// The trace's word for a message that is to be claimed again.
const READY: &str = "ready";

/// The trace's word for a message that is dead-lettered.
const DEAD_LETTER: &str = "dead_letter";

/// The result of taking a claim back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct TakenBack {
    /// Rows made ready again.
    pub freed: usize,
    /// Rows dead-lettered because they crashed their worker alone too often.
    pub dead_lettered: usize,
    /// Rows still locked by a session of the worker: the next sweep takes them.
    pub left: u64,
}

/// Counts the messages that a dead worker held: the rows of its claims, its ranges' messages, and
/// those [cancelled](crate::cancellation) while it held them, within the minute before its last
/// beat. The handler of a cancelled message may have kept running, so any of these messages may
/// have killed the worker.
pub async fn rows_held(conn: &mut impl Connection, worker: WorkerId) -> Result<u64> {
    let mut rows = range::messages_of(conn, worker).await?;
    for claim in claim::of_worker(conn, worker, ClaimNo(0)).await? {
        rows += rescue::rows_left(conn, &claim).await?;
    }
    // Read last: a message that is taken away in between is counted twice rather than missed.
    let taken = cancel::taken_from(conn, worker).await?;
    // A claim of this worker may be found later. If a message was taken away from the worker, that
    // claim was not its only message, so the count must not be 1.
    Ok(if taken > 0 { rows.max(1).saturating_add(taken as u64) } else { rows })
}

/// Takes back the rows of `claim` and forgets the claim once none is left. Runs within the caller's
/// transaction, and touches every row only under the claim's fence.
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn take_back(conn: &mut impl Connection, claim: &Claim, why: Why) -> Result<TakenBack> {
    let zombies = rescue::lock_zombies(conn, claim).await?;
    let mut taken = TakenBack::default();
    let crash_limit = match why {
        Why::Crashed { rows_held: 1 } if !zombies.is_empty() => {
            rescue::max_crashes(conn, claim).await?
        }
        _ => u32::MAX,
    };
    let of_claim = |rows| ClaimedRows {
        fence: claim.fence,
        topic: claim.topic,
        priority: claim.priority,
        rows,
    };
    let mut dead = BTreeSet::new();
    for (fate, rows) in by_fate(&zombies, why, crash_limit) {
        let claimed = of_claim(rows);
        match fate {
            Fate::DeadLetter => {
                let blocked = dead_letter(conn, &claimed, crash_limit).await?;
                taken.dead_lettered += claimed.rows.len() - blocked.len();
                taken.freed += blocked.len();
                dead.extend(without(&claimed.rows, &blocked).iter());
                let alone = claim.priority.suspect();
                free(conn, &claimed.with_rows(blocked), alone, Charge::Crash).await?;
            }
            Fate::Free { charge, isolate } => {
                let priority = if isolate { claim.priority.suspect() } else { claim.priority };
                taken.freed += claimed.rows.len();
                free(conn, &claimed, priority, charge).await?;
            }
        }
    }
    taken.left = rescue::rows_left(conn, claim).await?;
    if taken.left == 0 {
        claim::forget(conn, claim.fence.worker, &[claim.fence.claim_no]).await?;
    }
    trace_zombies(conn, claim, &zombies, &dead, why).await?;
    // Last, so that the floor's row is locked no longer than the commit takes.
    if let (Some(lowest), false) = (zombies.first(), claim.priority.is_suspect()) {
        floor::publish(conn, claim.topic, claim.priority, lowest.row).await?;
    }
    Ok(taken)
}

/// Records in the traces how rows that were taken back ended up.
async fn trace_zombies(
    conn: &mut impl Connection,
    claim: &Claim,
    zombies: &[Zombie],
    dead: &BTreeSet<RowId>,
    why: Why,
) -> Result<()> {
    if zombies.is_empty() {
        return Ok(());
    }
    let sampling = trace::sampling_of(conn, claim.topic).await?;
    let (worker, error) = (claim.fence.worker, why.text());
    let step = |zombie: &Zombie| {
        let outcome = if dead.contains(&zombie.row) { DEAD_LETTER } else { READY };
        Step::rescued(claim.topic, zombie.delivery, worker, outcome, error)
    };
    let traced = zombies.iter().filter(|zombie| sampling.takes(zombie.delivery.msg_id));
    let steps: Vec<_> = traced.map(step).collect();
    trace::record(conn, &steps).await
}

/// Takes back a range of a stream, for the group to claim again. Runs within the caller's
/// transaction, under the range's fence only. Skips a range that a session of the worker has
/// locked.
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn take_range_back(
    conn: &mut impl Connection,
    seen: &Range,
    why: Why,
) -> Result<TakenBack> {
    let mut taken = TakenBack::default();
    let Some(range) = range::try_lock(conn, seen).await? else {
        taken.left = range::left_of(conn, seen).await?;
        return Ok(taken);
    };
    let messages = usize::try_from(range.hi.0 - range.mark.0).unwrap_or(usize::MAX);
    let charge = match why {
        Why::NotNeeded => Charge::Nothing,
        // A message that a transaction has acked did not kill its worker.
        Why::Crashed { rows_held: 1 }
            if passed::of_range(conn, range.id).await?.contains(&range.mark) =>
        {
            Charge::Nothing
        }
        Why::Crashed { rows_held: 1 } => Charge::Crash,
        Why::Crashed { .. } => Charge::Suspicion,
    };
    if charge == Charge::Crash {
        let Some((stream, limit)) = group_limits(conn, range.group).await? else {
            return Ok(taken);
        };
        if range.crashes + 1 >= limit {
            let error = format!("its worker crashed {limit} times while it ran alone");
            let filed = Filed {
                stream,
                partition: range.partition,
                offsets: vec![range.mark],
                group: range.group,
                worker: range.fence.worker,
                delivery_no: range.delivery_no,
                past: Past::AtMarkOf(range.id),
            };
            taken.dead_lettered = filing::to_dead(conn, &filed, DeadCause::Crashes, &error).await?;
            trace_range(conn, &range, DEAD_LETTER, why).await?;
            let ended = range::end(conn, range.id, range.fence).await?;
            moves::equal("rescue: end the range", 1, ended)?;
            passed::forget(conn, range.id, range.hi).await?;
            floor::publish(conn, range.group, Priority::default(), RowId(0)).await?;
            return Ok(taken);
        }
    }
    let freed = range::free(conn, &range, charge).await?;
    moves::equal("rescue: free the range", 1, freed)?;
    taken.freed = messages;
    trace_range(conn, &range, READY, why).await?;
    // Nothing else notifies the group's other members.
    floor::publish(conn, range.group, Priority::default(), RowId(0)).await?;
    Ok(taken)
}

/// Records in the traces how the messages of a range that was taken back ended up, except for those
/// that a handler's transaction has acked.
async fn trace_range(
    conn: &mut impl Connection,
    range: &Range,
    outcome: &'static str,
    why: Why,
) -> Result<()> {
    let sampling = trace::sampling_of(conn, range.group).await?;
    if sampling.is_off() {
        return Ok(());
    }
    let group = topic::by_id(conn, range.group).await?.and_then(|topic| topic.group());
    let Some(Group { stream, .. }) = group else { return Ok(()) };
    let stretch = Stretch { stream, partition: range.partition, lo: range.mark, hi: range.hi };
    let acked = passed::of_range(conn, range.id).await?;
    let mut steps = Vec::new();
    for (offset, msg_id) in log::msg_ids(conn, stretch).await? {
        if sampling.takes(msg_id) && !acked.contains(&offset) {
            let traced = Traced { msg_id, delivery_no: range.delivery_no };
            let (group, worker) = (range.group, range.fence.worker);
            let step = Step::rescued(group, traced, worker, outcome, why.text());
            let position = Some(Position { partition: range.partition, offset });
            steps.push(Step { position, ..step });
        }
    }
    trace::record(conn, &steps).await
}

/// Returns the stream that a group reads, and after how many lone crashes the group dead-letters a
/// message.
async fn group_limits(
    conn: &mut impl Connection,
    group: TopicId,
) -> Result<Option<(TopicId, u32)>> {
    let topic = topic::by_id(conn, group).await?;
    Ok(topic.and_then(|topic| Some((topic.group()?.stream, topic.settings.max_crashes))))
}

/// Dead-letters the rows, except for those whose unique key another session has locked: that
/// transaction may stay open for long, and the rescue of other rows does not wait for it. Returns
/// the blocked rows: they are still charged with the crash, and are dead-lettered at the next one.
async fn dead_letter(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    crash_limit: u32,
) -> Result<RowSet> {
    let keyed = unique::lock(conn, claimed).await?;
    let rest: RowSet = without(&claimed.rows, &keyed);
    let blocked = if rest.is_empty() {
        rest
    } else {
        unique::holding(conn, &claimed.with_rows(rest)).await?
    };
    if !keyed.is_empty() {
        unique::release(conn, &claimed.with_rows(keyed)).await?;
    }
    let dead = claimed.with_rows(without(&claimed.rows, &blocked));
    if !dead.rows.is_empty() {
        let error = format!("its worker crashed {crash_limit} times while it ran alone");
        moves::to_dead(conn, &dead, DeadCause::Crashes, &error).await?;
    }
    Ok(blocked)
}

fn without(rows: &RowSet, others: &RowSet) -> RowSet {
    let others: BTreeSet<RowId> = others.iter().collect();
    rows.iter().filter(|row| !others.contains(row)).collect()
}

async fn free(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    priority: Priority,
    charge: Charge,
) -> Result<()> {
    if claimed.rows.is_empty() {
        return Ok(());
    }
    let freed = rescue::free(conn, claimed, priority, charge).await?;
    moves::equal("rescue: free the rows", claimed.rows.len(), freed)
}

/// Makes the rows of a claim ready again that are not in `held`: their worker has settled them, but
/// the server has lost the settlement. The claim stays. Runs within the caller's transaction.
/// Returns how many rows it made ready.
///
/// # Errors
/// A database failure, or [`crate::Error::Counts`]; roll back.
pub async fn give_back(
    conn: &mut impl Connection,
    claim: &Claim,
    held: &BTreeSet<RowId>,
) -> Result<usize> {
    let zombies = rescue::lock_zombies(conn, claim).await?;
    let undone = zombies.iter().map(|zombie| zombie.row).filter(|row| !held.contains(row));
    let rows: RowSet = undone.collect();
    let Some((lowest, _)) = rows.bounds() else { return Ok(0) };
    let claimed =
        ClaimedRows { fence: claim.fence, topic: claim.topic, priority: claim.priority, rows };
    let freed = settle::release(conn, &claimed).await?;
    moves::equal("release rows that were settled", claimed.rows.len(), freed)?;
    let undone: Vec<_> = zombies.into_iter().filter(|zombie| !held.contains(&zombie.row)).collect();
    trace_zombies(conn, claim, &undone, &BTreeSet::new(), Why::NotNeeded).await?;
    if !claim.priority.is_suspect() {
        floor::publish(conn, claim.topic, claim.priority, lowest).await?;
    }
    Ok(freed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Free { charge: Charge, isolate: bool },
    DeadLetter,
}

fn fate(zombie: &Zombie, why: Why, crash_limit: u32) -> Fate {
    match why {
        Why::NotNeeded => Fate::Free { charge: Charge::Nothing, isolate: false },
        Why::Crashed { rows_held: 1 } if zombie.crashes + 1 >= crash_limit => Fate::DeadLetter,
        Why::Crashed { rows_held: 1 } => Fate::Free { charge: Charge::Crash, isolate: true },
        Why::Crashed { .. } => Fate::Free {
            charge: Charge::Suspicion,
            isolate: zombie.suspicions + 1 >= SHARED_CRASHES,
        },
    }
}

fn by_fate(zombies: &[Zombie], why: Why, crash_limit: u32) -> Vec<(Fate, RowSet)> {
    let mut groups: Vec<(Fate, Vec<RowId>)> = Vec::new();
    for zombie in zombies {
        let fate = fate(zombie, why, crash_limit);
        match groups.iter_mut().find(|(other, _)| *other == fate) {
            Some((_, rows)) => rows.push(zombie.row),
            None => groups.push((fate, vec![zombie.row])),
        }
    }
    groups.into_iter().map(|(fate, rows)| (fate, RowSet::new(rows))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zombie(crashes: u32, suspicions: u32) -> Zombie {
        let (msg_id, delivery_no) = (crate::MsgId::new(), crate::model::DeliveryNo(1));
        Zombie { row: RowId(1), delivery: Traced { msg_id, delivery_no }, crashes, suspicions }
    }

    #[test]
    fn innocents_of_a_crash_are_charged_nothing_that_dead_letters_them() {
        let why = Why::Crashed { rows_held: 100 };
        for suspicions in 0..50 {
            let fate = fate(&zombie(2, suspicions), why, 3);
            let isolate = suspicions + 1 >= SHARED_CRASHES;
            assert_eq!(fate, Fate::Free { charge: Charge::Suspicion, isolate });
        }
    }

    #[test]
    fn only_lone_crashes_dead_letter() {
        let why = Why::Crashed { rows_held: 1 };
        let free = Fate::Free { charge: Charge::Crash, isolate: true };
        assert_eq!(fate(&zombie(0, 2), why, 3), free);
        assert_eq!(fate(&zombie(1, 2), why, 3), free);
        assert_eq!(fate(&zombie(2, 2), why, 3), Fate::DeadLetter);
    }
}
