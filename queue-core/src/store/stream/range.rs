//! Claimed ranges of offsets: one row each, whatever their length.

mod held_back;
mod zombie;

pub use self::held_back::{HeldBack, held_back};
pub use self::zombie::{
    Timed, Zombie, free, left_of, lock, messages_of, orphans, timed, try_lock, zombies,
};

use diesel::dsl::auto_type;
use diesel::prelude::*;

use crate::connection::{Connection, Statement, row};
use crate::model::column::Time;
use crate::model::{
    ClaimNo, ConnId, DeliveryNo, FailedRun, Moment, Offset, PartitionNo, RangeId, Result, TopicId,
    WorkerId,
};
use crate::schema::functions::{connection_id, now};
use crate::schema::queue_range::dsl;
use crate::store::claim::Fence;
use crate::store::moves::{WITH_FAILED_RUN, equal};
use crate::store::rescue::SHARED_CRASHES;
use crate::store::{execute_surely, first_inserted, load, load_surely, write, write_surely};

/// A range, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Its row.
    pub id: RangeId,
    /// The group that claimed it.
    pub group: TopicId,
    /// The partition of its offsets.
    pub partition: PartitionNo,
    /// Its low-water mark: the first offset that is not settled yet.
    pub mark: Offset,
    /// The one after its last.
    pub hi: Offset,
    /// The claim that holds it; worker 0 if there is none.
    pub fence: Fence,
    /// How often it has been claimed.
    pub delivery_no: DeliveryNo,
    /// Failed handlings of the message at the mark, in an ordered group.
    pub failures: u32,
    /// Crashes of workers that held only the message at the mark.
    pub crashes: u32,
    /// Crashes of workers that held more than that.
    pub suspicions: u32,
}

row! {
    Range {
        id, group, partition, mark, hi, fence, delivery_no, failures, crashes, suspicions,
    }
}

const COLUMNS: &str = "r.id, r.group_id, r.partition_no, r.mark, r.hi, r.worker_id, r.claim_no, \
     r.delivery_no, r.failures, r.crashes, r.suspicions";

/// Which free ranges to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Those whose messages may be handled together.
    Shared,
    /// Those whose messages are handled alone.
    Suspect,
}

/// KEY (`group_id`, `partition_no`): locks the lowest range of the partition that can be claimed
/// again now, under the lock of its cursor.
pub async fn lock_free(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    wanted: Wanted,
) -> Result<Option<Range>> {
    let comparison = match wanted {
        Wanted::Shared => "<",
        Wanted::Suspect => ">=",
    };
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.partition_no = ? AND r.worker_id = 0 \
         AND (r.ready_at IS NULL OR r.ready_at <= UTC_TIMESTAMP(6)) \
         AND r.suspicions {comparison} {SHARED_CRASHES} \
         ORDER BY r.mark LIMIT 1 FOR UPDATE SKIP LOCKED"
    ))
    .number(group.0)
    .number(partition.0);
    let rows: Vec<Range> = load(conn, "claim: lock a free range", statement).await?;
    Ok(rows.into_iter().next())
}

/// KEY (`group_id`, `partition_no`), plain: reads the ranges of the partition.
pub async fn of_partition(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
) -> Result<Vec<Range>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.partition_no = ? ORDER BY r.mark"
    ))
    .number(group.0)
    .number(partition.0);
    load_surely(conn, "read the ranges", statement).await
}

/// KEY (`worker_id`, `claim_no`), plain: reads the worker's ranges.
pub async fn of_worker(conn: &mut impl Connection, worker: WorkerId) -> Result<Vec<Range>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r FORCE INDEX (queue_range_worker) \
         WHERE r.worker_id = ? ORDER BY r.claim_no"
    ))
    .number(worker.0);
    load_surely(conn, "compare ranges", statement).await
}

