use super::ScanPosition;
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{Priority, Result, TopicId};
use crate::store::load;

/// The result of a walk from the start of a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// The first ready row in order of priority and id.
    pub first: Option<ScanPosition>,
    /// Whether there is a suspect to be claimed alone.
    pub suspect: bool,
}

/// PRIMARY, forced, two dives: finds the first ready row of the topic, by plain reads that lock
/// nothing. Also finds rows that committed late, below the marks (history H24).
///
/// It reads every dead entry and every claimed row before that row, once. The dive for suspects
/// goes backwards, because the server reads past an empty range to the next existing row: forwards
/// that is the head of the next topic, where dead entries lie; backwards it is the tail of this
/// topic, where rows were just added.
pub async fn walk(conn: &mut impl Connection, topic: TopicId) -> Result<Walk> {
    let statement = Statement::new(
        "(SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority <= ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT 1) \
         UNION ALL (SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority >= ? AND worker_id = 0 \
         ORDER BY topic_id DESC, priority DESC, id DESC LIMIT 1)",
    )
    .number(topic.0)
    .number(Priority::LAST.stored())
    .number(topic.0)
    .number(Priority::FIRST.suspect().stored());
    let rows: Vec<ScanPosition> = load(conn, "walk the topic", statement).await?;
    let mut walk = Walk::default();
    for place in rows {
        if place.priority.is_suspect() {
            walk.suspect = true;
        } else {
            walk.first = Some(place);
        }
    }
    Ok(walk)
}

/// PRIMARY, forced, plain: finds the first ready row at `place` or after it, of this priority or a
/// later one.
pub async fn next_ready(
    conn: &mut impl Connection,
    topic: TopicId,
    place: ScanPosition,
) -> Result<Option<ScanPosition>> {
    let statement = Statement::new(
        "SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND worker_id = 0 \
         AND ((priority = ? AND id >= ?) OR (priority > ? AND priority <= ?)) \
         ORDER BY topic_id, priority, id LIMIT 1",
    )
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(place.priority.stored())
    .number(Priority::LAST.stored());
    let rows: Vec<ScanPosition> = load(conn, "look for ready rows", statement).await?;
    Ok(rows.into_iter().next())
}

/// PRIMARY, forced, plain, one dive backwards (as in [`walk`]): finds the last priority before
/// `priority` that has a row, ready or not.
pub async fn urgent(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: Priority,
) -> Result<Option<Priority>> {
    let statement = Statement::new(
        "SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority < ? \
         ORDER BY topic_id DESC, priority DESC, id DESC LIMIT 1",
    )
    .number(topic.0)
    .number(priority.stored());
    let rows: Vec<ScanPosition> = load(conn, "look for urgent rows", statement).await?;
    Ok(rows.first().map(|place| place.priority))
}
