//! What the database is told of a range, in one transaction.

use super::HeldRange;
use crate::connection::Connection;
use crate::error::Result;
use crate::message::{Moment, Settlement};
use crate::store::moves::{Outcome, equal};
use crate::store::stream::filing::{self, Filed};
use crate::store::stream::{cursor, passed, range};
use crate::stream::Offset;
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

/// Whether the mark alone tells it.
pub(super) fn is_bare(settled: &Settled) -> bool {
    let acked = matches!(settled.settlement, Settlement::Ack | Settlement::Repeated);
    acked && settled.ledger_window.is_none()
}

impl Report {
    fn settled(&self) -> &[(Offset, Settled)] {
        match self {
            Self::Pass { settled, .. }
            | Self::HoldBack { settled, .. }
            | Self::Close { settled, .. } => settled,
        }
    }

    /// Whether it goes on from where the range is now.
    pub(in crate::worker) fn fits(&self, held: &HeldRange) -> bool {
        held.report(true).as_ref() == Some(self)
    }

    /// Tells it in the caller's transaction; false, and nothing is changed, if the range is not the
    /// worker's own any more, or not where the worker left it.
    pub(in crate::worker) async fn tell(
        &self,
        conn: &mut impl Connection,
        held: &HeldRange,
    ) -> Result<bool> {
        let (range, no) = (&held.range, held.range.partition);
        if let Self::Close { released, .. } = self
            && !released.is_empty()
        {
            // Ranges are made under the lock of their cursor only, and it is locked first.
            cursor::lock(conn, range.group, no).await?;
        }
        if !self.settled().is_empty() {
            // What is filed must be filed once, so the fence comes first.
            match range::lock(conn, range).await? {
                Some(found) if found.mark == range.mark => file(conn, held, self.settled()).await?,
                _ => return Ok(false),
            }
        }
        let pass = (range.mark, self.mark(held));
        let told = self.take_on(conn, held, pass).await?;
        if told && held.has_passed {
            passed::forget(conn, range.id, pass.1).await?;
        }
        Ok(told)
    }

    async fn take_on(
        &self,
        conn: &mut impl Connection,
        held: &HeldRange,
        pass: (Offset, Offset),
    ) -> Result<bool> {
        let (range, no) = (&held.range, held.range.partition);
        match self {
            Self::Pass { .. } => Ok(range::pass(conn, range.id, range.fence, pass).await? == 1),
            Self::HoldBack { head, .. } => {
                let moved =
                    pass.0 == pass.1 || range::pass(conn, range.id, range.fence, pass).await? == 1;
                Ok(moved && hold_back(conn, held, head).await?)
            }
            Self::Close { released, .. } => {
                if range::end(conn, range.id, range.fence).await? == 0 {
                    return Ok(false);
                }
                for stretch in released {
                    let (deliveries, suspicions) = (range.delivery_no, range.suspicions);
                    range::insert_free(conn, range.group, no, *stretch, deliveries, suspicions)
                        .await?;
                }
                Ok(true)
            }
        }
    }

    fn mark(&self, held: &HeldRange) -> Offset {
        match self {
            Self::Pass { mark, .. } | Self::HoldBack { mark, .. } => *mark,
            Self::Close { .. } => held.range.hi,
        }
    }
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

/// Files what the mark alone does not tell, those of one end together.
async fn file(
    conn: &mut impl Connection,
    held: &HeldRange,
    settled: &[(Offset, Settled)],
) -> Result<()> {
    let mut groups: Vec<(&Settled, Filed)> = Vec::new();
    for (offset, one) in settled {
        // Only the message at the mark may have been through something, which the row tells.
        let is_at_mark = *offset == held.range.mark;
        let same = groups.iter_mut().find(|(other, filed)| {
            !is_at_mark && filed.at_mark_of.is_none() && is_same_end(other, one)
        });
        match same {
            Some((_, filed)) => filed.offsets.push(*offset),
            None => groups.push((one, filed(held, *offset, is_at_mark))),
        }
    }
    for (one, filed) in groups {
        file_alike(conn, one, &filed).await?;
    }
    Ok(())
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
        at_mark_of: is_at_mark.then_some(held.range.id),
    }
}

async fn file_alike(conn: &mut impl Connection, one: &Settled, filed: &Filed) -> Result<()> {
    let done = match &one.settlement {
        Settlement::Ack => match one.ledger_window {
            // A biz id that is there already counts twice (MySQL's way to say that it was changed).
            Some(window) => return filing::to_ledger(conn, filed, window).await.map(|_| ()),
            None => return Ok(()),
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
        Settlement::Repeated | Settlement::Release => return Ok(()),
    };
    equal("settle: file", filed.offsets.len(), done)
}
