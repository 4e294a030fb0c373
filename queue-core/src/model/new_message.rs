use std::num::NonZeroU32;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::model::{
    Error, Headers, Moment, MsgId, Priority, Result, RetryPolicy, TRACE_PARENT, TraceParent, Unique,
};

/// The longest ordering key and biz id, in bytes: what their columns hold.
const KEY_LIMIT: usize = 255;

/// A message to enqueue. Its id is made here, before the first send, so that every resend is the
/// same message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a message does nothing until it is enqueued"]
pub struct NewMessage {
    /// The message id.
    pub msg_id: MsgId,
    /// The body: bytes, never interpreted.
    pub body: Vec<u8>,
    /// Order of handling within the topic.
    pub priority: Priority,
    /// Ordering key (streams pick the partition by it).
    pub key: Option<Vec<u8>>,
    /// Business idempotency key.
    pub biz_id: Option<Vec<u8>>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// When it becomes ready; `None`: at once. A time in the past also means at once: a message
    /// that was resent for a while is late, not wrong.
    pub deliver: Option<Moment>,
    /// A delivery that has not begun by then is discarded; `None`: never.
    pub expires: Option<Moment>,
    /// The unique key that it is to hold.
    pub unique: Option<Unique>,
    /// The id that was made here.
    made_id: MsgId,
}

impl NewMessage {
    /// A message of these bytes, with a new id.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        let made_id = MsgId::new();
        Self {
            msg_id: made_id,
            body: body.into(),
            priority: Priority::default(),
            key: None,
            biz_id: None,
            headers: Headers::default(),
            deliver: None,
            expires: None,
            unique: None,
            made_id,
        }
    }

    /// A message whose body is `payload` as JSON.
    ///
    /// # Errors
    /// [`Error::Encode`] if the payload cannot be written as JSON.
    pub fn json<P: Serialize>(payload: &P) -> Result<Self> {
        serde_json::to_vec(payload).map(Self::new).map_err(|error| Error::Encode(error.into()))
    }

    /// Sets an id that the sender chose; use the same id for each resend. A topic with a
    /// [dedupe window](crate::model::TopicSettings::dedupe_window) stores the message once.
    pub fn with_msg_id(mut self, msg_id: MsgId) -> Self {
        self.msg_id = msg_id;
        self
    }

    /// Sets the priority.
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the ordering key.
    pub fn with_key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the business idempotency key.
    pub fn with_biz_id(mut self, biz_id: impl Into<Vec<u8>>) -> Self {
        self.biz_id = Some(biz_id.into());
        self
    }

    /// Adds one header.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.0.insert(name.into(), value.into());
        self
    }

    /// Sets the message's kind within its topic: the header `queue-kind`.
    pub fn with_kind(mut self, kind: impl Into<String>) -> Self {
        self.headers.set_kind(kind);
        self
    }

    /// Makes it part of a distributed trace, as a continuation of the span `parent`: the header
    /// `traceparent`.
    pub fn with_traceparent(self, parent: TraceParent) -> Self {
        self.with_header(TRACE_PARENT, parent.to_string())
    }

    /// Sets the message's own retry policy, in place of its topic's: the header `queue-retry`.
    pub fn with_retry(mut self, policy: &RetryPolicy) -> Self {
        self.headers.set_retry(policy);
        self
    }

    /// Sets the message's own limit of attempts, in place of its topic's: the header
    /// `queue-max-attempts`.
    pub fn with_max_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.headers.set_max_attempts(attempts);
        self
    }

    /// Makes it ready this long after it was enqueued.
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.deliver = Some(Moment::After(delay));
        self
    }

    /// Makes it ready at this time.
    pub fn with_deliver_at(mut self, at: DateTime<Utc>) -> Self {
        self.deliver = Some(Moment::At(at));
        self
    }

    /// Discards a delivery that has not begun this long after the message was enqueued.
    pub fn with_expiry(mut self, after: Duration) -> Self {
        self.expires = Some(Moment::After(after));
        self
    }

    /// Discards a delivery that has not begun at this time.
    pub fn with_expires_at(mut self, at: DateTime<Utc>) -> Self {
        self.expires = Some(Moment::At(at));
        self
    }

    /// Gives it a unique key, which one message of the topic holds at a time.
    pub fn with_unique(mut self, unique: Unique) -> Self {
        self.unique = Some(unique);
        self
    }

    /// Whether the sender chose its id.
    #[must_use]
    pub fn has_given_id(&self) -> bool {
        self.msg_id != self.made_id
    }

    /// The unique key in its row, to be freed when the message ends.
    pub(crate) fn key_until_done(&self) -> Option<&[u8]> {
        self.unique.as_ref().filter(|unique| unique.time().is_none()).map(Unique::key)
    }

    /// Whether it expires before any worker can handle it, as far as this is known without the
    /// server's clock.
    fn expires_before_it_is_ready(&self) -> bool {
        match (self.deliver, self.expires) {
            (Some(Moment::After(ready)), Some(Moment::After(end))) => end <= ready,
            (Some(Moment::At(ready)), Some(Moment::At(end))) => end <= ready,
            (None, Some(Moment::After(end))) => end.is_zero(),
            _ => false,
        }
    }

    /// Checks what the columns can hold before anything is sent: a packet that is too large would
    /// break the connection without a clear error.
    ///
    /// # Errors
    /// A message that no topic can store: a key, biz id or headers too long, an impossible time, or
    /// a header of the queue's own without a valid value.
    pub fn check(&self) -> Result<()> {
        for (field, bytes) in [("key", &self.key), ("biz id", &self.biz_id)] {
            let len = bytes.as_ref().map_or(0, Vec::len);
            if len > KEY_LIMIT {
                return Err(Error::KeyTooLong { field, len, limit: KEY_LIMIT });
            }
        }
        let moments = [("The moment of delivery", self.deliver), ("The expiry", self.expires)];
        for (what, moment) in moments {
            moment.map_or(Ok(()), |moment| moment.check(what))?;
        }
        if self.expires_before_it_is_ready() {
            let reason =
                "it is not after the moment of delivery, so no handler would get the message";
            return Err(Error::InvalidTime { what: "The expiry", reason });
        }
        self.unique.iter().try_for_each(|unique| unique.check(self.deliver))?;
        self.headers.retry()?;
        self.headers.max_attempts()?;
        if self.headers.damaged_page().is_some() {
            let reason = "the header queue-damaged-page is set by the log alone".to_owned();
            return Err(Error::InvalidHeaders { reason });
        }
        self.headers.to_stored().map(|_| ())
    }
}
