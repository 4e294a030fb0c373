//! How far named members have come, for people and for the retention.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Unsigned};
use serde::Serialize;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Broadcast, MemberName, Offset, PartitionNo, Result, WorkerId};
use crate::store::load_surely;

/// How far a named member has come in a partition, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberStanding {
    /// The member.
    pub member: MemberName,
    /// The partition.
    pub partition: PartitionNo,
    /// The offset of the oldest message kept.
    pub first: Offset,
    /// The offset of the next message.
    pub end: Offset,
    /// The lowest offset that it is not through with, as far as it has told.
    pub next: Offset,
    /// Messages from there on.
    pub lag: u64,
    /// How long the oldest of those has been there, in milliseconds; `None` when there is none.
    pub lag_ms: Option<u64>,
    /// Messages that retention removed before it had read them.
    pub lost: u64,
    /// The worker that is the member and lives; `None` while none is.
    pub worker: Option<WorkerId>,
    /// When it last told, was taken or was reset, server time.
    pub told_at: DateTime<Utc>,
}

impl MemberStanding {
    /// How long the oldest message has waited for the member.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.lag_ms.map(Duration::from_millis)
    }
}

/// PRIMARY of members, partitions and workers, and a dive into the log for each row: how far every
/// named member of the group has come, whatever it has before it.
pub async fn standings(
    conn: &mut impl Connection,
    group: Broadcast,
) -> Result<Vec<MemberStanding>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Binary)]
        name: Vec<u8>,
        #[diesel(sql_type = Unsigned<Integer>)]
        partition_no: u32,
        #[diesel(sql_type = Unsigned<BigInt>)]
        first_offset: u64,
        #[diesel(sql_type = Unsigned<BigInt>)]
        end_offset: u64,
        #[diesel(sql_type = Unsigned<BigInt>)]
        next_offset: u64,
        #[diesel(sql_type = Nullable<BigInt>)]
        lag_ms: Option<i64>,
        #[diesel(sql_type = Unsigned<BigInt>)]
        lost: u64,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        worker: Option<u64>,
        #[diesel(sql_type = Datetime)]
        told_at: NaiveDateTime,
    }
    let statement = Statement::new(
        "SELECT m.name, m.partition_no, p.first_offset, p.next_offset AS end_offset, \
         m.next_offset, m.lost, w.id AS worker, m.told_at, \
         (SELECT TIMESTAMPDIFF(MICROSECOND, l.enqueued_at, UTC_TIMESTAMP(6)) DIV 1000 \
         FROM queue_log l FORCE INDEX (PRIMARY) WHERE l.topic_id = ? \
         AND l.partition_no = m.partition_no AND l.offset_no >= m.next_offset \
         ORDER BY l.topic_id, l.partition_no, l.offset_no LIMIT 1) AS lag_ms \
         FROM queue_member m \
         JOIN queue_partition p ON p.topic_id = ? AND p.partition_no = m.partition_no \
         LEFT JOIN queue_worker w ON w.id = m.worker_id AND w.state = 'alive' \
         WHERE m.group_id = ? ORDER BY m.name, m.partition_no",
    )
    .number(group.stream.0)
    .number(group.stream.0)
    .number(group.id.0);
    let rows: Vec<Row> = load_surely(conn, "read how far the members have come", statement).await?;
    let standing = |row: Row| {
        let kept = row.next_offset.max(row.first_offset);
        Ok(MemberStanding {
            member: MemberName::new(String::from_utf8_lossy(&row.name))?,
            partition: PartitionNo(row.partition_no),
            first: Offset(row.first_offset),
            end: Offset(row.end_offset),
            next: Offset(row.next_offset),
            lag: row.end_offset.saturating_sub(kept),
            lag_ms: row.lag_ms.map(|ms| u64::try_from(ms).unwrap_or(0)),
            lost: row.lost,
            worker: row.worker.map(WorkerId),
            told_at: row.told_at.and_utc(),
        })
    };
    rows.into_iter().map(standing).collect()
}
