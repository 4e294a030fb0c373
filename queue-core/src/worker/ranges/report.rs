//! Reporting a range to the database, in one transaction.

use super::{End, HeldRange};
use crate::connection::Connection;
use crate::model::trace::{Step, Traced};
use crate::model::{Moment, Offset, Position, Result, Settlement};
use crate::store::moves::{Outcome, equal};
use crate::store::stream::filing::{self, Filed, Past};
use crate::store::stream::range::Range;
use crate::store::stream::{cursor, passed, range};
use crate::store::trace;
use crate::worker::settling::Settled;

/// A report to the database on a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::worker) enum Report {
    /// Everything up to `mark` is settled: `settled` as listed, the others acked.
    Pass { mark: Offset, settled: Vec<(Offset, Settled)> },
    /// As `Pass`, and the message at `mark` holds back the rest of its partition.
    HoldBack { mark: Offset, settled: Vec<(Offset, Settled)>, head: Box<Settled> },
    /// Everything is settled, except for the `released` stretches, which are to be claimed again.
    Close { settled: Vec<(Offset, Settled)>, released: Vec<(Offset, Offset)> },
}

/// Whether the mark alone records it, because another message with its biz id has been handled.
pub(super) fn is_repeated(settled: &Settled) -> bool {
    settled.settlement == Settlement::Repeated && settled.ledger_window.is_none()
}

/// The outcome of a report.
#[derive(Debug)]
pub(in crate::worker) enum Reported {
    /// The range is no longer the worker's, or not as the worker left it.
    Fenced,
    /// The database has the report.
    Written(Written),
}

/// What the worker records once the database has the report.
#[derive(Debug)]
pub(in crate::worker) struct Written {
    /// The range, if the worker still has it.
    pub(in crate::worker) held: Option<HeldRange>,
    /// Messages to be filed that retention had removed.
    pub(in crate::worker) lost: u64,
    /// Messages that are handled again: the server has lost their acks by handlers' transactions.
    pub(in crate::worker) again: u64,
}

impl Report {
    fn settled(&self) -> &[(Offset, Settled)] {
        match self {
            Self::Pass { settled, .. }
            | Self::HoldBack { settled, .. }
            | Self::Close { settled, .. } => settled,
        }
    }

    fn released(&self) -> &[(Offset, Offset)] {
        match self {
            Self::Close { released, .. } => released,
            Self::Pass { .. } | Self::HoldBack { .. } => &[],
        }
    }

    /// Whether the report continues from where the range is now.
    pub(in crate::worker) fn fits(&self, held: &HeldRange) -> bool {
        held.report(true).as_ref() == Some(self)
    }

    /// Whether it does more than record acks of this report alone.
    fn is_delicate(&self) -> bool {
        let held_back = matches!(self, Self::HoldBack { .. });
        held_back || !self.settled().is_empty() || !self.released().is_empty()
    }

    /// Whether [`write`](Self::write) is a single statement, which needs no transaction around it:
    /// it ends a range, or advances its mark.
    pub(in crate::worker) fn is_one_statement(&self, held: &HeldRange) -> bool {
        !held.has_passed && !self.is_delicate() && held.traced.is_empty()
    }

    /// Sends the report in the caller's transaction.
    ///
    /// A handler's transaction may have acked a message that this report files or releases: its
    /// commit had no answer, or the worker did not wait for one. That transaction holds the range's
    /// row until it ends. Once this one has locked the row, the acks are certain, and it builds the
    /// report again from them.
    pub(in crate::worker) async fn write(
        &self,
        conn: &mut impl Connection,
        held: &HeldRange,
    ) -> Result<Reported> {
        let (group, no) = (held.range.group, held.range.partition);
        if !self.released().is_empty() {
            // Ranges are made only under the lock of their cursor, so it is locked first.
            cursor::lock(conn, group, no).await?;
        }
        if !held.has_passed && !self.is_delicate() {
            return self.say(conn, held.clone(), 0).await;
        }
        // A message must be filed only once, so the fence comes first.
        match range::lock(conn, &held.range).await? {
            Some(found) if found.mark == held.range.mark => {}
            _ => return Ok(Reported::Fenced),
        }
        let mut held = held.clone();
        let again = held.learn(&passed::of_range(conn, held.range.id).await?);
        let Some(report) = held.report(true) else {
            return Ok(Reported::Written(Written { held: Some(held), lost: 0, again }));
        };
        if self.released().is_empty() && !report.released().is_empty() {
            cursor::lock(conn, group, no).await?;
        }
        report.say(conn, held, again).await
    }

