//! Lanes: after a lost reply, a producer learns from its lane whether its batch was committed,
//! without a dedupe row for every message (as Kafka's idempotent producer does, but inside the
//! database).
//!
//! A lane is a row of the hot table under topic 0, a number that no topic has, so that the INSERT
//! of a batch advances its lane in the same statement: `claim_no` is the sequence number of the
//! last batch that was committed, `msg_id` the lane's name, `enqueued_at` when it was last used.

use diesel::dsl::auto_type;
use diesel::prelude::*;
use uuid::Uuid;

use super::{first_inserted, select, write, write_surely};
use crate::connection::Connection;
use crate::model::{ClaimNo, Result, RowId, TopicId};
use crate::schema::functions::now;
use crate::schema::queue_message::dsl;

/// The topic number of the lanes' rows in the hot table.
const NO_TOPIC: TopicId = TopicId(0);

/// A producer's lane, with one batch in flight at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneId {
    /// Its row, numbered by the table: a number that the producer chose could lie above those that
    /// the table gives its next messages.
    pub row: RowId,
    /// Its name. A failover that lost the row may have given the number to another lane.
    pub name: Uuid,
    /// Which processes may ask about it.
    pub kind: LaneKind,
}

/// Which processes may ask what became of a lane's batch; this decides how long its row is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LaneKind {
    /// The process that opened it, while that process lives.
    Passing,
    /// Also a later process that finds its journal.
    Durable,
}

impl LaneKind {
    /// Returns the priority of its rows: each kind is pruned as a range of its own.
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
    /// It was not, and never will be: if its statement still arrives, the server refuses it.
    NotStored,
    /// The lane has no row, or is at an unexpected number.
    Gone,
}

/// The values of a lane's row in the INSERT of a batch, in the order of its columns: topic,
/// priority, id, `claim_no`, `msg_id`, `enqueued_at`; the statement adds body and the rest.
pub(super) const ROW: &str = "(0, ?, ?, ?, ?, UTC_TIMESTAMP(6), ";

/// What that INSERT does if the lane's row exists. If the lane is at another number, the server
/// computes a value out of range: the error (1690) refuses the whole statement, on both servers
/// and in every `sql_mode` (*run*).
pub(super) const ADVANCE: &str = " ON DUPLICATE KEY UPDATE claim_no = \
     IF(topic_id = 0 AND msg_id = ? AND claim_no = ?, claim_no + 1, \
     18446744073709551615 + claim_no + 1), enqueued_at = UTC_TIMESTAMP(6)";

/// PRIMARY: opens a lane at sequence 0.
pub async fn open(conn: &mut impl Connection, kind: LaneKind, name: Uuid) -> Result<LaneId> {
    const OPERATION: &str = "open the lane";
    let statement = diesel::insert_into(dsl::queue_message).values((
        dsl::topic_id.eq(NO_TOPIC),
        dsl::priority.eq(kind.priority()),
        dsl::claim_no.eq(ClaimNo(0)),
        dsl::msg_id.eq(&name.as_bytes()[..]),
        dsl::enqueued_at.eq(now()),
        dsl::body.eq(&b""[..]),
    ));
    write(conn, OPERATION, statement).await?;
    let row = RowId(first_inserted(conn, OPERATION).await?);
    Ok(LaneId { row, name, kind })
}

/// PRIMARY: reads the sequence number of the lane.
pub async fn seq(conn: &mut impl Connection, lane: LaneId) -> Result<Option<u64>> {
    let query = row_of(lane).select(dsl::claim_no);
    let rows: Vec<u64> = select(conn, "read the lane", query).await?;
    Ok(rows.first().copied())
}

/// PRIMARY: finds out what became of the batch that was to advance the lane from `before` to the
/// next number. If its statement has locked the lane's row, this waits for it. Otherwise this
/// advances the lane beyond that number, so that the server refuses the statement whenever it
/// arrives. The lane cannot be used again, and its row must stay: an INSERT that still arrives
/// would create it again.
///
/// # Errors
/// A database failure; the caller may ask again.
pub async fn fence(conn: &mut impl Connection, lane: LaneId, before: u64) -> Result<Fenced> {
    let statement = diesel::update(row_of(lane).filter(dsl::claim_no.eq(ClaimNo(before))))
        .set((dsl::claim_no.eq(dsl::claim_no + 2_u64), dsl::enqueued_at.eq(now())));
    write_surely(conn, "fence the lane", statement).await?;
    Ok(match seq(conn, lane).await? {
        Some(seq) if seq == before + 1 => Fenced::Stored,
        Some(seq) if seq == before + 2 => Fenced::NotStored,
        _ => Fenced::Gone,
    })
}

/// PRIMARY: closes a lane that never had a batch in doubt.
pub async fn close(conn: &mut impl Connection, lane: LaneId) -> Result<()> {
    write_surely(conn, "close the lane", diesel::delete(row_of(lane))).await?;
    Ok(())
}

/// The lane's row.
#[auto_type]
fn row_of(lane: LaneId) -> _ {
    let key: (TopicId, u8, RowId) = (NO_TOPIC, lane.kind.priority(), lane.row);
    let name: Vec<u8> = lane.name.as_bytes().to_vec();
    dsl::queue_message.find(key).filter(dsl::msg_id.eq(name))
}
