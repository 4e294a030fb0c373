//! Ranges that wait for a message to be retried.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::connection::{Connection, Statement, row};
use crate::model::{FailedRun, Group, MsgId, Offset, PartitionNo, Result};
use crate::store::load;
use crate::store::stream::log::{self, Stretch};

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

/// KEY (`group_id`, `partition_no`), and PRIMARY of the log for each: reads the group's ranges
/// that are not due yet.
pub async fn held_back(conn: &mut impl Connection, group: Group) -> Result<Vec<HeldBack>> {
    let statement = Statement::new(
        "SELECT r.partition_no, r.mark, NULL, r.failures, r.ready_at, r.history \
         FROM queue_range r FORCE INDEX (queue_range_place) \
         WHERE r.group_id = ? AND r.ready_at > UTC_TIMESTAMP(6) ORDER BY r.partition_no, r.mark",
    )
    .number(group.id.0);
    let mut held_back: Vec<HeldBack> = load(conn, "read what is held back", statement).await?;
    for one in &mut held_back {
        let (lo, hi) = (one.offset, Offset(one.offset.0 + 1));
        let stretch = Stretch { stream: group.stream, partition: one.partition, lo, hi };
        one.msg_id = log::msg_ids(conn, stretch).await?.first().map(|(_, id)| *id);
    }
    Ok(held_back)
}

row! { HeldBack { partition, offset, msg_id, failures, ready_at, last_error: last_error } }

fn last_error(history: Option<Vec<u8>>) -> Option<String> {
    FailedRun::from_stored(&history?).pop().map(|run| run.error)
}
