//! What the database is told of a range, in one transaction.

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

/// What the database is to be told of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::worker) enum Report {
    /// Everything up to `mark` is settled: these as they say, the others acked.
    Pass { mark: Offset, settled: Vec<(Offset, Settled)> },
    /// As `Pass`, and the message at `mark` holds the others of its partition back.
    HoldBack { mark: Offset, settled: Vec<(Offset, Settled)>, head: Box<Settled> },
    /// Everything is settled, but for these stretches, which are to be claimed again.
    Close { settled: Vec<(Offset, Settled)>, released: Vec<(Offset, Offset)> },
}

/// Whether the mark alone tells it, as another message with its biz id has been handled.
pub(super) fn is_repeated(settled: &Settled) -> bool {
    settled.settlement == Settlement::Repeated && settled.ledger_window.is_none()
}

/// What came of telling it.
#[derive(Debug)]
pub(in crate::worker) enum Told {
    /// The range is not the worker's own any more, or not where the worker left it.
    Fenced,
    /// The database knows it.
    Said(Said),
}

/// What the worker knows once the database knows it too.
#[derive(Debug)]
pub(in crate::worker) struct Said {
    /// The range, if the worker still has it.
    pub(in crate::worker) held: Option<HeldRange>,
    /// Messages that were to be filed, which retention had removed.
    pub(in crate::worker) lost: u64,
    /// Messages that are handled again: the server has lost that transactions had acked them.
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

    /// Whether it goes on from where the range is now.
    pub(in crate::worker) fn fits(&self, held: &HeldRange) -> bool {
        held.report(true).as_ref() == Some(self)
    }

    /// Whether it says more than that messages were acked by it alone.
    fn is_delicate(&self) -> bool {
        let held_back = matches!(self, Self::HoldBack { .. });
        held_back || !self.settled().is_empty() || !self.released().is_empty()
    }

    /// Tells it in the caller's transaction.
    ///
    /// A transaction of a handler's may have acked what is to be filed or released here, although
    /// its commit had no answer, or nobody waited for one. It holds the range's row until it has
    /// ended, so once that is locked, what is acked is certain, and the report is made anew of it.
    pub(in crate::worker) async fn tell(
        &self,
        conn: &mut impl Connection,
        held: &HeldRange,
    ) -> Result<Told> {
        let (group, no) = (held.range.group, held.range.partition);
        if !self.released().is_empty() {
            // Ranges are made under the lock of their cursor only, and it is locked first.
            cursor::lock(conn, group, no).await?;
        }
        if !held.has_passed && !self.is_delicate() {
            return self.say(conn, held.clone(), 0).await;
        }
        // What is filed must be filed once, so the fence comes first.
        match range::lock(conn, &held.range).await? {
            Some(found) if found.mark == held.range.mark => {}
            _ => return Ok(Told::Fenced),
        }
        let mut held = held.clone();
        let again = held.learn(&passed::of_range(conn, held.range.id).await?);
        let Some(report) = held.report(true) else {
            return Ok(Told::Said(Said { held: Some(held), lost: 0, again }));
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
    ) -> Result<Told> {
        let lost = file(conn, &held, self.settled()).await?;
        if lost > 0 {
            cursor::count_lost(conn, held.range.group, held.range.partition, lost).await?;
        }
        let mark = self.mark(&held);
        if !self.take_on(conn, &held, (held.range.mark, mark)).await? {
            return Ok(Told::Fenced);
        }
        passed::delete(conn, held.range.id, &held.passed_before(mark)).await?;
        trace::record(conn, &self.steps(&held, mark)).await?;
        let held = match self {
            Self::Pass { .. } => {
                held.said(mark);
                Some(held)
            }
            Self::HoldBack { .. } | Self::Close { .. } => None,
        };
        Ok(Told::Said(Said { held, lost, again }))
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

    /// What the traces of the messages up to `mark` are to say; one that a transaction of its own
    /// has acked has said it there.
    fn steps<'h>(&self, held: &'h HeldRange, mark: Offset) -> Vec<Step<'h>> {
        let is_told = |offset: u64| {
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
        held.traced.iter().filter(|(offset, _)| is_told(**offset)).filter_map(step).collect()
    }

    fn mark(&self, held: &HeldRange) -> Offset {
        match self {
            Self::Pass { mark, .. } | Self::HoldBack { mark, .. } => *mark,
            Self::Close { .. } => held.range.hi,
        }
    }
}

/// Ends the range but for the stretches that are to be claimed again. The row stays with one that
/// begins at the mark: it tells what the message there has been through.
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

/// Holds the range back as its first message's settlement says.
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

/// Files what the mark alone does not tell, those of one end together; how many of them retention
/// had removed.
async fn file(
    conn: &mut impl Connection,
    held: &HeldRange,
    settled: &[(Offset, Settled)],
) -> Result<u64> {
    let mut groups: Vec<(&Settled, Filed)> = Vec::new();
    for (offset, one) in settled {
        // Only the message at the mark may have been through something, which the row tells.
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
            // A biz id that is there already counts twice (MySQL's way to say that it was changed).
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
