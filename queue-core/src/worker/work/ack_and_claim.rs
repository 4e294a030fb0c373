//! Acks and the next claim in one transaction: two round trips and a commit fewer than one after
//! the other.

use std::collections::{HashMap, VecDeque};

use super::claiming::{PlainClaim, Plan};
use super::settle::{Part, key};
use super::shares::Bound;
use super::{Command, Work};
use crate::connection::Link;
use crate::model::{Error, Result, Settlement, TopicId};
use crate::worker::ClaimStrategy;
use crate::worker::cursor::Claimed;
use crate::worker::settling::{Batch, Care, SettleOutcome, Settled};

/// The most acks that a claim waits for. More rows take longer to delete than the round trips and
/// the commit that this saves: sharing with a thousand, a drain reached 0.94 of its speed on
/// MariaDB and 0.86 on MySQL; with a hundred, 1.03 and 1.05, and 1.22 where a sync of the disk
/// takes 2 ms.
const MOST_ACKS: usize = 200;

impl Work {
    /// Performs the first two commands together if one of them acks queue rows and the other claims
    /// some. Otherwise it leaves them, and returns false.
    pub(super) async fn ack_and_claim_next(&mut self, waiting: &mut VecDeque<Command>) -> bool {
        let (Some(first), Some(second)) = (waiting.front(), waiting.get(1)) else { return false };
        let acks_first = is_acks(first) && is_claim(second);
        let claim_first = is_claim(first) && is_acks(second);
        if !acks_first && !claim_first {
            return false;
        }
        let (first, second) = (waiting.pop_front(), waiting.pop_front());
        let (acks, claim) = if acks_first { (first, second) } else { (second, first) };
        if let Some(Command::Settle { batch, reply: settled, .. }) = acks
            && let Some(Command::Claim { topic, limit, reply }) = claim
        {
            let (outcomes, claimed) = self.ack_and_claim(batch, topic, limit).await;
            drop(settled.send(outcomes));
            drop(reply.send(claimed.map(|claimed| self.hand_over(claimed))));
        }
        true
    }

    /// Acks and claims in one transaction. If that fails, or the topic is not claimed from in this
    /// way, in two: a settlement that the server refuses must not hold up the claim, nor the other
    /// way round.
    async fn ack_and_claim(
        &mut self,
        batch: Vec<Settled>,
        topic: TopicId,
        limit: u32,
    ) -> (Result<Vec<SettleOutcome>>, Result<Claimed>) {
        let mut in_doubt = false;
        match self.plan(topic, limit).await {
            Ok(Plan::Nothing(claimed)) => return (self.settle(batch, false).await, Ok(claimed)),
            // The other strategies wait for locks while they hold those of the acks.
            Ok(Plan::Claim(claim)) if self.can_join_acks(&claim, &batch) => {
                match self.try_ack_and_claim(&batch, &claim).await {
                    Ok((outcomes, claimed)) => return (Ok(outcomes), Ok(claimed)),
                    Err(error) => {
                        tracing::debug!(worker.id = %self.id, %error, "Cannot ack and claim at once.");
                        in_doubt = matches!(error, Error::UnknownOutcome { .. });
                    }
                }
            }
            // The claim below meets the error again, or not.
            Ok(_) | Err(_) => {}
        }
        (self.settle(batch, in_doubt).await, self.claim(topic, limit).await)
    }

    /// Whether the claim can be made in the transaction of the acks. One that needs a larger share
    /// of its topic's limit is made after them.
    fn can_join_acks(&mut self, claim: &PlainClaim, batch: &[Settled]) -> bool {
        let has_room = |bound: Bound| {
            let keys: Vec<_> = batch.iter().map(key).collect();
            let leaving = self.held.count(claim.topic, &keys);
            let cursor = self.cursor(claim.topic);
            bound.room(cursor.share.share, leaving) > 0 && !cursor.suspect_waits
        };
        claim.strategy == ClaimStrategy::SkipLocked && claim.bound.is_none_or(has_room)
    }

    async fn try_ack_and_claim(
        &mut self,
        batch: &[Settled],
        claim: &PlainClaim,
    ) -> Result<(Vec<SettleOutcome>, Claimed)> {
        let (id, settled) = (self.id, batch.to_vec());
        let part = Part { settled, care: Care::Quick, in_doubt: false };
        let keys = part.keys();
        let emptied = self.emptied_by(&keys);
        let acks = Batch::new(id, part.settled.clone());
        let leaving = claim.bound.map_or(0, |_| self.held.count(claim.topic, &keys));
        let session = self.session().await?;
        let ack_and_claim = async |conn: &mut Link| {
            let unsettled = acks.run(conn, id, &emptied, Care::Quick).await?;
            let blocked = u32::try_from(unsettled.blocked.len()).unwrap_or(u32::MAX);
            let leaving = leaving.saturating_sub(blocked);
            Ok((unsettled, claim.run(conn, leaving).await?))
        };
        let done = session.transaction("ack and claim", ack_and_claim).await;
        self.cursor(claim.topic).answered(&done, claim.limit);
        let (unsettled, taken) = done?;
        let mut outcomes = HashMap::with_capacity(keys.len());
        self.conclude(part, &unsettled, &mut outcomes);
        self.forget_doubtful().await;
        let outcomes = keys.iter().filter_map(|key| outcomes.get(key).copied()).collect();
        Ok((outcomes, self.hold(claim, taken)))
    }
}

/// Whether a command acks a few rows of queues, and no commit of theirs is in doubt.
fn is_acks(command: &Command) -> bool {
    let is_ack = |one: &Settled| one.settlement == Settlement::Ack && one.position.is_none();
    let Command::Settle { batch, in_doubt: false, .. } = command else { return false };
    batch.len() <= MOST_ACKS && batch.iter().all(is_ack)
}

/// Whether a command claims rows of a queue for a caller that still waits for them.
fn is_claim(command: &Command) -> bool {
    matches!(command, Command::Claim { reply, .. } if !reply.is_closed())
}