/// How a statement locks the rows it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Not at all.
    None,
    /// They stay as they are until the transaction ends; other sessions may share the lock.
    Shared,
    /// No other session locks them until the transaction ends.
    Alone,
}

/// KEY (`worker_id`, `claim_no`): reads those of the claims' ranges that the worker still owns.
pub async fn of_claims(
    conn: &mut impl Connection,
    worker: WorkerId,
    claims: &[ClaimNo],
    lock: Lock,
) -> Result<Vec<Range>> {
    let mut found = Vec::with_capacity(claims.len());
    for claim in claims {
        let statement = Statement::new(format!(
            "SELECT {COLUMNS} FROM queue_range r FORCE INDEX (queue_range_worker) \
             WHERE r.worker_id = ? AND r.claim_no = ?{}",
            match lock {
                Lock::None => "",
                Lock::Shared => " LOCK IN SHARE MODE",
                Lock::Alone => " FOR UPDATE",
            }
        ))
        .number(worker.0)
        .number(claim.0);
        let rows: Vec<Range> = load_surely(conn, "settle: read own ranges", statement).await?;
        found.extend(rows);
    }
    Ok(found)
}

/// PRIMARY: inserts a new range that the worker owns from the start.
pub async fn insert_own(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    offsets: (Offset, Offset),
    fence: Fence,
) -> Result<RangeId> {
    const OPERATION: &str = "claim: record the range";
    let statement = diesel::insert_into(dsl::queue_range).values((
        dsl::group_id.eq(group),
        dsl::partition_no.eq(partition),
        dsl::mark.eq(offsets.0),
        dsl::hi.eq(offsets.1),
        dsl::worker_id.eq(fence.worker),
        dsl::claim_no.eq(fence.claim_no),
        dsl::conn_id.eq(connection_id()),
        dsl::delivery_no.eq(DeliveryNo(1)),
        dsl::claimed_at.eq(now().nullable()),
    ));
    write(conn, OPERATION, statement).await?;
    Ok(RangeId(first_inserted(conn, OPERATION).await?))
}

/// PRIMARY: inserts a new free range, under the lock of its cursor.
pub async fn insert_free(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
    offsets: (Offset, Offset),
    delivery_no: DeliveryNo,
    suspicions: u32,
) -> Result<RangeId> {
    const OPERATION: &str = "make a range";
    let statement = diesel::insert_into(dsl::queue_range).values((
        dsl::group_id.eq(group),
        dsl::partition_no.eq(partition),
        dsl::mark.eq(offsets.0),
        dsl::hi.eq(offsets.1),
        dsl::delivery_no.eq(delivery_no),
        dsl::suspicions.eq(suspicions),
    ));
    write(conn, OPERATION, statement).await?;
    Ok(RangeId(first_inserted(conn, OPERATION).await?))
}

/// PRIMARY: claims a free range, locked by this transaction, up to `hi`.
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn take(
    conn: &mut impl Connection,
    range: RangeId,
    hi: Offset,
    fence: Fence,
) -> Result<()> {
    const OPERATION: &str = "claim: take a free range";
    let free = dsl::queue_range.find(range).filter(dsl::worker_id.eq(WorkerId(0)));
    let statement = diesel::update(free).set((
        dsl::hi.eq(hi),
        dsl::worker_id.eq(fence.worker),
        dsl::claim_no.eq(fence.claim_no),
        dsl::conn_id.eq(connection_id()),
        dsl::delivery_no.eq(dsl::delivery_no + 1_u32),
        dsl::ready_at.eq(None::<Time>),
        dsl::claimed_at.eq(now().nullable()),
    ));
    equal(OPERATION, 1, write_surely(conn, OPERATION, statement).await?)
}

