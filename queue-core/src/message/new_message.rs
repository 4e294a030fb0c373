use std::num::NonZeroU32;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::message::{Headers, MsgId, Priority};
use crate::topic::RetryPolicy;

/// The longest ordering key and biz id, in bytes: what their columns hold.
const KEY_LIMIT: usize = 255;

/// A message to enqueue. Its id is made here, before the first try, so that every resend is the
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
}

impl NewMessage {
    /// A message of these bytes, with a fresh id.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            msg_id: MsgId::new(),
            body: body.into(),
            priority: Priority::default(),
            key: None,
            biz_id: None,
            headers: Headers::default(),
        }
    }

    /// A message whose body is `payload` as JSON.
    ///
    /// # Errors
    /// [`Error::Encode`] if the payload cannot be written as JSON.
    pub fn json<P: Serialize>(payload: &P) -> Result<Self> {
        serde_json::to_vec(payload).map(Self::new).map_err(|error| Error::Encode(error.into()))
    }

    /// Sets the message id, for a resend of a message made elsewhere.
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

    /// Gives the message a retry policy of its own, in place of its topic's: the header
    /// `queue-retry`.
    pub fn with_retry(mut self, policy: &RetryPolicy) -> Self {
        self.headers.set_retry(policy);
        self
    }

    /// Gives the message a limit of attempts of its own, in place of its topic's: the header
    /// `queue-max-attempts`.
    pub fn with_max_attempts(mut self, attempts: NonZeroU32) -> Self {
        self.headers.set_max_attempts(attempts);
        self
    }

    /// Checks what the columns hold, before anything is sent: a packet too large would break the
    /// connection without a clear error.
    pub(crate) fn check(&self) -> Result<()> {
        for (field, bytes) in [("key", &self.key), ("biz id", &self.biz_id)] {
            let len = bytes.as_ref().map_or(0, Vec::len);
            if len > KEY_LIMIT {
                return Err(Error::KeyTooLong { field, len, limit: KEY_LIMIT });
            }
        }
        self.headers.retry()?;
        self.headers.max_attempts()?;
        self.headers.to_stored().map(|_| ())
    }
}