    async fn say(
        &self,
        conn: &mut impl Connection,
        mut held: HeldRange,
        again: u64,
    ) -> Result<Reported> {
        let lost = file(conn, &held, self.settled()).await?;
        if lost > 0 {
            cursor::count_lost(conn, held.range.group, held.range.partition, lost).await?;
        }
        let mark = self.mark(&held);
        if !self.take_on(conn, &held, (held.range.mark, mark)).await? {
            return Ok(Reported::Fenced);
        }
        passed::delete(conn, held.range.id, &held.passed_before(mark)).await?;
        trace::record(conn, &self.steps(&held, mark)).await?;
        let held = match self {
            Self::Pass { .. } => {
                held.mark_reported(mark);
                Some(held)
            }
            Self::HoldBack { .. } | Self::Close { .. } => None,
        };
        Ok(Reported::Written(Written { held, lost, again }))
    }

    async fn take_on(
        &self,
        conn: &mut impl Connection,
        held: &HeldRange,
        pass: (Offset, Offset),
    ) -> Result<bool> {
        let range = &held.range;
        match self {
            Self::Pass { .. } => Ok(range::pass(conn, range.id, range.fence, pass).await? == 1),
            Self::HoldBack { head, .. } => {
                let moved =
                    pass.0 == pass.1 || range::pass(conn, range.id, range.fence, pass).await? == 1;
                Ok(moved && hold_back(conn, held, head).await?)
            }
            Self::Close { released, .. } => close(conn, range, released).await,
        }
    }

    /// The trace steps of the messages up to `mark`. A message that a handler's transaction acked
    /// already has its step from there.
    fn steps<'h>(&self, held: &'h HeldRange, mark: Offset) -> Vec<Step<'h>> {
        let is_traced = |offset: u64| {
            offset < mark.0 || (offset == mark.0 && matches!(self, Self::HoldBack { .. }))
        };
        let step = |(&offset, &traced): (&u64, &Traced)| {
            let settlement = match held.ends.get(&offset)? {
                End::Acked => &Settlement::Ack,
                End::Settled(one) => &one.settlement,
                End::Released => &Settlement::Release,
                End::Pruned | End::Filtered | End::Passed => return None,
            };
            let (group, worker) = (held.group.id, held.range.fence.worker);
            let at = Position { partition: held.range.partition, offset: Offset(offset) };
            Some(Step::settled(group, traced, worker, Some(at), settlement))
        };
        held.traced.iter().filter(|(offset, _)| is_traced(**offset)).filter_map(step).collect()
    }

    fn mark(&self, held: &HeldRange) -> Offset {
        match self {
            Self::Pass { mark, .. } | Self::HoldBack { mark, .. } => *mark,
            Self::Close { .. } => held.range.hi,
        }
    }
}

/// Ends the range, except for the stretches that are to be claimed again. The stretch that begins
/// at the mark keeps the row, because the row holds the history of the message there.
async fn close(
    conn: &mut impl Connection,
    range: &Range,
    released: &[(Offset, Offset)],
) -> Result<bool> {
    let (closed, rest) = match released {
        [(lo, hi), rest @ ..] if *lo == range.mark => {
            (range::release(conn, range.id, range.fence, *hi).await?, rest)
        }
        _ => (range::end(conn, range.id, range.fence).await?, released),
    };
    if closed == 0 {
        return Ok(false);
    }
    for stretch in rest {
        let (deliveries, suspicions) = (range.delivery_no, range.suspicions);
        let (group, no) = (range.group, range.partition);
        range::insert_free(conn, group, no, *stretch, deliveries, suspicions).await?;
    }
    Ok(true)
}

