//! The positions of the named members of broadcast groups.

mod standing;

pub use self::standing::{MemberStanding, standings};

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{MemberName, Offset, PartitionNo, Result, TopicId, WorkerId};
use crate::store::{execute, execute_surely, load_surely};

/// A named member's position in a partition, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The partition.
    pub partition: PartitionNo,
    /// Its low-water mark: the lowest offset that the member has not acknowledged as handled.
    pub next: Offset,
    /// The worker that is the member; 0 if no worker has been since the position was set.
    pub worker: WorkerId,
}

row! { Place { partition, next, worker } }

impl Place {
    /// Returns a position that no worker holds.
    #[must_use]
    pub fn new(partition: PartitionNo, next: Offset) -> Self {
        Self { partition, next, worker: WorkerId(0) }
    }
}

const SELECT: &str = "SELECT partition_no, next_offset, worker_id FROM queue_member ";

/// PRIMARY, plain: reads the member's positions, by partition.
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

/// PRIMARY: locks the member's positions: until the transaction ends no other session takes or
/// moves it.
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

/// PRIMARY: locks the positions of every named member of the group, in order.
pub async fn lock_all(conn: &mut impl Connection, group: TopicId) -> Result<Vec<Place>> {
    let statement = Statement::new(SELECT)
        .sql("WHERE group_id = ? ORDER BY group_id, name, partition_no FOR UPDATE")
        .number(group.0);
    load_surely(conn, "lock the members", statement).await
}

/// PRIMARY of the workers, plain: returns whether the worker is alive, as far as is known.
pub async fn is_alive(conn: &mut impl Connection, worker: WorkerId) -> Result<bool> {
    let statement = Statement::new("SELECT id FROM queue_worker WHERE id = ? AND state = 'alive'")
        .number(worker.0);
    let rows: Vec<WorkerId> = load_surely(conn, "look for the member's worker", statement).await?;
    Ok(rows.contains(&worker))
}

/// PRIMARY: creates a new member's position in a partition.
///
/// # Errors
/// A [`Duplicate`](crate::Fault::Duplicate) failure if another session was quicker.
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

/// PRIMARY: makes the worker the member from now on.
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

/// A member's acknowledgement in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The partition.
    pub partition: PartitionNo,
    /// Its new low-water mark: the lowest offset that it has not handled.
    pub next: Offset,
    /// Messages that it has found removed by retention since its last acknowledgement.
    pub lost: u64,
}

/// PRIMARY: advances the member's low-water mark. 0 rows: the worker is no longer the member.
pub async fn report(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
    worker: WorkerId,
    progress: Progress,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_member SET next_offset = ?, lost = lost + ?, told_at = UTC_TIMESTAMP(6) \
         WHERE group_id = ? AND name = ? AND partition_no = ? AND worker_id = ?",
    )
    .number(progress.next.0)
    .number(progress.lost)
    .number(group.0)
    .bytes(name.as_str().as_bytes())
    .number(progress.partition.0)
    .number(worker.0);
    execute_surely(conn, "tell how far the member has come", statement).await
}

/// PRIMARY, all members of the group: moves their positions in a partition, and fences the workers
/// that hold them; returns how many members there are.
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