/// PRIMARY: advances the mark from `from` to `to`: everything between is settled. 0 rows: the
/// worker no longer owns the range, or its mark is not at `from`.
pub async fn pass(
    conn: &mut impl Connection,
    range: RangeId,
    fence: Fence,
    (from, to): (Offset, Offset),
) -> Result<usize> {
    let own = owned(range, fence).filter(dsl::mark.eq(from));
    let statement = diesel::update(own).set((
        dsl::mark.eq(to),
        dsl::failures.eq(0),
        dsl::crashes.eq(0),
        dsl::history.eq(None::<Vec<u8>>),
    ));
    write_surely(conn, "settle: mark the range", statement).await
}

/// PRIMARY: ends a range of which everything is settled. 0 rows: the worker no longer owns it.
pub async fn end(conn: &mut impl Connection, range: RangeId, fence: Fence) -> Result<usize> {
    write_surely(conn, "settle: end the range", diesel::delete(owned(range, fence))).await
}

/// PRIMARY: gives the range back up to `hi`, with the failures and crashes of the message at its
/// mark. 0 rows: the worker no longer owns it.
pub async fn release(
    conn: &mut impl Connection,
    range: RangeId,
    fence: Fence,
    hi: Offset,
) -> Result<usize> {
    let statement = diesel::update(owned(range, fence)).set((
        dsl::hi.eq(hi),
        dsl::worker_id.eq(WorkerId(0)),
        dsl::claim_no.eq(ClaimNo(0)),
        dsl::conn_id.eq(ConnId(0)),
    ));
    write_surely(conn, "settle: release the range", statement).await
}

/// PRIMARY: gives the range back until its due time: the message at the mark failed, or is not to
/// be handled yet, and in an ordered group no message of its partition overtakes it. 0 rows: the
/// worker no longer owns it.
pub async fn hold_back(
    conn: &mut impl Connection,
    range: RangeId,
    fence: Fence,
    until: Moment,
    failure: Option<&str>,
) -> Result<usize> {
    // The history first: columns are set from left to right, and it names the worker.
    let statement = match failure {
        Some(error) => Statement::new(format!(
            "UPDATE queue_range SET history = {WITH_FAILED_RUN}, failures = failures + 1, "
        ))
        .bytes(FailedRun::line_end(error)),
        None => Statement::new("UPDATE queue_range SET "),
    };
    let statement = statement
        .sql(&format!("ready_at = {}, ", until.due_sql()))
        .sql("worker_id = 0, claim_no = 0, conn_id = 0 ")
        .sql("WHERE id = ? AND worker_id = ? AND claim_no = ?")
        .number(until.micros());
    execute_surely(conn, "settle: hold the range back", owned_by(statement, range, fence)).await
}

/// KEY (`group_id`, `partition_no`): locks every range of the partition, under the lock of its
/// cursor. Waits for handlers' transactions that ack a message of one: after this none is acked.
pub async fn lock_all(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
) -> Result<()> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.partition_no = ? FOR UPDATE"
    ))
    .number(group.0)
    .number(partition.0);
    load_surely::<Range>(conn, "lock the ranges", statement).await.map(|_| ())
}

/// KEY (`group_id`, `partition_no`): removes every range of the partition, under the lock of its
/// cursor: workers that hold one are fenced.
pub async fn forget(
    conn: &mut impl Connection,
    group: TopicId,
    partition: PartitionNo,
) -> Result<usize> {
    let statement = Statement::new(
        "DELETE r FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.partition_no = ?",
    )
    .number(group.0)
    .number(partition.0);
    execute_surely(conn, "forget the ranges", statement).await
}

/// The range, if the claim still holds it.
#[auto_type]
fn owned(range: RangeId, fence: Fence) -> _ {
    let worker: WorkerId = fence.worker;
    let claim_no: ClaimNo = fence.claim_no;
    dsl::queue_range.find(range).filter(dsl::worker_id.eq(worker).and(dsl::claim_no.eq(claim_no)))
}

fn owned_by(statement: Statement<'static>, range: RangeId, fence: Fence) -> Statement<'static> {
    statement.number(range.0).number(fence.worker.0).number(fence.claim_no.0)
}
