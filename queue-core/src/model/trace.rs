//! What happened to a message: the events of its trace.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::model::{ConnId, Delivery, DeliveryNo, MsgId, Position, Settlement, TopicId, WorkerId};

/// What happened to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// It was stored.
    Enqueued,
    /// A worker took it.
    Claimed,
    /// Its delivery came to an end.
    Settled,
    /// It was taken from a worker that had no use of it any more.
    Rescued,
    /// While it waited, another enqueue with its unique key gave it a new body.
    Replaced,
    /// It was taken back before its time.
    Cancelled,
}

impl Event {
    /// Every one of them.
    pub const ALL: [Self; 6] = [
        Self::Enqueued,
        Self::Claimed,
        Self::Settled,
        Self::Rescued,
        Self::Replaced,
        Self::Cancelled,
    ];

    /// The word in the database, and for people.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Enqueued => "enqueued",
            Self::Claimed => "claimed",
            Self::Settled => "settled",
            Self::Rescued => "rescued",
            Self::Replaced => "replaced",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A delivery that leaves a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traced {
    /// The message.
    pub msg_id: MsgId,
    /// Which delivery of it.
    pub delivery_no: DeliveryNo,
}

impl Traced {
    /// The delivery, if it leaves a trace.
    #[must_use]
    pub fn of(delivery: &Delivery) -> Option<Self> {
        let Delivery { msg_id, delivery_no, .. } = *delivery;
        delivery.traced.then_some(Self { msg_id, delivery_no })
    }
}

/// An event of a delivery, to be written by the transaction that makes it happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'s> {
    /// The topic, or the group.
    pub topic: TopicId,
    /// The delivery.
    pub traced: Traced,
    /// What happens to it.
    pub event: Event,
    /// The worker that has it, or had it.
    pub worker: WorkerId,
    /// What that calls itself, if that is known here.
    pub client: Option<&'s str>,
    /// Where the message lies in its stream, if it was read there.
    pub position: Option<Position>,
    /// What came of it.
    pub outcome: Option<&'static str>,
    /// Why.
    pub error: Option<&'s str>,
}

impl<'s> Step<'s> {
    /// A delivery was claimed, unless it leaves no trace.
    #[must_use]
    pub fn claimed(delivery: &Delivery, worker: WorkerId, client: &'s str) -> Option<Self> {
        Some(Self {
            topic: delivery.topic_id,
            traced: Traced::of(delivery)?,
            event: Event::Claimed,
            worker,
            client: Some(client),
            position: delivery.position,
            outcome: None,
            error: None,
        })
    }

    /// A delivery came to an end.
    #[must_use]
    pub fn settled(
        topic: TopicId,
        traced: Traced,
        worker: WorkerId,
        position: Option<Position>,
        settlement: &'s Settlement,
    ) -> Self {
        Self {
            topic,
            traced,
            event: Event::Settled,
            worker,
            client: None,
            position,
            outcome: Some(settlement.verb()),
            error: settlement.reason(),
        }
    }

    /// A delivery was taken from its worker; the message is `outcome` now.
    #[must_use]
    pub fn rescued(
        topic: TopicId,
        traced: Traced,
        worker: WorkerId,
        outcome: &'static str,
        error: Option<&'s str>,
    ) -> Self {
        Self {
            topic,
            traced,
            event: Event::Rescued,
            worker,
            client: None,
            position: None,
            outcome: Some(outcome),
            error,
        }
    }
}

/// An event as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Record {
    /// The topic, or the group; empty if it was deleted.
    pub topic: String,
    /// Its number.
    #[serde(skip)]
    pub topic_id: TopicId,
    /// What happened.
    pub event: Event,
    /// When, by the server's clock.
    pub at: DateTime<Utc>,
    /// Which delivery; 0 before the first.
    pub delivery_no: DeliveryNo,
    /// The worker that had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// The connection that wrote it.
    pub conn: ConnId,
    /// Who enqueued it (account, host, process, thread), or claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Where the message lies in its stream.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// What came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
