//! The position of a group in each partition.

use diesel::prelude::*;

use crate::connection::{Connection, Statement, row};
use crate::model::{Group, HeaderFilter, Offset, PartitionNo, Result, RowId, TopicId};
use crate::schema::queue_cursor::dsl;
use crate::store::moves::equal;
use crate::store::rescue::SHARED_CRASHES;
use crate::store::{load, select, select_surely, write, write_surely};

/// PRIMARY: creates the group's cursor of a partition.
pub async fn create(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    next: Offset,
) -> Result<()> {
    let statement = diesel::insert_into(dsl::queue_cursor).values((
        dsl::group_id.eq(group),
        dsl::partition_no.eq(partition),
        dsl::next_offset.eq(next),
    ));
    write(conn, "create the cursor", statement).await?;
    Ok(())
}

/// The work that a partition has for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Work {
    /// The partition.
    pub partition: PartitionNo,
    /// The offset that is claimed next.
    pub next: Offset,
    /// The offset of the oldest message kept.
    pub first: Offset,
    /// Messages that no member of the group has claimed yet.
    pub unclaimed: u64,
    /// Ranges that can be claimed again now.
    pub free: u64,
    /// Ranges whose messages must be claimed alone.
    pub suspect: u64,
    /// Ranges that a member holds, or that are not due yet.
    pub busy: u64,
}

impl Work {
    /// Returns whether a claim would find something.
    #[must_use]
    pub fn is_there(&self, group: Group) -> bool {
        let blocked = group.ordered && self.busy > 0;
        !blocked && (self.free > 0 || (self.unclaimed > 0 && !(group.ordered && self.suspect > 0)))
    }
}

/// The work for a group, and the group's filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupWork {
    /// What each partition has, in order.
    pub work: Vec<Work>,
    /// Which messages the group wants.
    pub filter: HeaderFilter,
    /// Whether messages in the stream's inbox wait for their offsets.
    pub inbox: bool,
}

/// PRIMARY of cursors, partitions, topics and messages, KEY (`group_id`, `partition_no`) of the
/// ranges, plain, a row a partition: reads which partitions have work for the group, its current
/// filter, and whether the stream's inbox has a message, by one dive.
pub async fn group_work(conn: &mut impl Connection, group: Group) -> Result<GroupWork> {
    let due = "r.worker_id = 0 AND (r.ready_at IS NULL OR r.ready_at <= UTC_TIMESTAMP(6))";
    let statement = Statement::new(format!(
        "SELECT c.partition_no, c.next_offset, p.first_offset, \
         CAST(p.next_offset - LEAST(c.next_offset, p.next_offset) AS SIGNED) AS unclaimed, \
         CAST(COALESCE(SUM({due} AND r.suspicions < {SHARED_CRASHES}), 0) AS SIGNED) AS free, \
         CAST(COALESCE(SUM({due} AND r.suspicions >= {SHARED_CRASHES}), 0) AS SIGNED) AS suspect, \
         CAST(COALESCE(SUM(NOT ({due})), 0) AS SIGNED) AS busy, \
         (SELECT t.header_filter FROM queue_topic t WHERE t.id = ?) AS header_filter, \
         (SELECT m.id FROM queue_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = ? \
         ORDER BY m.topic_id, m.priority, m.id LIMIT 1) AS waiting \
         FROM queue_cursor c \
         JOIN queue_partition p ON p.topic_id = ? AND p.partition_no = c.partition_no \
         LEFT JOIN queue_range r ON r.group_id = c.group_id AND r.partition_no = c.partition_no \
         WHERE c.group_id = ? \
         GROUP BY c.partition_no, p.first_offset, p.next_offset, c.next_offset \
         ORDER BY c.partition_no"
    ))
    .number(group.id.0)
    .number(group.stream.0)
    .number(group.stream.0)
    .number(group.id.0);
    let rows: Vec<(Work, Option<Vec<u8>>, Option<RowId>)> =
        load(conn, "look for work of the group", statement).await?;
    let first = rows.first();
    // An unreadable filter counts as none; the code that reads the topic logs it.
    let filter = first.and_then(|(_, filter, _)| filter.as_deref());
    let filter = HeaderFilter::from_stored(filter).unwrap_or_default();
    let inbox = first.is_some_and(|(.., waiting)| waiting.is_some());
    Ok(GroupWork { work: rows.into_iter().map(|(work, ..)| work).collect(), filter, inbox })
}

