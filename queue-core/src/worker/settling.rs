//! Settling a batch of deliveries in one transaction.

mod settled;
mod traces;

pub use self::settled::{SettleOutcome, Settled};

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connection::Connection;
use crate::model::{
    ClaimNo, Moment, OnDone, Priority, Result, RowId, Settlement, TopicId, WorkerId,
};
use crate::store::claim::{self, Fence};
use crate::store::moves::{self, Outcome, equal};
use crate::store::row_set::RowSet;
use crate::store::settle::{self, ClaimedRows};
use crate::store::{checkpoint, floor, ledger, unique};

/// Ends the delivery of a row that the caller's transaction has locked, whichever worker has
/// claimed it. The claim's fence is then gone, and its worker notices when it settles. Returns
/// false and changes nothing if another transaction has locked the row's unique key.
pub(crate) async fn end_for(
    conn: &mut impl Connection,
    worker: WorkerId,
    settled: Settled,
) -> Result<bool> {
    let unsettled =
        Batch::new(worker, vec![settled]).run(conn, worker, &[], Care::LockFirst).await?;
    equal("cancel", 0, unsettled.missing.len())?;
    Ok(unsettled.blocked.is_empty())
}

/// The deliveries of a batch that were not settled.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    /// Their rows are no longer the claims' own.
    pub(super) missing: Vec<(ClaimNo, RowId)>,
    /// Their rows are still the claims' own, but another transaction has locked them.
    pub(super) blocked: Vec<(ClaimNo, RowId)>,
}

/// Rows of one claim with the same end.
struct Group {
    claimed: ClaimedRows,
    settlement: Settlement,
    on_done: OnDone,
    ledger_window: Option<Duration>,
    is_unique: bool,
    has_checkpoint: bool,
}

/// How carefully a batch is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// Acks and releases without locking first; a count that is off rolls everything back.
    Quick,
    /// Locks the rows by key and fence first, without waiting, and settles only those found.
    LockFirst,
    /// As `Quick`, and a biz id that the ledger already has fails it.
    Once,
}

/// A batch put in the order of the clustered key, so that two workers never lock crosswise.
pub(super) struct Batch {
    groups: Vec<Group>,
    /// Those that leave a trace.
    traced: Vec<Settled>,
}

impl Batch {
    pub(super) fn new(worker: WorkerId, mut settled: Vec<Settled>) -> Self {
        let traced = settled.iter().filter(|one| one.traced.is_some()).cloned().collect();
        settled.sort_by_key(|one| (one.topic, one.priority, one.claim_no, one.row));
        let mut groups: Vec<(Settled, Vec<RowId>)> = Vec::new();
        for one in settled {
            match groups.last_mut() {
                Some((first, rows)) if same_end(first, &one) => rows.push(one.row),
                _ => groups.push((one.clone(), vec![one.row])),
            }
        }
        let group = |(first, rows): (Settled, Vec<RowId>)| Group {
            claimed: ClaimedRows {
                fence: Fence { worker, claim_no: first.claim_no },
                topic: first.topic,
                priority: first.priority,
                rows: RowSet::new(rows),
            },
            settlement: first.settlement,
            on_done: first.on_done,
            ledger_window: first.ledger_window,
            is_unique: first.is_unique,
            has_checkpoint: first.has_checkpoint,
        };
        Self { groups: groups.into_iter().map(group).collect(), traced }
    }

    /// Deletes the checkpoints of all of them.
    pub(super) async fn forget_checkpoints(&self, conn: &mut impl Connection) -> Result<()> {
        for group in &self.groups {
            checkpoint::forget(conn, &group.claimed).await?;
        }
        Ok(())
    }

    /// Reads which rows are still the claims' own, without locking.
    pub(super) async fn read_own(
        &self,
        conn: &mut impl Connection,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let mut own = Vec::new();
        for group in &self.groups {
            let claim_no = group.claimed.fence.claim_no;
            let rows = settle::read_own(conn, &group.claimed).await?;
            own.extend(rows.iter().map(|row| (claim_no, row)));
        }
        Ok(own)
    }

