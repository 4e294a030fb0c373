//! The partitions of a stream: where its log begins and ends.

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{Offset, PartitionNo, Result, TopicId};
use crate::store::moves::equal;
use crate::store::{execute, execute_surely, load_surely};

/// A partition, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Partition {
    /// Its number within the stream, from 0.
    pub no: PartitionNo,
    /// The offset of the oldest message kept; `next` if there is none.
    pub first: Offset,
    /// The offset of the next message.
    pub next: Offset,
}

row! { Partition { no, first, next } }

const SELECT: &str = "SELECT partition_no, first_offset, next_offset FROM queue_partition \
     WHERE topic_id = ? ORDER BY partition_no";

/// PRIMARY: creates the partitions `from..to` of a stream, empty.
pub async fn create(conn: &mut impl Connection, stream: TopicId, from: u32, to: u32) -> Result<()> {
    for no in from..to {
        let statement =
            Statement::new("INSERT INTO queue_partition (topic_id, partition_no) VALUES (?, ?)")
                .number(stream.0)
                .number(no);
        execute(conn, "create the partition", statement).await?;
    }
    Ok(())
}

/// PRIMARY, plain: reads the stream's partitions, in order.
pub async fn all(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Partition>> {
    let statement = Statement::new(SELECT).number(stream.0);
    partitions(conn, "read the partitions", statement).await
}

/// PRIMARY of topics and partitions, plain: reads the partitions of the stream that a group reads,
/// in order; none if the group no longer exists.
pub async fn of_group(conn: &mut impl Connection, group: TopicId) -> Result<Vec<Partition>> {
    let statement = Statement::new(
        "SELECT p.partition_no, p.first_offset, p.next_offset FROM queue_topic t \
         STRAIGHT_JOIN queue_partition p ON p.topic_id = t.stream_id WHERE t.id = ? \
         ORDER BY p.partition_no",
    )
    .number(group.0);
    partitions(conn, "read the group's partitions", statement).await
}

/// PRIMARY: locks the stream's partitions, in order: until the transaction ends no other session
/// gives its messages offsets.
pub async fn lock(conn: &mut impl Connection, stream: TopicId) -> Result<Vec<Partition>> {
    let statement = Statement::new(SELECT).sql(" FOR UPDATE").number(stream.0);
    partitions(conn, "sequence: lock the partitions", statement).await
}

/// PRIMARY: locks the stream's first partition, unless another session has locked it; returns
/// whether it did. Sequencers that do not want to wait for one another begin here.
pub async fn try_lock_first(conn: &mut impl Connection, stream: TopicId) -> Result<bool> {
    let statement = Statement::new(
        "SELECT partition_no, first_offset, next_offset FROM queue_partition \
         WHERE topic_id = ? AND partition_no = 0 FOR UPDATE SKIP LOCKED",
    )
    .number(stream.0);
    let first = partitions(conn, "sequence: lock the first partition", statement).await?;
    Ok(!first.is_empty())
}

/// PRIMARY, plain: reads one of the stream's partitions.
pub async fn find(
    conn: &mut impl Connection,
    stream: TopicId,
    no: PartitionNo,
) -> Result<Option<Partition>> {
    let statement = Statement::new(
        "SELECT partition_no, first_offset, next_offset FROM queue_partition \
         WHERE topic_id = ? AND partition_no = ?",
    )
    .number(stream.0)
    .number(no.0);
    Ok(partitions(conn, "read the partition", statement).await?.pop())
}

async fn partitions(
    conn: &mut impl Connection,
    operation: &'static str,
    statement: Statement<'static>,
) -> Result<Vec<Partition>> {
    load_surely(conn, operation, statement).await
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
    let statement = Statement::new(
        "UPDATE queue_partition SET next_offset = next_offset + ? \
         WHERE topic_id = ? AND partition_no = ? AND next_offset = ?",
    )
    .number(by)
    .number(stream.0)
    .number(seen.no.0)
    .number(seen.next.0);
    equal(OPERATION, 1, execute_surely(conn, OPERATION, statement).await?)
}

/// PRIMARY: removes the stream's partitions; their messages must be gone already.
pub async fn delete(conn: &mut impl Connection, stream: TopicId) -> Result<usize> {
    let statement =
        Statement::new("DELETE FROM queue_partition WHERE topic_id = ?").number(stream.0);
    execute_surely(conn, "delete the partitions", statement).await
}

/// PRIMARY: moves the beginning of a partition: the oldest message kept is now `first`.
pub async fn cut(
    conn: &mut impl Connection,
    stream: TopicId,
    no: PartitionNo,
    first: Offset,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_partition SET first_offset = ? \
         WHERE topic_id = ? AND partition_no = ? AND first_offset < ? AND next_offset >= ?",
    )
    .number(first.0)
    .number(stream.0)
    .number(no.0)
    .number(first.0)
    .number(first.0);
    execute_surely(conn, "prune: cut the log", statement).await
}
