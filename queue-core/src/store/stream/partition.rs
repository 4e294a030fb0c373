//! The partitions of a stream: where its log begins and ends.

use diesel::prelude::*;

use crate::connection::Connection;
use crate::model::{Offset, PartitionNo, Result, TopicId};
use crate::schema::queue_partition::{self, dsl};
use crate::schema::queue_topic;
use crate::store::moves::equal;
use crate::store::{select, select_surely, write, write_surely};

/// A partition, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, Queryable, Selectable)]
#[diesel(table_name = queue_partition)]
pub struct Partition {
    /// Its number within the stream, from 0.
    #[diesel(column_name = partition_no)]
    pub no: PartitionNo,
    /// The offset of the oldest message kept; `next` if there is none.
    #[diesel(column_name = first_offset)]
    pub first: Offset,
    /// The offset of the next message.
    #[diesel(column_name = next_offset)]
    pub next: Offset,
    /// Whether messages are stored in it as pages.
    #[serde(skip)]
    pub pages: bool,
}

/// PRIMARY: creates the partitions `from..to` of a stream, empty.
pub async fn create(conn: &mut impl Connection, stream: TopicId, from: u32, to: u32) -> Result<()> {
    for no in from..to {
        let statement = diesel::insert_into(dsl::queue_partition)
            .values((dsl::topic_id.eq(stream), dsl::partition_no.eq(no)));
        write(conn, "create the partition", statement).await?;
    }
    Ok(())
}

/// PRIMARY, plain: reads the stream's partitions, in order.
pub async fn all(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Partition>> {
    let query = dsl::queue_partition
        .filter(dsl::topic_id.eq(stream))
        .order(dsl::partition_no)
        .select(Partition::as_select());
    select_surely(conn, "read the partitions", query).await
}

/// PRIMARY of topics and partitions, plain: reads the partitions of the stream that a group reads,
/// in order; none if the group no longer exists.
pub async fn of_group(conn: &mut impl Connection, group: TopicId) -> Result<Vec<Partition>> {
    let stream = queue_topic::table.find(group).select(queue_topic::stream_id).single_value();
    let query = dsl::queue_partition
        .filter(dsl::topic_id.nullable().eq(stream))
        .order(dsl::partition_no)
        .select(Partition::as_select());
    select_surely(conn, "read the group's partitions", query).await
}

/// PRIMARY: locks the stream's partitions, in order: until the transaction ends no other session
/// gives their messages offsets.
pub async fn lock(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Partition>> {
    let query = dsl::queue_partition
        .filter(dsl::topic_id.eq(stream))
        .order(dsl::partition_no)
        .select(Partition::as_select())
        .for_update();
    select_surely(conn, "sequence: lock the partitions", query).await
}

/// PRIMARY: as [`lock`], but only those partitions that no other session has locked.
pub async fn lock_free(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Partition>> {
    let query = dsl::queue_partition
        .filter(dsl::topic_id.eq(stream))
        .order(dsl::partition_no)
        .select(Partition::as_select())
        .for_update()
        .skip_locked();
    select_surely(conn, "sequence: lock the free partitions", query).await
}

/// PRIMARY: locks one of the stream's partitions and returns it; `None` if another session has
/// locked it.
pub async fn try_lock(
    conn: &mut impl Connection,
    stream: TopicId,
    no: PartitionNo,
) -> Result<Option<Partition>> {
    let query = dsl::queue_partition
        .find((stream, no))
        .select(Partition::as_select())
        .for_update()
        .skip_locked();
    Ok(select(conn, "append: lock a partition", query).await?.pop())
}

/// PRIMARY, plain: reads one of the stream's partitions.
pub async fn find(
    conn: &mut impl Connection,
    stream: TopicId,
    no: PartitionNo,
) -> Result<Option<Partition>> {
    let query = dsl::queue_partition.find((stream, no)).select(Partition::as_select());
    Ok(select_surely(conn, "read the partition", query).await?.pop())
}

/// PRIMARY: advances the end of a locked partition by `by` messages.
///
/// # Errors
/// [`crate::Error::Counts`] if it does not end where the caller saw it.
pub async fn advance(
    conn: &mut impl Connection,
    stream: TopicId,
    seen: Partition,
    by: u64,
) -> Result<()> {
    const OPERATION: &str = "sequence: advance the partition";
    let as_seen =
        dsl::queue_partition.find((stream, seen.no)).filter(dsl::next_offset.eq(seen.next));
    let statement = diesel::update(as_seen).set(dsl::next_offset.eq(dsl::next_offset + by));
    equal(OPERATION, 1, write_surely(conn, OPERATION, statement).await?)
}

/// PRIMARY: removes the stream's partitions; their messages must be gone already.
pub async fn delete(conn: &mut impl Connection, stream: TopicId) -> Result<usize> {
    let statement = diesel::delete(dsl::queue_partition.filter(dsl::topic_id.eq(stream)));
    write_surely(conn, "delete the partitions", statement).await
}

/// PRIMARY: moves the beginning of a partition: the oldest message kept is now `first`.
pub async fn cut(
    conn: &mut impl Connection,
    stream: TopicId,
    no: PartitionNo,
    first: Offset,
) -> Result<usize> {
    let is_inside = dsl::first_offset.lt(first).and(dsl::next_offset.ge(first));
    let statement = diesel::update(dsl::queue_partition.find((stream, no)).filter(is_inside))
        .set(dsl::first_offset.eq(first));
    write_surely(conn, "prune: cut the log", statement).await
}
