//! A message as every message table stores it.

use chrono::{DateTime, Utc};

use crate::connection::row;
use crate::model::{Headers, MsgId, RowId};

/// The columns of [`Stored`].
pub(super) const STORED: &str =
    "id, msg_id, enqueued_at, expires_at, ordering_key, biz_id, headers, body";

/// A message, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its row.
    pub row: RowId,
    /// The message id.
    pub msg_id: MsgId,
    /// Server time at which it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// Server time at which it expires.
    pub expires_at: Option<DateTime<Utc>>,
    /// Ordering key.
    pub key: Option<Vec<u8>>,
    /// Business idempotency key.
    pub biz_id: Option<Vec<u8>>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
}

row! { Stored { row, msg_id, enqueued_at, expires_at, key, biz_id, headers, body } }
