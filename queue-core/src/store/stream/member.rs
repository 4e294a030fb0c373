//! How far the named members of broadcast groups have come.

mod standing;

pub use self::standing::{MemberStanding, standings};

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{MemberName, Offset, PartitionNo, Result, TopicId, WorkerId};
use crate::store::{execute, execute_surely, load_surely};

/// A named member's place in a partition, as its row tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The partition.
    pub partition: PartitionNo,
    /// The lowest offset that the member is not through with, as far as it has told.
    pub next: Offset,
    /// The worker that is the member; 0 if none has been since it was put here.
    pub worker: WorkerId,
}

row! { Place { partition, next, worker } }

impl Place {
    /// A place that no worker has.
    #[must_use]
    pub fn new(partition: PartitionNo, next: Offset) -> Self {
        Self { partition, next, worker: WorkerId(0) }
    }
}

const SELECT: &str = "SELECT partition_no, next_offset, worker_id FROM queue_member ";

/// PRIMARY, plain: the member's places, by partition.
pub async fn places(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<Vec<Place>> {
    let statement = Statement::new(SELECT)
        .sql("WHERE group_id = ? AND name = ? ORDER BY partition_no")
        .number(group.0)
        .bytes(name.as_str().as_bytes());
    load_surely(conn, "read the member's places", statement).await
}

/// PRIMARY: locks the member's places: until the transaction ends nobody takes or moves it.
pub async fn lock(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<Vec<Place>> {
    let statement = Statement::new(SELECT)
        .sql("WHERE group_id = ? AND name = ? ORDER BY partition_no FOR UPDATE")
        .number(group.0)
        .bytes(name.as_str().as_bytes());
    load_surely(conn, "lock the member", statement).await
}

/// PRIMARY: locks the places of every named member of the group, in order.
pub async fn lock_all(conn: &mut impl Connection, group: TopicId) -> Result<Vec<Place>> {
    let statement = Statement::new(SELECT)
        .sql("WHERE group_id = ? ORDER BY group_id, name, partition_no FOR UPDATE")
        .number(group.0);
    load_surely(conn, "lock the members", statement).await
}

/// PRIMARY of the workers, plain: whether the worker is alive, as far as anybody has found out.
pub async fn is_alive(conn: &mut impl Connection, worker: WorkerId) -> Result<bool> {
    let statement = Statement::new("SELECT id FROM queue_worker WHERE id = ? AND state = 'alive'")
        .number(worker.0);
    let rows: Vec<WorkerId> = load_surely(conn, "look for the member's worker", statement).await?;
    Ok(rows.contains(&worker))
}

/// PRIMARY: a new member's place in a partition.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure if somebody was quicker.
pub async fn create(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
    place: Place,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_member (group_id, name, partition_no, next_offset, worker_id, told_at) \
         VALUES (?, ?, ?, ?, ?, UTC_TIMESTAMP(6))",
    )
    .number(group.0)
    .bytes(name.as_str().as_bytes())
    .number(place.partition.0)
    .number(place.next.0)
    .number(place.worker.0);
    execute(conn, "make the member", statement).await?;
    Ok(())
}

/// PRIMARY: the worker is the member from now on.
pub async fn take(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
    worker: WorkerId,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_member SET worker_id = ?, told_at = UTC_TIMESTAMP(6) \
         WHERE group_id = ? AND name = ?",
    )
    .number(worker.0)
    .number(group.0)
    .bytes(name.as_str().as_bytes());
    execute_surely(conn, "take the member", statement).await
}

/// How far a member has come in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The partition.
    pub partition: PartitionNo,
    /// The lowest offset that it is not through with.
    pub next: Offset,
    /// Messages that it has found removed by retention since it told last.
    pub lost: u64,
}

/// PRIMARY: the member has come so far. 0 rows: it is not the worker's own any more.
pub async fn tell(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
    worker: WorkerId,
    told: Told,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_member SET next_offset = ?, lost = lost + ?, told_at = UTC_TIMESTAMP(6) \
         WHERE group_id = ? AND name = ? AND partition_no = ? AND worker_id = ?",
    )
    .number(told.next.0)
    .number(told.lost)
    .number(group.0)
    .bytes(name.as_str().as_bytes())
    .number(told.partition.0)
    .number(worker.0);
    execute_surely(conn, "tell how far the member has come", statement).await
}

/// PRIMARY, all members of the group: puts them elsewhere in a partition, and fences the workers
/// that have them; how many they are.
pub async fn reset(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    to: Offset,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_member SET next_offset = ?, worker_id = 0, told_at = UTC_TIMESTAMP(6) \
         WHERE group_id = ? AND partition_no = ?",
    )
    .number(to.0)
    .number(group.0)
    .number(partition.0);
    execute_surely(conn, "reset the members", statement).await
}

/// PRIMARY: removes a member.
pub async fn delete(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_member WHERE group_id = ? AND name = ?")
        .number(group.0)
        .bytes(name.as_str().as_bytes());
    execute_surely(conn, "forget the member", statement).await
}

/// PRIMARY: removes every member of the group.
pub async fn delete_all(conn: &mut impl Connection, group: TopicId) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_member WHERE group_id = ?").number(group.0);
    execute_surely(conn, "forget the members", statement).await
}
