//! Who holds what of streams, for people.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Unsigned};
use serde::Serialize;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Group, MemberName, Offset, PartitionNo, Result, TopicName, WorkerId};
use crate::store::load;

/// What a worker holds of streams, all groups together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RangesHeld {
    /// The worker.
    pub worker: WorkerId,
    /// How many ranges.
    pub ranges: u64,
    /// Messages in them that are not settled, or of which that is not told yet.
    pub messages: u64,
}

/// KEY (`worker_id`, `claim_no`): what each worker has claimed of streams, those that have ended
/// included; who has nothing is left out. Reads every claimed range, which is a row whatever it
/// holds.
pub async fn ranges_held(conn: &mut impl Connection) -> Result<Vec<RangesHeld>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        worker_id: u64,
        #[diesel(sql_type = BigInt)]
        ranges: i64,
        #[diesel(sql_type = BigInt)]
        messages: i64,
    }
    let statement = Statement::new(
        "SELECT r.worker_id, COUNT(*) AS ranges, \
         CAST(COALESCE(SUM(r.hi - r.mark), 0) AS SIGNED) AS messages \
         FROM queue_range r FORCE INDEX (queue_range_worker) \
         WHERE r.worker_id > 0 GROUP BY r.worker_id ORDER BY r.worker_id",
    );
    let rows: Vec<Row> = load(conn, "count the ranges of the workers", statement).await?;
    let held = |row: Row| RangesHeld {
        worker: WorkerId(row.worker_id),
        ranges: row.ranges.unsigned_abs(),
        messages: row.messages.unsigned_abs(),
    };
    Ok(rows.into_iter().map(held).collect())
}

/// A name that a worker has in a broadcast group.
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

/// PRIMARY of the members, joined to PRIMARY of workers and topics: the names that workers which
/// live have in broadcast groups. Reads every named member; those without a name have no row.
pub async fn names_held(conn: &mut impl Connection) -> Result<Vec<NameHeld>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        worker_id: u64,
        #[diesel(sql_type = Binary)]
        group_name: Vec<u8>,
        #[diesel(sql_type = Binary)]
        name: Vec<u8>,
    }
    let statement = Statement::new(
        "SELECT DISTINCT m.worker_id, t.name AS group_name, m.name FROM queue_member m \
         JOIN queue_worker w ON w.id = m.worker_id AND w.state = 'alive' \
         JOIN queue_topic t ON t.id = m.group_id ORDER BY m.worker_id, t.name, m.name",
    );
    let rows: Vec<Row> = load(conn, "read who is which member", statement).await?;
    let held = |row: Row| {
        Ok(NameHeld {
            worker: WorkerId(row.worker_id),
            group: TopicName::new(String::from_utf8_lossy(&row.group_name))?,
            member: MemberName::new(String::from_utf8_lossy(&row.name))?,
        })
    };
    rows.into_iter().map(held).collect()
}

/// Where the messages of a claim lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Held {
    /// In the log.
    Log {
        /// The partition.
        partition: PartitionNo,
        /// The first that is not settled, as far as the member has told.
        mark: Offset,
        /// The one after its last.
        hi: Offset,
    },
    /// Under the group's own topic: they failed before and are tried again.
    Retries,
}

/// What a member of a group has claimed at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupClaim {
    /// The member.
    pub worker: WorkerId,
    /// Who it is, for people; `None` if its row is gone.
    pub client_id: Option<String>,
    /// `alive`, `dead` or `stopped`; of the last two a janitor is about to take the claim back.
    pub state: Option<String>,
    /// Where its messages lie.
    #[serde(flatten)]
    pub held: Held,
    /// How many: of the log those that are not settled as far as it has told, of retries those that
    /// it claimed.
    pub messages: u64,
    /// When it claimed them, server time.
    pub claimed_at: DateTime<Utc>,
    /// How long ago that is, in milliseconds.
    pub age_ms: u64,
}

#[derive(QueryableByName)]
struct ClaimRow {
    #[diesel(sql_type = Unsigned<BigInt>)]
    worker_id: u64,
    #[diesel(sql_type = Nullable<Binary>)]
    client_id: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    state: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    partition_no: Option<u32>,
    #[diesel(sql_type = Unsigned<BigInt>)]
    lo: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    hi: u64,
    #[diesel(sql_type = BigInt)]
    messages: i64,
    #[diesel(sql_type = Datetime)]
    claimed_at: NaiveDateTime,
    #[diesel(sql_type = BigInt)]
    age_ms: i64,
}

/// KEY (`group_id`, `partition_no`) of the ranges and KEY (`topic_id`, …) of the claims, joined to
/// PRIMARY of the workers: what the members of the group have claimed, the oldest claim first.
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
    let rows: Vec<ClaimRow> = load(conn, "read what the members hold", statement).await?;
    Ok(rows.into_iter().map(GroupClaim::from).collect())
}

impl From<ClaimRow> for GroupClaim {
    fn from(row: ClaimRow) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let held = match row.partition_no {
            Some(no) => {
                Held::Log { partition: PartitionNo(no), mark: Offset(row.lo), hi: Offset(row.hi) }
            }
            None => Held::Retries,
        };
        Self {
            worker: WorkerId(row.worker_id),
            client_id: row.client_id.map(text),
            state: row.state.map(text),
            held,
            messages: row.messages.unsigned_abs(),
            claimed_at: row.claimed_at.and_utc(),
            age_ms: u64::try_from(row.age_ms).unwrap_or(0),
        }
    }
}