/// Holds the range back as the settlement of its first message demands.
async fn hold_back(conn: &mut impl Connection, held: &HeldRange, head: &Settled) -> Result<bool> {
    let (until, failure) = match &head.settlement {
        Settlement::Retry { delay, error } => (Moment::After(*delay), Some(error.as_str())),
        Settlement::RetryAt { at, error } => (Moment::At(*at), Some(error.as_str())),
        Settlement::Snooze { delay } => (Moment::After(*delay), None),
        _ => (Moment::After(std::time::Duration::ZERO), None),
    };
    let range = &held.range;
    Ok(range::hold_back(conn, range.id, range.fence, until, failure).await? == 1)
}

/// Files the messages that the mark alone does not record, grouped by end. Returns how many of them
/// retention had removed.
async fn file(
    conn: &mut impl Connection,
    held: &HeldRange,
    settled: &[(Offset, Settled)],
) -> Result<u64> {
    let mut groups: Vec<(&Settled, Filed)> = Vec::new();
    for (offset, one) in settled {
        // Only the message at the mark may have a history; the row holds it.
        let is_at_mark = *offset == held.range.mark;
        let same = groups.iter_mut().find(|(other, filed)| {
            !is_at_mark && filed.past == Past::Nothing && is_same_end(other, one)
        });
        match same {
            Some((_, filed)) => filed.offsets.push(*offset),
            None => groups.push((one, filed(held, *offset, is_at_mark))),
        }
    }
    let mut lost = 0;
    for (one, filed) in groups {
        lost += file_alike(conn, one, &filed).await?;
    }
    Ok(lost)
}

fn is_same_end(a: &Settled, b: &Settled) -> bool {
    a.settlement == b.settlement && a.on_done == b.on_done && a.ledger_window == b.ledger_window
}

fn filed(held: &HeldRange, offset: Offset, is_at_mark: bool) -> Filed {
    Filed {
        stream: held.group.stream,
        partition: held.range.partition,
        offsets: vec![offset],
        group: held.group.id,
        worker: held.range.fence.worker,
        delivery_no: held.range.delivery_no,
        past: if is_at_mark { Past::AtMarkOf(held.range.id) } else { Past::Nothing },
    }
}

async fn file_alike(conn: &mut impl Connection, one: &Settled, filed: &Filed) -> Result<u64> {
    let done = match &one.settlement {
        Settlement::Ack => match one.ledger_window {
            // MySQL counts a biz id that is already there as two (row changed).
            Some(window) => return filing::to_ledger(conn, filed, window).await.map(|_| 0),
            None => return Ok(0),
        },
        Settlement::Retry { delay, error } => {
            filing::to_scheduled(conn, filed, Moment::After(*delay), Some(error)).await?
        }
        Settlement::RetryAt { at, error } => {
            filing::to_scheduled(conn, filed, Moment::At(*at), Some(error)).await?
        }
        Settlement::Snooze { delay } => {
            filing::to_scheduled(conn, filed, Moment::After(*delay), None).await?
        }
        Settlement::DeadLetter { cause, error } => {
            filing::to_dead(conn, filed, *cause, error).await?
        }
        Settlement::Discard { reason } => {
            let outcome = Outcome::Discarded(reason);
            filing::to_archive(conn, filed, outcome, one.on_done).await?
        }
        Settlement::Repeated | Settlement::Release => return Ok(0),
    };
    let lost = filed.offsets.len().saturating_sub(done);
    equal("settle: file", filed.offsets.len(), done + lost)?;
    Ok(lost as u64)
}
