//! Settling: the end of a delivery, always under its fence.

use super::claim::Fence;
use super::row_set::RowSet;
use super::{Statement, execute_surely, load_surely};
use crate::connection::Connection;
use crate::model::{Priority, Result, RowId, TopicId};

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
    /// Builds the condition on key and fence, after `prefix`: one statement for each piece of the
    /// rows.
    pub(super) fn statements(&self, prefix: &Statement<'static>) -> Vec<Statement<'static>> {
        self.statements_of("", prefix)
    }

    /// As [`statements`](Self::statements), for a table with an alias: `table` is the alias and a
    /// dot.
    pub(super) fn statements_of(
        &self,
        table: &str,
        prefix: &Statement<'static>,
    ) -> Vec<Statement<'static>> {
        let statement = |piece: RowSet| {
            let (condition, ids) = piece.condition();
            let condition = Statement::new(format!(
                " WHERE {table}topic_id = ? AND {table}priority = ? AND {condition} \
                 AND {table}worker_id = ? AND {table}claim_no = ?"
            ))
            .number(self.topic.0)
            .number(self.priority.stored())
            .numbers(ids)
            .number(self.fence.worker.0)
            .number(self.fence.claim_no.0);
            prefix.clone().followed_by(condition)
        };
        self.rows.pieces().into_iter().map(statement).collect()
    }

    /// Runs `prefix` on the rows and returns how many it matched.
    pub(super) async fn execute_surely(
        &self,
        conn: &mut impl Connection,
        operation: &'static str,
        prefix: Statement<'static>,
    ) -> Result<usize> {
        let mut matched = 0;
        for statement in self.statements(&prefix) {
            matched += execute_surely(conn, operation, statement).await?;
        }
        Ok(matched)
    }

    /// Returns the same claim with other rows of it.
    #[must_use]
    pub fn with_rows(&self, rows: RowSet) -> Self {
        Self { rows, ..self.clone() }
    }
}

/// Removes rows by the index PRIMARY. Only a multi-table DELETE takes the hint.
pub(super) const DELETE: &str = "DELETE m FROM queue_message m FORCE INDEX (PRIMARY)";

/// PRIMARY, forced: removes handled rows and returns how many. Fewer than asked for means that the
/// claim no longer owns some of them.
pub async fn ack(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<usize> {
    tracing::trace!(step = "ack");
    claimed.execute_surely(conn, "settle: ack", Statement::new(DELETE)).await
}

/// PRIMARY, forced: gives rows back, unhandled. `delivery_no` is never lowered.
pub async fn release(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<usize> {
    let prefix = Statement::new(
        "UPDATE queue_message FORCE INDEX (PRIMARY) SET conn_id = 0, worker_id = 0, claim_no = 0",
    );
    claimed.execute_surely(conn, "settle: release", prefix).await
}

/// PRIMARY, forced: locks those of the rows that the claim still owns. It waits for a moment if
/// another claimer has locked a row while looking for ready ones.
pub async fn wait_for_own(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<RowSet> {
    own_rows(conn, "settle: lock own rows", claimed, " FOR UPDATE").await
}

/// PRIMARY, forced: locks those of the rows that the claim still owns, passing over rows that
/// another session has locked.
pub async fn lock_own(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<RowSet> {
    own_rows(conn, "settle: lock own rows", claimed, " FOR UPDATE SKIP LOCKED").await
}

/// PRIMARY, forced, plain: reads which of the rows the claim still owns, locked by other sessions
/// or not.
pub async fn read_own(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<RowSet> {
    own_rows(conn, "settle: read own rows", claimed, "").await
}

async fn own_rows(
    conn: &mut impl Connection,
    operation: &'static str,
    claimed: &ClaimedRows,
    locking: &str,
) -> Result<RowSet> {
    let prefix = Statement::new("SELECT id FROM queue_message FORCE INDEX (PRIMARY)");
    let mut own = Vec::with_capacity(claimed.rows.len());
    for statement in claimed.statements(&prefix) {
        let rows: Vec<RowId> = load_surely(conn, operation, statement.sql(locking)).await?;
        own.extend(rows);
    }
    Ok(RowSet::new(own))
}