    /// Locks the rows that are still the claims' own, waiting for other transactions' locks.
    pub(super) async fn wait_for_own(
        &self,
        conn: &mut impl Connection,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let mut own = Vec::new();
        for group in &self.groups {
            let claim_no = group.claimed.fence.claim_no;
            let rows = settle::wait_for_own(conn, &group.claimed).await?;
            own.extend(rows.iter().map(|row| (claim_no, row)));
        }
        Ok(own)
    }

    /// Settles the batch in the caller's transaction and forgets the claims it empties.
    pub(super) async fn run(
        &self,
        conn: &mut impl Connection,
        worker: WorkerId,
        emptied: &[ClaimNo],
        care: Care,
    ) -> Result<Unsettled> {
        tracing::trace!(step = "run");
        let mut unsettled = Unsettled::default();
        let mut floors: BTreeMap<(TopicId, Priority), RowId> = BTreeMap::new();
        for group in &self.groups {
            let own = group.settle(conn, care).await?;
            if own.len() < group.claimed.rows.len() {
                group.explain(conn, &own, &mut unsettled).await?;
            }
            if let (Settlement::Release, Some(lowest)) = (&group.settlement, own.first()) {
                let floor = floors.entry((group.claimed.topic, group.claimed.priority));
                floor.and_modify(|row| *row = (*row).min(*lowest)).or_insert(*lowest);
            }
        }
        let is_blocked = |claim: &ClaimNo| unsettled.blocked.iter().any(|(no, _)| no == claim);
        let emptied: Vec<_> = emptied.iter().copied().filter(|claim| !is_blocked(claim)).collect();
        if !emptied.is_empty() {
            claim::forget(conn, worker, &emptied).await?;
        }
        for ((topic, priority), row) in floors {
            if !priority.is_suspect() {
                floor::publish(conn, topic, priority, row).await?;
            }
        }
        self.trace(conn, worker, &unsettled).await?;
        Ok(unsettled)
    }
}

fn same_end(a: &Settled, b: &Settled) -> bool {
    (a.topic, a.priority, a.claim_no) == (b.topic, b.priority, b.claim_no)
        && a.settlement == b.settlement
        && a.on_done == b.on_done
        && a.ledger_window == b.ledger_window
        && a.is_unique == b.is_unique
        && a.has_checkpoint == b.has_checkpoint
}

impl Group {
    /// Settles the group. Returns the rows that were still the claim's own.
    async fn settle(&self, conn: &mut impl Connection, care: Care) -> Result<BTreeSet<RowId>> {
        let acks = matches!(self.settlement, Settlement::Ack | Settlement::Repeated);
        let deletes = acks && self.on_done == OnDone::Delete;
        let simple = deletes || self.settlement == Settlement::Release;
        let with_keys = self.is_unique && self.settlement.is_final();
        // A sender's transaction may hold a key's lock for as long as it is open. Only a handler's
        // own transaction waits for one.
        let care = if with_keys && care == Care::Quick { Care::LockFirst } else { care };
        if simple && care != Care::LockFirst {
            self.remember(conn, &self.claimed, care).await?;
            if with_keys {
                unique::release(conn, &self.claimed).await?;
            }
            let n = self.settle_simply(conn, &self.claimed).await?;
            equal("settle", self.claimed.rows.len(), n)?;
            return Ok(self.claimed.rows.iter().collect());
        }
        let (own, keyed) = match care {
            Care::LockFirst if with_keys => self.lock_with_keys(conn).await?,
            Care::LockFirst => (settle::lock_own(conn, &self.claimed).await?, RowSet::new([])),
            Care::Quick | Care::Once => {
                let own = settle::wait_for_own(conn, &self.claimed).await?;
                let keyed = if with_keys { own.clone() } else { RowSet::new([]) };
                (own, keyed)
            }
        };
        let claimed = self.claimed.with_rows(own);
        if !claimed.rows.is_empty() {
            self.remember(conn, &claimed, care).await?;
            if !keyed.is_empty() {
                unique::release(conn, &claimed.with_rows(keyed)).await?;
            }
            if simple {
                let n = self.settle_simply(conn, &claimed).await?;
                equal("settle", claimed.rows.len(), n)?;
            } else {
                self.settle_by_move(conn, &claimed).await?;
            }
        }
        Ok(claimed.rows.iter().collect())
    }

