//! How far a group has come.

use std::time::Duration;

use diesel::deserialize;
use diesel::mysql::Mysql;
use diesel::row::Row;
use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Columns, Connection, FromRow};
use crate::model::{Group, Offset, PartitionNo, Result};
use crate::store::load_surely;
use crate::store::moment::maybe_age;

/// How far a group has come in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GroupProgress {
    /// The partition.
    pub partition: PartitionNo,
    /// The offset of the oldest message kept.
    pub first: Offset,
    /// The offset of the next message.
    pub end: Offset,
    /// The offset that the group claims next.
    pub cursor: Offset,
    /// Its low-water mark: the lowest offset that the group has not handled.
    pub mark: Offset,
    /// Messages that the group has not handled: not claimed yet, claimed, or given back.
    pub lag: u64,
    /// Those of them that members have claimed or given back.
    pub claimed: u64,
    /// How long the oldest unhandled message has been in the log, in milliseconds; `None` if there
    /// is none.
    pub lag_ms: Option<u64>,
    /// How long the oldest claim of a member has been held, in milliseconds; `None` when there is
    /// none.
    pub held_ms: Option<u64>,
    /// How often the group was reset.
    pub generation: u64,
    /// Messages that retention removed before the group had claimed them.
    pub lost: u64,
}

impl GroupProgress {
    /// Returns how long the oldest unhandled message has been in the log.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.lag_ms.map(Duration::from_millis)
    }

    /// Returns how long the oldest claim of a member has been held.
    #[must_use]
    pub fn held(&self) -> Option<Duration> {
        self.held_ms.map(Duration::from_millis)
    }
}

/// PRIMARY of cursors and partitions, KEY (`group_id`, `partition_no`) of the ranges, and a dive
/// into the log for each partition: reads how far the group has come. The cost does not depend on
/// its lag.
pub async fn of_group(conn: &mut impl Connection, group: Group) -> Result<Vec<GroupProgress>> {
    let statement = Statement::new(
        "SELECT s.*, \
         (SELECT TIMESTAMPDIFF(MICROSECOND, l.sequenced_at, UTC_TIMESTAMP(6)) DIV 1000 \
         FROM queue_log l FORCE INDEX (PRIMARY) WHERE l.topic_id = ? \
         AND l.partition_no = s.partition_no AND l.offset_no >= s.mark \
         ORDER BY l.topic_id, l.partition_no, l.offset_no LIMIT 1) AS lag_ms \
         FROM (SELECT c.partition_no, p.first_offset, p.next_offset AS end_offset, c.next_offset, \
         c.generation, c.lost, LEAST(c.next_offset, COALESCE(MIN(r.mark), c.next_offset)) AS mark, \
         CAST(COALESCE(SUM(r.hi - r.mark), 0) AS SIGNED) AS claimed, \
         TIMESTAMPDIFF(MICROSECOND, MIN(IF(r.worker_id = 0, NULL, r.claimed_at)), \
         UTC_TIMESTAMP(6)) DIV 1000 AS held_ms \
         FROM queue_cursor c \
         JOIN queue_partition p ON p.topic_id = ? AND p.partition_no = c.partition_no \
         LEFT JOIN queue_range r ON r.group_id = c.group_id AND r.partition_no = c.partition_no \
         WHERE c.group_id = ? GROUP BY c.partition_no, p.first_offset, p.next_offset, \
         c.next_offset, c.generation, c.lost) s ORDER BY s.partition_no",
    )
    .number(group.stream.0)
    .number(group.stream.0)
    .number(group.id.0);
    load_surely(conn, "read how far the group has come", statement).await
}

impl FromRow for GroupProgress {
    fn from_row<'r, R: Row<'r, Mysql>>(columns: &mut Columns<'_, R>) -> deserialize::Result<Self> {
        let (partition, first, end, cursor): (_, _, Offset, Offset) = columns.take()?;
        let (generation, lost, mark, claimed) = columns.take()?;
        Ok(Self {
            partition,
            first,
            end,
            cursor,
            mark,
            lag: end.0.saturating_sub(cursor.0) + claimed,
            claimed,
            held_ms: maybe_age(columns.take()?),
            lag_ms: maybe_age(columns.take()?),
            generation,
            lost,
        })
    }
}
