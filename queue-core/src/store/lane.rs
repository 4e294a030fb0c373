//! Lanes: how a producer learns after a lost reply whether its batch was committed, without a
//! dedupe row for every message (Kafka's idempotent producer, inside the database).

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};
use uuid::Uuid;

use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::error::Result;

/// A producer's lane; one batch is in flight in it at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneId(pub Uuid);

/// PRIMARY: opens a lane at sequence 0.
///
/// # Errors
/// A database failure.
pub async fn open(conn: &mut impl Connection, lane: LaneId) -> Result<()> {
    let statement =
        Statement::new("INSERT INTO queue_lane (id, seq, used_at) VALUES (?, 0, UTC_TIMESTAMP(6))")
            .bytes(lane.0.as_bytes().to_vec());
    execute(conn, "open the lane", statement).await?;
    Ok(())
}

/// PRIMARY: takes the lane from `seq - 1` to `seq`, in the batch's transaction; 0 rows mean that
/// it stands elsewhere.
///
/// # Errors
/// A database failure.
pub async fn advance(conn: &mut impl Connection, lane: LaneId, seq: u64) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_lane SET seq = ?, used_at = UTC_TIMESTAMP(6) WHERE id = ? AND seq = ?",
    )
    .number(seq)
    .bytes(lane.0.as_bytes().to_vec())
    .number(seq.saturating_sub(1));
    execute(conn, "advance the lane", statement).await
}

/// PRIMARY, locking: where the lane stands once every transaction that touches it has ended, so
/// that a commit still under way on a lost connection is waited for.
///
/// # Errors
/// A database failure.
pub async fn settled_seq(conn: &mut impl Connection, lane: LaneId) -> Result<Option<u64>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        seq: u64,
    }
    let statement = Statement::new("SELECT seq FROM queue_lane WHERE id = ? FOR UPDATE")
        .bytes(lane.0.as_bytes().to_vec());
    let rows: Vec<Row> = load(conn, "read the lane", statement).await?;
    Ok(rows.first().map(|row| row.seq))
}

/// PRIMARY: closes a lane that has nothing in doubt.
///
/// # Errors
/// A database failure.
pub async fn close(conn: &mut impl Connection, lane: LaneId) -> Result<()> {
    let statement =
        Statement::new("DELETE FROM queue_lane WHERE id = ?").bytes(lane.0.as_bytes().to_vec());
    execute(conn, "close the lane", statement).await?;
    Ok(())
}
