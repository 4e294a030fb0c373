//! Acks in a run's own transaction: of a queue's rows, and of a stream's offsets.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempt::OPERATION;
use crate::checkpoint::Checkpoints;
use crate::connection::Connection;
use crate::handler::Context;
use crate::model::{
    ClaimNo, Error, Offset, Position, Result, RowId, Settlement, TopicSettings, WorkerId,
};
use crate::store::moves::equal;
use crate::store::stream::filing::{self, Filed, Past};
use crate::store::stream::passed;
use crate::store::stream::range::{self, Lock, Range};
use crate::store::{topic, trace};
use crate::worker::settling::{Batch, Care, Settled};

/// What a run acks.
pub(super) struct Acks {
    worker: WorkerId,
    /// Rows of the hot table: a queue's messages, and a group's retries.
    rows: Batch,
    n_rows: usize,
    /// Messages of streams.
    offsets: Vec<Settled>,
    /// The run's checkpoints; it may have saved some since.
    checkpoints: Checkpoints,
}

impl Acks {
    pub(super) fn of(worker: WorkerId, contexts: &[Context], topic: &TopicSettings) -> Self {
        let ack = |context: &Context| Settled::in_topic(&context.delivery, Settlement::Ack, topic);
        let (offsets, rows): (Vec<_>, Vec<_>) =
            contexts.iter().map(ack).partition(|ack| ack.position.is_some());
        let n_rows = rows.len();
        let checkpoints = contexts.first().map(|context| context.checkpoints.clone());
        let checkpoints = checkpoints.unwrap_or_default();
        Self { worker, rows: Batch::new(worker, rows), n_rows, offsets, checkpoints }
    }

    /// Reads which of them are still the worker's own, without locking.
    pub(super) async fn read_own(
        &self,
        conn: &mut impl Connection,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let mut own = self.rows.read_own(conn).await?;
        own.extend(self.own_offsets(conn, Lock::None).await?);
        Ok(own)
    }

    /// The same, waiting for transactions that may still ack one.
    pub(super) async fn wait_for_own(
        &self,
        conn: &mut impl Connection,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let mut own = self.rows.wait_for_own(conn).await?;
        own.extend(self.own_offsets(conn, Lock::Alone).await?);
        Ok(own)
    }

    /// Acks them in the caller's transaction.
    ///
    /// # Errors
    /// [`Error::Counts`] if any is no longer the worker's own; a duplicate failure if a biz id, or
    /// an ack of the same message, is there already; a database failure.
    pub(super) async fn settle(&self, conn: &mut impl Connection) -> Result<()> {
        if self.checkpoints.are_used() {
            self.rows.forget_checkpoints(conn).await?;
        }
        let unsettled = self.rows.run(conn, self.worker, &[], Care::Once).await?;
        let missing = unsettled.missing.len() + unsettled.blocked.len();
        equal(OPERATION, self.n_rows, self.n_rows - missing)?;
        let ranges = range::of_claims(conn, self.worker, &self.claims(), Lock::Shared).await?;
        for ack in &self.offsets {
            let Some((range, at)) = found(&ranges, ack) else {
                return Err(Error::Counts {
                    operation: OPERATION,
                    expected: self.offsets.len(),
                    found: 0,
                });
            };
            passed::insert(conn, range.id, at.offset).await?;
            if let Some(window) = ack.ledger_window {
                enter(conn, range, at.offset, window).await?;
            }
        }
        let steps: Vec<_> = self.offsets.iter().filter_map(|ack| ack.step(self.worker)).collect();
        trace::record(conn, &steps).await
    }

    fn claims(&self) -> Vec<ClaimNo> {
        let claims: BTreeSet<_> = self.offsets.iter().map(|ack| ack.claim_no).collect();
        claims.into_iter().collect()
    }

    async fn own_offsets(
        &self,
        conn: &mut impl Connection,
        lock: Lock,
    ) -> Result<Vec<(ClaimNo, RowId)>> {
        let ranges = range::of_claims(conn, self.worker, &self.claims(), lock).await?;
        let mut acked = BTreeSet::new();
        for range in &ranges {
            let of_range = passed::of_range(conn, range.id).await?;
            acked.extend(of_range.into_iter().map(|offset| (range.id, offset)));
        }
        let is_own = |ack: &&Settled| {
            found(&ranges, ack).is_some_and(|(range, at)| !acked.contains(&(range.id, at.offset)))
        };
        Ok(self.offsets.iter().filter(is_own).map(|ack| (ack.claim_no, ack.row)).collect())
    }
}

/// Finds the range that has the message, unless its mark is beyond the message.
fn found<'r>(ranges: &'r [Range], ack: &Settled) -> Option<(&'r Range, Position)> {
    let at = ack.position?;
    let range = ranges.iter().find(|range| range.fence.claim_no == ack.claim_no)?;
    (range.mark <= at.offset && at.offset < range.hi).then_some((range, at))
}

/// Enters the message's biz id into the group's ledger, where it must be new.
async fn enter(
    conn: &mut impl Connection,
    range: &Range,
    offset: Offset,
    window: Duration,
) -> Result<()> {
    let group = topic::by_id(conn, range.group).await?.and_then(|topic| topic.group());
    let Some(group) = group else { return Ok(()) };
    let filed = Filed {
        stream: group.stream,
        partition: range.partition,
        offsets: vec![offset],
        group: group.id,
        worker: range.fence.worker,
        delivery_no: range.delivery_no,
        past: Past::Nothing,
    };
    let entered = filing::to_ledger_once(conn, &filed, window).await?;
    equal(OPERATION, 1, entered)
}
