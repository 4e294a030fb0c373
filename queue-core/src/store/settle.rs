//! Settling: the end of a delivery, always under its fence.

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};
use diesel_async::AsyncMysqlConnection;

use super::claim::Fence;
use super::row_set::RowSet;
use super::{Statement, execute, load};
use crate::error::Result;
use crate::message::{Priority, RowId};
use crate::topic::TopicId;

/// Rows of one claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedRows {
    /// The claim that holds them.
    pub fence: Fence,
    /// Their topic.
    pub topic: TopicId,
    /// Their priority.
    pub priority: Priority,
    /// The rows.
    pub rows: RowSet,
}

impl ClaimedRows {
    /// The condition on key and fence, after `prefix`.
    pub(super) fn statement(&self, prefix: &str) -> Statement<'static> {
        let (condition, ids) = self.rows.condition();
        Statement::new(format!(
            "{prefix} WHERE topic_id = ? AND priority = ? AND {condition} \
             AND worker_id = ? AND claim_no = ?"
        ))
        .number(self.topic.0)
        .number(self.priority.stored())
        .numbers(ids)
        .number(self.fence.worker.0)
        .number(self.fence.claim_no.0)
    }

    /// The same claim, other rows of it.
    #[must_use]
    pub fn with_rows(&self, rows: RowSet) -> Self {
        Self { rows, ..self.clone() }
    }
}

/// PRIMARY (DELETE takes no index hint on either server: the plan is asserted in the suite):
/// removes handled rows. Fewer than asked for means that some are not the claim's own any more.
///
/// # Errors
/// A database failure.
pub async fn ack(conn: &mut AsyncMysqlConnection, claimed: &ClaimedRows) -> Result<usize> {
    execute(conn, "settle: ack", claimed.statement("DELETE FROM queue_message")).await
}

/// PRIMARY: gives rows back untouched. `delivery_no` is never lowered.
///
/// # Errors
/// A database failure.
pub async fn release(conn: &mut AsyncMysqlConnection, claimed: &ClaimedRows) -> Result<usize> {
    let prefix = "UPDATE queue_message SET conn_id = 0, worker_id = 0, claim_no = 0";
    execute(conn, "settle: release", claimed.statement(prefix)).await
}

/// PRIMARY: locks those of the rows that are still the claim's own, waiting for them if need be.
///
/// # Errors
/// A database failure.
pub async fn lock_own(conn: &mut AsyncMysqlConnection, claimed: &ClaimedRows) -> Result<RowSet> {
    #[derive(QueryableByName)]
    struct Own {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
    let statement = claimed.statement("SELECT id FROM queue_message").sql(" FOR UPDATE");
    let rows: Vec<Own> = load(conn, "settle: lock own rows", statement).await?;
    Ok(rows.into_iter().map(|row| RowId(row.id)).collect())
}
