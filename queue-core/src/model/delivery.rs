use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;

use crate::model::{ClaimNo, DeliveryNo, Headers, MsgId, Position, Priority, RowId, TopicId};

/// One claim of one message: what a handler gets, and the fence that settles it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The topic's number.
    pub topic_id: TopicId,
    /// The message id, the same for every delivery of the message.
    pub msg_id: MsgId,
    /// Rises with every claim and never falls: pass `(msg_id, delivery_no)` as the token to systems
    /// that should refuse an older delivery.
    pub delivery_no: DeliveryNo,
    /// Failed runs so far; a release, or a row that was never started, does not count.
    pub failures: u32,
    /// Crashes of workers that held this message alone.
    pub crashes: u32,
    /// Server time (UTC) at which the message was enqueued; for a delayed one, at which it became
    /// due.
    pub enqueued_at: DateTime<Utc>,
    /// Server time (UTC) from which on no worker begins to handle it.
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
    /// The body as it was enqueued, byte for byte. If it was encoded by [codecs](crate::codec), the
    /// handler gets it decoded.
    pub body: Vec<u8>,
    /// The priority of the row: together with the topic and the row id, its primary key.
    pub priority: Priority,
    /// The id of the row.
    pub row: RowId,
    /// The claim that holds it; together with the worker's id, the fence.
    pub claim_no: ClaimNo,
    /// Its position in its stream; `None` for a queue's message, and for a stream's message that
    /// its group retries.
    pub position: Option<Position>,
    /// Whether it leaves a trace: each of its events is a row in `queue_trace`.
    pub traced: bool,
}

impl Delivery {
    /// Whether it had expired when it was claimed: it is discarded instead of being handled.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|end| end <= self.claimed_at)
    }

    /// How long it waited for its first claim; `None` for a later one.
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
