//! How far named members have come, for operators and for retention.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::deserialize;
use diesel::mysql::Mysql;
use diesel::row::Row;
use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Columns, Connection, FromRow};
use crate::model::{Broadcast, MemberName, Offset, PartitionNo, Result, WorkerId};
use crate::store::load_surely;
use crate::store::moment::maybe_age;

/// How far a named member has come in a partition, for operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberProgress {
    /// The member.
    pub member: MemberName,
    /// The partition.
    pub partition: PartitionNo,
    /// The offset of the oldest message kept.
    pub first: Offset,
    /// The offset of the next message.
    pub end: Offset,
    /// Its low-water mark: the lowest offset that it has not acknowledged as handled.
    pub next: Offset,
    /// Messages from there on.
    pub lag: u64,
    /// How long the oldest of those has been in the log, in milliseconds; `None` if there is none.
    pub lag_ms: Option<u64>,
    /// Messages that retention removed before the member had read them.
    pub lost: u64,
    /// The living worker that is the member; `None` while there is none.
    pub worker: Option<WorkerId>,
    /// When it last acknowledged, was taken or was reset, server time.
    pub told_at: DateTime<Utc>,
}

impl MemberProgress {
    /// Returns how long the oldest of its messages has been in the log.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.lag_ms.map(Duration::from_millis)
    }
}

/// PRIMARY of members, partitions and workers, and a dive into the log for each row: reads how far
/// every named member of the group has come. The cost does not depend on the members' lag.
pub async fn progress(conn: &mut impl Connection, group: Broadcast) -> Result<Vec<MemberProgress>> {
    let statement = Statement::new(
        "SELECT m.name, m.partition_no, p.first_offset, p.next_offset AS end_offset, \
         m.next_offset, m.lost, w.id AS worker, m.told_at, \
         (SELECT TIMESTAMPDIFF(MICROSECOND, l.sequenced_at, UTC_TIMESTAMP(6)) DIV 1000 \
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
    load_surely(conn, "read how far the members have come", statement).await
}

impl FromRow for MemberProgress {
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> deserialize::Result<Self> {
        let (member, partition) = columns.take()?;
        let (first, end, next): (Offset, Offset, Offset) = columns.take()?;
        Ok(Self {
            member,
            partition,
            first,
            end,
            next,
            lag: end.0.saturating_sub(next.max(first).0),
            lost: columns.take()?,
            worker: columns.take()?,
            told_at: columns.take()?,
            lag_ms: maybe_age(columns.take()?),
        })
    }
}
