//! Messages of claimed ranges that their handlers acked in the handlers' own transactions.

use diesel::prelude::*;

use crate::connection::{Connection, Statement};
use crate::model::{Offset, PartitionNo, RangeId, Result, TopicId};
use crate::schema::queue_passed::dsl;
use crate::store::moves::equal;
use crate::store::row_set::KEYS;
use crate::store::{execute, execute_surely, select_surely, write};

/// PRIMARY, plain: reads the messages of the range that were acked this way.
pub async fn of_range(conn: &mut impl Connection, range: RangeId) -> Result<Vec<Offset>> {
    let query = dsl::queue_passed
        .filter(dsl::range_id.eq(range))
        .order(dsl::offset_no)
        .select(dsl::offset_no);
    select_surely(conn, "read what was acked", query).await
}

/// PRIMARY: acks a message of a range that this transaction has locked. A message is acked once; a
/// second ack is refused.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure.
pub async fn insert(conn: &mut impl Connection, range: RangeId, offset: Offset) -> Result<()> {
    const OPERATION: &str = "settle: ack a message of a range";
    let statement = diesel::insert_into(dsl::queue_passed)
        .values((dsl::range_id.eq(range), dsl::offset_no.eq(offset)));
    equal(OPERATION, 1, write(conn, OPERATION, statement).await?)
}

/// PRIMARY, key by key: removes rows that are no longer needed. A range of keys would wait for the
/// row beyond its end, which another worker may be about to ack.
pub async fn delete(
    conn: &mut impl Connection,
    range: RangeId,
    offsets: &[Offset],
) -> Result<usize> {
    if offsets.is_empty() {
        return Ok(0);
    }
    let statement = Statement::new(format!(
        "DELETE p FROM {KEYS} STRAIGHT_JOIN queue_passed p FORCE INDEX (PRIMARY) \
         ON p.range_id = ? AND p.offset_no = k.id"
    ))
    .bytes(json(offsets))
    .number(range.0);
    execute(conn, "settle: forget what was acked", statement).await
}

/// PRIMARY: removes the rows before `mark`, which are no longer needed. This transaction has locked
/// the range, so no row is added in the meantime.
pub async fn forget(conn: &mut impl Connection, range: RangeId, mark: Offset) -> Result<usize> {
    let mut offsets = of_range(conn, range).await?;
    offsets.retain(|offset| *offset < mark);
    delete(conn, range, &offsets).await
}

/// PRIMARY: moves the acked messages of a range from `stretch.0` up to `stretch.1` to the range
/// that was split off for them. This transaction has locked the old range.
pub async fn hand_on(
    conn: &mut impl Connection,
    range: RangeId,
    to: RangeId,
    stretch: (Offset, Offset),
) -> Result<usize> {
    let mut offsets = of_range(conn, range).await?;
    offsets.retain(|offset| stretch.0 <= *offset && *offset < stretch.1);
    if offsets.is_empty() {
        return Ok(0);
    }
    let statement = Statement::new(format!(
        "INSERT INTO queue_passed (range_id, offset_no) SELECT ?, k.id FROM {KEYS}"
    ))
    .number(to.0)
    .bytes(json(&offsets));
    execute(conn, "claim: cut a range", statement).await?;
    delete(conn, range, &offsets).await
}

/// Returns the offsets as JSON, for [`KEYS`].
fn json(offsets: &[Offset]) -> Vec<u8> {
    let numbers: Vec<_> = offsets.iter().map(|offset| offset.0.to_string()).collect();
    format!("[{}]", numbers.join(",")).into_bytes()
}

/// KEY (`group_id`, `partition_no`) of the ranges, joined to PRIMARY: removes these rows of every
/// range of the partition, under the lock of its cursor.
pub async fn forget_of_group(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
) -> Result<usize> {
    let statement = Statement::new(
        "DELETE p FROM queue_range r FORCE INDEX (queue_range_place) \
         STRAIGHT_JOIN queue_passed p ON p.range_id = r.id \
         WHERE r.group_id = ? AND r.partition_no = ?",
    )
    .number(group.0)
    .number(partition.0);
    execute_surely(conn, "forget what was acked", statement).await
}
