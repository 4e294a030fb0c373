//! A message as every table of messages has it.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Nullable, Unsigned};

use crate::model::{Headers, MsgId, RowId};

/// The columns of [`StoredRow`].
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
    /// Server time from which on nobody wants it.
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

#[derive(QueryableByName)]
pub(super) struct StoredRow {
    #[diesel(sql_type = Unsigned<BigInt>)]
    id: u64,
    #[diesel(sql_type = Binary)]
    msg_id: Vec<u8>,
    #[diesel(sql_type = Datetime)]
    enqueued_at: NaiveDateTime,
    #[diesel(sql_type = Nullable<Datetime>)]
    expires_at: Option<NaiveDateTime>,
    #[diesel(sql_type = Nullable<Binary>)]
    ordering_key: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    biz_id: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    headers: Option<Vec<u8>>,
    #[diesel(sql_type = Binary)]
    body: Vec<u8>,
}

impl From<StoredRow> for Stored {
    fn from(row: StoredRow) -> Self {
        Self {
            row: RowId(row.id),
            msg_id: MsgId::from_bytes(&row.msg_id).unwrap_or_else(|| MsgId(uuid::Uuid::nil())),
            enqueued_at: row.enqueued_at.and_utc(),
            expires_at: row.expires_at.map(|at| at.and_utc()),
            key: row.ordering_key,
            biz_id: row.biz_id,
            headers: Headers::from_stored(row.headers.as_deref()),
            body: row.body,
        }
    }
}
