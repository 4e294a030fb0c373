use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

use crate::model::{ClaimNo, DeliveryNo, Headers, MsgId, Position, Priority, RowId, TopicId};

/// One claim of one message: what a handler gets, and the fence under which it is settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The topic's number.
    pub topic_id: TopicId,
    /// The message id, the same for every delivery of the message.
    pub msg_id: MsgId,
    /// Rises with every claim and is never lowered: `(msg_id, delivery_no)` is the token to pass
    /// on to systems that should refuse an older delivery.
    pub delivery_no: DeliveryNo,
    /// Failed handlings so far; a release or a row never started counts nothing.
    pub failures: u32,
    /// Crashes of workers that held this message alone.
    pub crashes: u32,
    /// Server time (UTC) at which the message was enqueued; of a delayed one, at which it was due.
    pub enqueued_at: DateTime<Utc>,
    /// Server time (UTC) from which on nobody begins to handle it.
    pub expires_at: Option<DateTime<Utc>>,
    /// Server time (UTC) of the claim.
    pub claimed_at: DateTime<Utc>,
    /// Ordering key.
    pub key: Option<Vec<u8>>,
    /// Business idempotency key.
    pub biz_id: Option<Vec<u8>>,
    /// The unique key that it was enqueued to hold until it is done.
    pub unique_key: Option<Vec<u8>>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// The body as it was enqueued, byte for byte; decoded in a handler's hands, if it was encoded
    /// by [codecs](crate::codec).
    pub body: Vec<u8>,
    /// Where the row lies: with the topic, its primary key.
    pub priority: Priority,
    /// Where the row lies.
    pub row: RowId,
    /// The claim that holds it; with the worker's id, the fence.
    pub claim_no: ClaimNo,
    /// Where it lies in its stream; `None` for a message of a queue, and for one of a stream that
    /// its group tries again.
    pub position: Option<Position>,
    /// Whether it leaves a trace: each of its events is a row in `queue_trace`.
    pub traced: bool,
}

impl Delivery {
    /// Whether its time had run out when it was claimed: it is discarded instead of being handled.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|end| end <= self.claimed_at)
    }

    /// How long it lay before its first claim; `None` for a later one.
    #[must_use]
    pub fn pickup(&self) -> Option<Duration> {
        let first = self.delivery_no == DeliveryNo(1);
        first.then(|| (self.claimed_at - self.enqueued_at).to_std().unwrap_or_default())
    }

    /// The same delivery with other headers and another body.
    pub(crate) fn with_content(&self, headers: Headers, body: Vec<u8>) -> Self {
        Self {
            key: self.key.clone(),
            biz_id: self.biz_id.clone(),
            unique_key: self.unique_key.clone(),
            headers,
            body,
            ..*self
        }
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// The decoder's error; a handler's adapter dead-letters such a message.
    pub fn json<P: DeserializeOwned>(&self) -> Result<P, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }
}
