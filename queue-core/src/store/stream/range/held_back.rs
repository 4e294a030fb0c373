//! Ranges that wait for a message to be retried.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{FailedRun, Group, MsgId, Offset, PartitionNo, Result};
use crate::store::load;

/// A message that the others of its partition wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldBack {
    /// The partition.
    pub partition: PartitionNo,
    /// Its offset.
    pub offset: Offset,
    /// Its id; `None` if retention has removed it.
    pub msg_id: Option<MsgId>,
    /// How often it failed.
    pub failures: u32,
    /// When it is retried.
    pub ready_at: DateTime<Utc>,
    /// Its last error.
    pub last_error: Option<String>,
}

/// KEY (`group_id`, `partition_no`), each joined to PRIMARY of the log: reads the group's ranges
/// that are not due yet.
pub async fn held_back(conn: &mut impl Connection, group: Group) -> Result<Vec<HeldBack>> {
    let statement = Statement::new(
        "SELECT r.partition_no, r.mark, l.msg_id, r.failures, r.ready_at, r.history \
         FROM queue_range r FORCE INDEX (queue_range_place) LEFT JOIN queue_log l \
         ON l.topic_id = ? AND l.partition_no = r.partition_no AND l.offset_no = r.mark \
         WHERE r.group_id = ? AND r.ready_at > UTC_TIMESTAMP(6) ORDER BY r.partition_no, r.mark",
    )
    .number(group.stream.0)
    .number(group.id.0);
    load(conn, "read what is held back", statement).await
}

row! { HeldBack { partition, offset, msg_id, failures, ready_at, last_error: last_error } }

fn last_error(history: Option<Vec<u8>>) -> Option<String> {
    FailedRun::from_stored(&history?).pop().map(|run| run.error)
}
