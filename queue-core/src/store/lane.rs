//! Lanes: how a producer learns after a lost reply whether its batch was committed, without a
//! dedupe row for every message (Kafka's idempotent producer, inside the database).
//!
//! A lane is a row of the hot table under topic 0, which no topic has, so that the INSERT of a
//! batch advances its lane in the same statement: `claim_no` is the sequence number of the last
//! batch that was committed, `msg_id` the lane's name, `enqueued_at` when it was used last.

use uuid::Uuid;

use super::{Statement, execute, execute_surely, first_inserted, load};
use crate::connection::Connection;
use crate::model::{Result, RowId};

/// A producer's lane; one batch is in flight in it at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneId {
    /// Its row, which the table has numbered: a number of one's own could lie above those that the
    /// table gives its messages next.
    pub row: RowId,
    /// Its name. A failover that lost the row may have given the number to another lane.
    pub name: Uuid,
    /// Who may ask about it.
    pub kind: LaneKind,
}

/// Who may ask what became of a lane's batch, which decides for how long its row is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// The process that opened it, while it lives.
    Passing,
    /// Also a process that comes after it and finds its journal.
    Durable,
}

impl LaneKind {
    /// The priority of its rows: each kind is a range of its own to be pruned.
    pub(super) fn priority(self) -> u8 {
        match self {
            Self::Passing => 0,
            Self::Durable => 1,
        }
    }
}

/// What became of a batch in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// It was committed.
    Stored,
    /// It was not, and never will be: its statement is refused when it still arrives.
    NotStored,
    /// The lane has no row, or is not where it was left.
    Gone,
}

/// The values of a lane's row in the INSERT of a batch, in the order of its columns: topic,
/// priority, id, `claim_no`, `msg_id`, `enqueued_at`; body and the rest are the statement's.
pub(super) const ROW: &str = "(0, ?, ?, ?, ?, UTC_TIMESTAMP(6), ";

/// What that INSERT does where the lane's row is. A lane that stands elsewhere has the server
/// compute a number beyond every number: the error (1690) refuses the whole statement, on both
/// servers and in every `sql_mode` (*run*).
pub(super) const ADVANCE: &str = " ON DUPLICATE KEY UPDATE claim_no = \
     IF(topic_id = 0 AND msg_id = ? AND claim_no = ?, claim_no + 1, \
     18446744073709551615 + claim_no + 1), enqueued_at = UTC_TIMESTAMP(6)";

/// PRIMARY: opens a lane at sequence 0.
pub async fn open(conn: &mut impl Connection, kind: LaneKind, name: Uuid) -> Result<LaneId> {
    const OPERATION: &str = "open the lane";
    let statement = Statement::new(
        "INSERT INTO queue_message (topic_id, priority, claim_no, msg_id, enqueued_at, body) \
         VALUES (0, ?, 0, ?, UTC_TIMESTAMP(6), '')",
    )
    .number(kind.priority())
    .bytes(name.as_bytes().to_vec());
    execute(conn, OPERATION, statement).await?;
    let row = RowId(first_inserted(conn, OPERATION).await?);
    Ok(LaneId { row, name, kind })
}

/// PRIMARY: where the lane stands.
pub async fn seq(conn: &mut impl Connection, lane: LaneId) -> Result<Option<u64>> {
    let statement = Statement::new(
        "SELECT claim_no FROM queue_message \
         WHERE topic_id = 0 AND priority = ? AND id = ? AND msg_id = ?",
    );
    let rows: Vec<u64> = load(conn, "read the lane", of(lane, statement)).await?;
    Ok(rows.first().copied())
}

/// PRIMARY: what became of the batch that was to take the lane from `before` to the next number.
/// Its statement is waited for if it has come to the lane's row; if it has not, the lane is taken
/// past it, so that it is refused whenever it arrives. The lane is of no more use, and its row must
/// stay: an INSERT that still arrives would make it anew.
///
/// # Errors
/// A database failure; it may be asked again.
pub async fn fence(conn: &mut impl Connection, lane: LaneId, before: u64) -> Result<Fenced> {
    let statement = Statement::new(
        "UPDATE queue_message SET claim_no = claim_no + 2, enqueued_at = UTC_TIMESTAMP(6) \
         WHERE topic_id = 0 AND priority = ? AND id = ? AND msg_id = ? AND claim_no = ?",
    );
    execute_surely(conn, "fence the lane", of(lane, statement).number(before)).await?;
    Ok(match seq(conn, lane).await? {
        Some(seq) if seq == before + 1 => Fenced::Stored,
        Some(seq) if seq == before + 2 => Fenced::NotStored,
        _ => Fenced::Gone,
    })
}

/// PRIMARY: closes a lane that has never had anything in doubt.
pub async fn close(conn: &mut impl Connection, lane: LaneId) -> Result<()> {
    let statement = Statement::new(
        "DELETE FROM queue_message WHERE topic_id = 0 AND priority = ? AND id = ? AND msg_id = ?",
    );
    execute_surely(conn, "close the lane", of(lane, statement)).await?;
    Ok(())
}

fn of(lane: LaneId, statement: Statement<'static>) -> Statement<'static> {
    let statement = statement.number(lane.kind.priority()).number(lane.row.0);
    statement.bytes(lane.name.as_bytes().to_vec())
}