row! { Work { partition, next, first, unclaimed, free, suspect, busy } }

/// PRIMARY: locks the group's cursor of a partition: until the transaction ends no other session
/// claims, splits or resets there. Returns the offset that is claimed next; `None` if there is no
/// such cursor.
pub async fn lock(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
) -> Result<Option<Offset>> {
    let query = dsl::queue_cursor.find((group, partition)).select(dsl::next_offset).for_update();
    let rows: Vec<Offset> = select(conn, "claim: lock the cursor", query).await?;
    Ok(rows.first().copied())
}

/// PRIMARY: locks the group's cursors, by partition: until the transaction ends no other session
/// claims, splits or resets, and a retention that waits for groups removes nothing. Returns the
/// offset of each partition that is claimed next.
pub async fn lock_all(
    conn: &mut impl Connection,
    group: TopicId,
) -> Result<Vec<(PartitionNo, Offset)>> {
    let query = dsl::queue_cursor
        .filter(dsl::group_id.eq(group))
        .order((dsl::group_id, dsl::partition_no))
        .select((dsl::partition_no, dsl::next_offset))
        .for_update();
    select_surely(conn, "lock the cursors", query).await
}

/// PRIMARY: locks and advances the cursor, if it still stands at `from`; `lost` messages on the way
/// had been pruned. Returns whether it did.
pub async fn advance_from(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    (from, to): (Offset, Offset),
    lost: u64,
) -> Result<bool> {
    let as_seen = dsl::queue_cursor.find((group, partition)).filter(dsl::next_offset.eq(from));
    let statement =
        diesel::update(as_seen).set((dsl::next_offset.eq(to), dsl::lost.eq(dsl::lost + lost)));
    Ok(write_surely(conn, "claim: advance the cursor", statement).await? == 1)
}

/// PRIMARY: advances a locked cursor; `lost` messages on the way had been pruned.
pub async fn advance(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    to: Offset,
    lost: u64,
) -> Result<()> {
    const OPERATION: &str = "claim: advance the cursor";
    let statement = diesel::update(dsl::queue_cursor.find((group, partition)))
        .set((dsl::next_offset.eq(to), dsl::lost.eq(dsl::lost + lost)));
    equal(OPERATION, 1, write_surely(conn, OPERATION, statement).await?)
}

/// PRIMARY: counts messages of claimed ranges that had been pruned before they were read.
pub async fn count_lost(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    lost: u64,
) -> Result<usize> {
    let statement = diesel::update(dsl::queue_cursor.find((group, partition)))
        .set(dsl::lost.eq(dsl::lost + lost));
    write_surely(conn, "count what is lost to retention", statement).await
}

/// PRIMARY: moves a locked cursor elsewhere, in a new generation.
pub async fn reset(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    to: Offset,
) -> Result<()> {
    const OPERATION: &str = "reset the cursor";
    let statement = diesel::update(dsl::queue_cursor.find((group, partition)))
        .set((dsl::next_offset.eq(to), dsl::generation.eq(dsl::generation + 1_u64)));
    equal(OPERATION, 1, write_surely(conn, OPERATION, statement).await?)
}

/// PRIMARY: removes the group's cursors.
pub async fn delete(conn: &mut impl Connection, group: TopicId) -> Result<usize> {
    let statement = diesel::delete(dsl::queue_cursor.filter(dsl::group_id.eq(group)));
    write_surely(conn, "delete the cursors", statement).await
}
