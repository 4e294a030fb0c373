//! What each worker holds of streams, for operators.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{Group, MemberName, Offset, PartitionNo, Result, TopicName, WorkerId};
use crate::store::load;
use crate::store::moment::age;

/// What a worker holds of streams, over all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RangesHeld {
    /// The worker.
    pub worker: WorkerId,
    /// How many ranges it holds.
    pub ranges: u64,
    /// Messages in them that are not known to be settled.
    pub messages: u64,
}

/// KEY (`worker_id`, `claim_no`): counts what each worker has claimed of streams, including workers
/// that have ended; workers without claims are left out. Reads every claimed range, which is one
/// row whatever it holds.
pub async fn ranges_held(conn: &mut impl Connection) -> Result<Vec<RangesHeld>> {
    let statement = Statement::new(
        "SELECT r.worker_id, COUNT(*) AS ranges, \
         CAST(COALESCE(SUM(r.hi - r.mark), 0) AS SIGNED) AS messages \
         FROM queue_range r FORCE INDEX (queue_range_worker) \
         WHERE r.worker_id > 0 GROUP BY r.worker_id ORDER BY r.worker_id",
    );
    load(conn, "count the ranges of the workers", statement).await
}

row! { RangesHeld { worker, ranges, messages } }

/// A name that a worker holds in a broadcast group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct NameHeld {
    /// The worker.
    #[serde(skip)]
    pub worker: WorkerId,
    /// The group.
    pub group: TopicName,
    /// The member.
    pub member: MemberName,
}

/// PRIMARY of the members, joined to PRIMARY of workers and topics: lists the names that living
/// workers hold in broadcast groups. Reads every named member; those without a name have no row.
pub async fn names_held(conn: &mut impl Connection) -> Result<Vec<NameHeld>> {
    let statement = Statement::new(
        "SELECT DISTINCT m.worker_id, t.name AS group_name, m.name FROM queue_member m \
         JOIN queue_worker w ON w.id = m.worker_id AND w.state = 'alive' \
         JOIN queue_topic t ON t.id = m.group_id ORDER BY m.worker_id, t.name, m.name",
    );
    load(conn, "read who is which member", statement).await
}

row! { NameHeld { worker, group, member } }

/// Where the messages of a claim lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Held {
    /// In the log.
    Log {
        /// The partition.
        partition: PartitionNo,
        /// The first that is not settled, as far as the member has acknowledged.
        mark: Offset,
        /// The one after its last.
        hi: Offset,
    },
    /// Under the group's own topic: they failed before and are retried.
    Retries,
}

/// One claim of a group's member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupClaim {
    /// The member.
    pub worker: WorkerId,
    /// Its client id, for operators; `None` if its row is gone.
    pub client_id: Option<String>,
    /// `alive`, `dead` or `stopped`; if dead or stopped, a janitor is about to take the claim back.
    pub state: Option<String>,
    /// Where its messages lie.
    #[serde(flatten)]
    pub held: Held,
    /// How many: of the log, those not settled as far as the member has acknowledged; of retries,
    /// those it claimed.
    pub messages: u64,
    /// When it claimed them, server time.
    pub claimed_at: DateTime<Utc>,
    /// How long ago that is, in milliseconds.
    pub age_ms: u64,
}

/// KEY (`group_id`, `partition_no`) of the ranges and KEY (`topic_id`, …) of the claims, joined to
/// PRIMARY of the workers: lists what the members of the group have claimed, the oldest claim
/// first.
pub async fn claims_of_group(conn: &mut impl Connection, group: Group) -> Result<Vec<GroupClaim>> {
    let statement = Statement::new(
        "SELECT h.*, w.client_id, w.state, \
         TIMESTAMPDIFF(MICROSECOND, h.claimed_at, UTC_TIMESTAMP(6)) DIV 1000 AS age_ms FROM ( \
         SELECT r.worker_id, r.partition_no, r.mark AS lo, r.hi, \
         CAST(r.hi - r.mark AS SIGNED) AS messages, \
         COALESCE(r.claimed_at, UTC_TIMESTAMP(6)) AS claimed_at \
         FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.worker_id > 0 \
         UNION ALL SELECT c.worker_id, NULL, c.lo, c.hi, CAST(c.n AS SIGNED), c.claimed_at \
         FROM queue_claim c FORCE INDEX (queue_claim_frontier) WHERE c.topic_id = ?) h \
         LEFT JOIN queue_worker w ON w.id = h.worker_id \
         ORDER BY h.claimed_at, h.worker_id, h.partition_no, h.lo",
    )
    .number(group.id.0)
    .number(group.id.0);
    load(conn, "read what the members hold", statement).await
}

row! {
    GroupClaim { worker, held: held, messages, claimed_at, client_id, state, age_ms: age }
}

fn held((partition, mark, hi): (Option<PartitionNo>, Offset, Offset)) -> Held {
    partition.map_or(Held::Retries, |partition| Held::Log { partition, mark, hi })
}
