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
    /// A worker claimed it.
    Claimed,
    /// Its delivery ended.
    Settled,
    /// It was taken back from a worker that no longer uses it.
    Rescued,
    /// While it waited, another enqueue with its unique key replaced its body.
    Replaced,
    /// It was cancelled before its end.
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
    /// The number of the delivery.
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

/// An event of a delivery, written by the transaction that causes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step<'s> {
    /// The topic, or the group.
    pub topic: TopicId,
    /// The delivery.
    pub traced: Traced,
    /// The event.
    pub event: Event,
    /// The worker that has it, or had it.
    pub worker: WorkerId,
    /// The client id of the worker, if it is known here.
    pub client: Option<&'s str>,
    /// The message's position in its stream, if it was read there.
    pub position: Option<Position>,
    /// The outcome.
    pub outcome: Option<&'static str>,
    /// The reason.
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

    /// A delivery ended.
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

    /// A delivery was taken back from its worker; the message is now `outcome`.
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
    /// The event.
    pub event: Event,
    /// When, by the server's clock.
    pub at: DateTime<Utc>,
    /// The number of the delivery; 0 before the first.
    pub delivery_no: DeliveryNo,
    /// The worker that had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerId>,
    /// The connection that wrote it.
    pub conn: ConnId,
    /// The client that enqueued it (account, host, process, thread), or claimed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The message's position in its stream.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// The outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// The reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
