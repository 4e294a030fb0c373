//! Messages that are not due yet, whole.

use chrono::{DateTime, Utc};

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{Priority, Result, RowId, TopicId};
use crate::store::load;
use crate::store::moment::{MOMENT, micros};
use crate::store::stored::{STORED, Stored};

/// Where a message lies among the scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledPosition {
    /// Server time at which it becomes ready.
    pub due_at: DateTime<Utc>,
    /// Its row.
    pub row: RowId,
}

/// A scheduled message, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduled {
    /// Server time at which it becomes ready.
    pub due_at: DateTime<Utc>,
    /// Its priority.
    pub priority: Priority,
    /// The rest of it; the row is one among the scheduled.
    pub stored: Stored,
}

impl Scheduled {
    /// Returns where it lies.
    #[must_use]
    pub fn position(&self) -> ScheduledPosition {
        ScheduledPosition { due_at: self.due_at, row: self.stored.row }
    }
}

/// KEY (`topic_id`), forced, whose entries lie in the order of the primary key: reads the topic's
/// next messages after the place `after`, at most `limit`; locks nothing.
pub async fn read(
    conn: &mut impl Connection,
    topic: TopicId,
    after: Option<ScheduledPosition>,
    limit: u32,
) -> Result<Vec<Scheduled>> {
    let (due_at, row) = after.map_or((0, 0), |place| (micros(place.due_at), place.row.0));
    let statement = Statement::new(format!(
        "SELECT priority, due_at, {STORED} FROM queue_scheduled FORCE INDEX (queue_scheduled_topic) \
         WHERE topic_id = ? AND due_at >= {MOMENT} \
         AND (due_at > {MOMENT} OR id > ?) ORDER BY topic_id, due_at, id LIMIT ?"
    ))
    .number(topic.0)
    .number(due_at)
    .number(due_at)
    .number(row)
    .number(limit);
    load(conn, "read scheduled messages", statement).await
}

row! { Scheduled { priority, due_at, stored } }
