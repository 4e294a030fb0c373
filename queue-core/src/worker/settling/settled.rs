//! A delivery that ends, and the outcome of settling it.

use std::time::Duration;

use crate::checkpoint::Checkpoints;
use crate::model::trace::Traced;
use crate::model::{
    ClaimNo, Delivery, OnDone, Position, Priority, RowId, Settlement, TopicId, TopicSettings,
};

/// A delivery and its settlement.
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
    /// How it is settled.
    pub settlement: Settlement,
    /// What the topic does with handled messages.
    pub on_done: OnDone,
    /// How long its biz id is remembered once it is acked; `None` if it has none, or the topic
    /// keeps no ledger.
    pub ledger_window: Option<Duration>,
    /// Whether it was enqueued to hold a unique key until it is done.
    pub is_unique: bool,
    /// Whether it may have a checkpoint.
    pub has_checkpoint: bool,
    /// Its position in its stream, if it is from one.
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

    /// The same, with the checkpoints of its run.
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

/// The outcome of settling a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    /// It is done.
    Settled,
    /// The claim had been taken back: nothing was changed.
    Fenced,
    /// A commit had no answer, and the row was then no longer this claim's: most likely that commit
    /// happened (history H12).
    Unknown,
    /// The handler has finished, but another transaction has locked the row or the server refuses.
    /// The worker keeps trying beside its other work.
    Deferred,
}
