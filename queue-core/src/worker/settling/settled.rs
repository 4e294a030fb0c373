//! A delivery that comes to an end, and what that came to.

use std::time::Duration;

use crate::checkpoint::Checkpoints;
use crate::model::trace::Traced;
use crate::model::{
    ClaimNo, Delivery, OnDone, Position, Priority, RowId, Settlement, TopicId, TopicSettings,
};

/// A delivery and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The topic of the delivery.
    pub topic: TopicId,
    /// The row's priority.
    pub priority: Priority,
    /// The row.
    pub row: RowId,
    /// The claim that holds it.
    pub claim_no: ClaimNo,
    /// What becomes of it.
    pub settlement: Settlement,
    /// What the topic does with handled messages.
    pub on_done: OnDone,
    /// For how long its biz id is remembered once it is acked; `None` if it has none, or the topic
    /// keeps no ledger.
    pub ledger_window: Option<Duration>,
    /// Whether it was enqueued to hold a unique key until it is done.
    pub is_unique: bool,
    /// Whether it may have a checkpoint.
    pub has_checkpoint: bool,
    /// Where it lies in its stream, if it is of one.
    pub position: Option<Position>,
    /// What its trace says of it, if it leaves one.
    pub traced: Option<Traced>,
}

impl Settled {
    /// Settles `delivery`, a message of a topic with these settings.
    #[must_use]
    pub fn in_topic(delivery: &Delivery, settlement: Settlement, topic: &TopicSettings) -> Self {
        let ledger_window = topic.ledger_window.filter(|_| delivery.biz_id.is_some());
        Self { ledger_window, ..Self::new(delivery, settlement, topic.on_done) }
    }

    /// The same, with the checkpoints that its run had.
    #[must_use]
    pub fn after_run(self, checkpoints: &Checkpoints) -> Self {
        Self { has_checkpoint: checkpoints.are_used(), ..self }
    }

    /// Gives `delivery` back untouched.
    #[must_use]
    pub fn release(delivery: &Delivery) -> Self {
        Self::new(delivery, Settlement::Release, OnDone::Delete)
    }

    /// Settles `delivery` without a ledger.
    #[must_use]
    pub fn new(delivery: &Delivery, settlement: Settlement, on_done: OnDone) -> Self {
        Self {
            topic: delivery.topic_id,
            priority: delivery.priority,
            row: delivery.row,
            claim_no: delivery.claim_no,
            settlement,
            on_done,
            ledger_window: None,
            is_unique: delivery.unique_key.is_some(),
            has_checkpoint: false,
            position: delivery.position,
            traced: Traced::of(delivery),
        }
    }
}

/// What settling a delivery came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It is done.
    Settled,
    /// The claim had been taken back: nothing was changed.
    Fenced,
    /// A commit had no answer, and on looking again the row was not this claim's any more: most
    /// likely that commit happened (history H12).
    Unknown,
    /// The handler is through, but the row is locked by a stranger or the server refuses; the
    /// worker goes on trying beside its other work.
    Deferred,
}
