//! The positions of the named members of broadcast groups.

mod progress;

pub use self::progress::{MemberProgress, progress};

use diesel::prelude::*;

use crate::connection::Connection;
use crate::model::{MemberName, Offset, PartitionNo, Result, TopicId, WorkerId};
use crate::schema::functions::now;
use crate::schema::queue_member::{self, dsl};
use crate::schema::queue_worker;
use crate::store::{select_surely, write, write_surely};

/// A named member's position in a partition, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Queryable, Selectable)]
#[diesel(table_name = queue_member)]
pub struct MemberPosition {
    /// The partition.
    #[diesel(column_name = partition_no)]
    pub partition: PartitionNo,
    /// Its low-water mark: the lowest offset that the member has not acknowledged as handled.
    #[diesel(column_name = next_offset)]
    pub next: Offset,
    /// The worker that is the member; 0 if no worker has been since the position was set.
    #[diesel(column_name = worker_id)]
    pub worker: WorkerId,
}

impl MemberPosition {
    /// Returns a position that no worker holds.
    #[must_use]
    pub fn new(partition: PartitionNo, next: Offset) -> Self {
        Self { partition, next, worker: WorkerId(0) }
    }
}

/// PRIMARY, plain: reads the member's positions, by partition.
pub async fn positions(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<Vec<MemberPosition>> {
    let query = dsl::queue_member
        .filter(dsl::group_id.eq(group).and(dsl::name.eq(name)))
        .order(dsl::partition_no)
        .select(MemberPosition::as_select());
    select_surely(conn, "read the member's positions", query).await
}

/// PRIMARY: locks the member's positions: until the transaction ends no other session takes or
/// moves it.
pub async fn lock(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<Vec<MemberPosition>> {
    let query = dsl::queue_member
        .filter(dsl::group_id.eq(group).and(dsl::name.eq(name)))
        .order(dsl::partition_no)
        .select(MemberPosition::as_select())
        .for_update();
    select_surely(conn, "lock the member", query).await
}

/// PRIMARY: locks the positions of every named member of the group, in order.
pub async fn lock_all(conn: &mut impl Connection, group: TopicId) -> Result<Vec<MemberPosition>> {
    let query = dsl::queue_member
        .filter(dsl::group_id.eq(group))
        .order((dsl::group_id, dsl::name, dsl::partition_no))
        .select(MemberPosition::as_select())
        .for_update();
    select_surely(conn, "lock the members", query).await
}

/// PRIMARY of the workers, plain: returns whether the worker is alive, as far as is known.
pub async fn is_alive(conn: &mut impl Connection, worker: WorkerId) -> Result<bool> {
    let query = queue_worker::table
        .filter(queue_worker::id.eq(worker).and(queue_worker::state.eq(&b"alive"[..])))
        .select(queue_worker::id);
    let rows: Vec<WorkerId> = select_surely(conn, "look for the member's worker", query).await?;
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
    position: MemberPosition,
) -> Result<()> {
    let statement = diesel::insert_into(dsl::queue_member).values((
        dsl::group_id.eq(group),
        dsl::name.eq(name),
        dsl::partition_no.eq(position.partition),
        dsl::next_offset.eq(position.next),
        dsl::worker_id.eq(position.worker),
        dsl::told_at.eq(now()),
    ));
    write(conn, "make the member", statement).await?;
    Ok(())
}

/// PRIMARY: makes the worker the member from now on.
pub async fn take(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
    worker: WorkerId,
) -> Result<usize> {
    let statement =
        diesel::update(dsl::queue_member.filter(dsl::group_id.eq(group).and(dsl::name.eq(name))))
            .set((dsl::worker_id.eq(worker), dsl::told_at.eq(now())));
    write_surely(conn, "take the member", statement).await
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
    let own =
        dsl::queue_member.find((group, name, progress.partition)).filter(dsl::worker_id.eq(worker));
    let statement = diesel::update(own).set((
        dsl::next_offset.eq(progress.next),
        dsl::lost.eq(dsl::lost + progress.lost),
        dsl::told_at.eq(now()),
    ));
    write_surely(conn, "tell how far the member has come", statement).await
}

/// PRIMARY, all members of the group: moves their positions in a partition, and fences the workers
/// that hold them; returns how many members there are.
pub async fn reset(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    to: Offset,
) -> Result<usize> {
    let all = dsl::group_id.eq(group).and(dsl::partition_no.eq(partition));
    let statement = diesel::update(dsl::queue_member.filter(all)).set((
        dsl::next_offset.eq(to),
        dsl::worker_id.eq(WorkerId(0)),
        dsl::told_at.eq(now()),
    ));
    write_surely(conn, "reset the members", statement).await
}

/// PRIMARY: removes a member.
pub async fn delete(
    conn: &mut impl Connection,
    group: TopicId,
    name: &MemberName,
) -> Result<usize> {
    let statement =
        diesel::delete(dsl::queue_member.filter(dsl::group_id.eq(group).and(dsl::name.eq(name))));
    write_surely(conn, "forget the member", statement).await
}

/// PRIMARY: removes every member of the group.
pub async fn delete_all(conn: &mut impl Connection, group: TopicId) -> Result<usize> {
    let statement = diesel::delete(dsl::queue_member.filter(dsl::group_id.eq(group)));
    write_surely(conn, "forget the members", statement).await
}