    /// Enters the biz ids of rows that are about to be acked into the ledger, and deletes the
    /// checkpoints of those that are done.
    async fn remember(
        &self,
        conn: &mut impl Connection,
        claimed: &ClaimedRows,
        care: Care,
    ) -> Result<()> {
        // A dead letter keeps its checkpoint for a redrive.
        if self.has_checkpoint
            && self.settlement.is_final()
            && !matches!(self.settlement, Settlement::DeadLetter { .. })
        {
            checkpoint::forget(conn, claimed).await?;
        }
        match self.ledger_window {
            Some(window) if self.settlement == Settlement::Ack => match care {
                Care::Once => ledger::enter_once(conn, claimed, window).await,
                Care::Quick | Care::LockFirst => ledger::enter(conn, claimed, window).await,
            },
            _ => Ok(()),
        }
    }

    /// Locks the rows that are still the claim's own and the keys they hold, without waiting.
    /// Returns these rows, and those of them that hold a key.
    async fn lock_with_keys(&self, conn: &mut impl Connection) -> Result<(RowSet, RowSet)> {
        let keyed = unique::lock(conn, &self.claimed).await?;
        if keyed.len() == self.claimed.rows.len() {
            return Ok((keyed.clone(), keyed));
        }
        // Rows whose key another message has taken over hold none, and nothing blocks them.
        let own: BTreeSet<RowId> = settle::lock_own(conn, &self.claimed).await?.iter().collect();
        let locked: BTreeSet<RowId> = keyed.iter().collect();
        let rest = self.claimed.with_rows(own.difference(&locked).copied().collect());
        if rest.rows.is_empty() {
            return Ok((keyed.clone(), keyed));
        }
        let blocked: BTreeSet<RowId> = unique::holding(conn, &rest).await?.iter().collect();
        Ok((own.difference(&blocked).copied().collect(), keyed))
    }

    /// Distinguishes locked rows from rows that are no longer the claim's own.
    async fn explain(
        &self,
        conn: &mut impl Connection,
        own: &BTreeSet<RowId>,
        unsettled: &mut Unsettled,
    ) -> Result<()> {
        let rest = self.claimed.rows.iter().filter(|row| !own.contains(row));
        let rest = self.claimed.with_rows(rest.collect());
        let still_own: BTreeSet<RowId> = settle::read_own(conn, &rest).await?.iter().collect();
        let claim_no = self.claimed.fence.claim_no;
        for row in rest.rows.iter() {
            let kind = if still_own.contains(&row) {
                &mut unsettled.blocked
            } else {
                &mut unsettled.missing
            };
            kind.push((claim_no, row));
        }
        Ok(())
    }

    async fn settle_simply(
        &self,
        conn: &mut impl Connection,
        claimed: &ClaimedRows,
    ) -> Result<usize> {
        match self.settlement {
            Settlement::Release => settle::release(conn, claimed).await,
            _ => settle::ack(conn, claimed).await,
        }
    }

    async fn settle_by_move(
        &self,
        conn: &mut impl Connection,
        claimed: &ClaimedRows,
    ) -> Result<()> {
        match &self.settlement {
            Settlement::Retry { delay, error } => {
                moves::to_scheduled(conn, claimed, Moment::After(*delay), Some(error)).await
            }
            Settlement::RetryAt { at, error } => {
                moves::to_scheduled(conn, claimed, Moment::At(*at), Some(error)).await
            }
            Settlement::Snooze { delay } => {
                moves::to_scheduled(conn, claimed, Moment::After(*delay), None).await
            }
            Settlement::DeadLetter { cause, error } => {
                moves::to_dead(conn, claimed, *cause, error).await
            }
            Settlement::Discard { reason } => {
                moves::to_archive(conn, claimed, Outcome::Discarded(reason), self.on_done).await
            }
            Settlement::Repeated => {
                moves::to_archive(conn, claimed, Outcome::Repeated, self.on_done).await
            }
            Settlement::Ack | Settlement::Release => {
                moves::to_archive(conn, claimed, Outcome::Done, self.on_done).await
            }
        }
    }
}
