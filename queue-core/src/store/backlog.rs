//! Measures piece by piece how much a topic with a limit holds: no statement here reads more rows
//! than its caller allows.

use diesel::prelude::*;

use super::{Statement, load, select, write_surely};
use crate::connection::{Connection, row};
use crate::model::{Backlog, Priority, Result, RowId, Topic, TopicId};
use crate::schema::functions::now;
use crate::schema::queue_topic;

/// A priority of a topic that holds messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The priority as it is stored, suspects included.
    pub priority: u8,
    /// Its first row.
    pub first: RowId,
}

/// PRIMARY: finds the first row of each priority of a topic, one dive each. `from` has, for each of
/// [`priorities`], the row at which the dive begins. Rows that were settled long ago are dead
/// entries of the key until the server purges them, so the caller passes where live rows begin.
pub async fn starts(
    conn: &mut impl Connection,
    topic: TopicId,
    from: &[(u8, RowId)],
) -> Result<Vec<Start>> {
    const DIVE: &str = "(SELECT priority, id FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id >= ? ORDER BY topic_id, priority, id LIMIT 1)";
    let mut statement = Statement::new(vec![DIVE; from.len()].join(" UNION ALL "));
    for (priority, row) in from {
        statement = statement.number(topic.0).number(*priority).number(row.0);
    }
    load(conn, "measure a backlog", statement).await
}

row! { Start { priority, first } }

/// A priority of a topic that holds messages, and the rows it spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The priority as it is stored, suspects included.
    pub priority: u8,
    /// Its first row.
    pub first: RowId,
    /// Its last row.
    pub last: RowId,
}

/// PRIMARY: finds the first and last row of each priority of a topic, two dives each.
pub async fn spans(conn: &mut impl Connection, topic: TopicId) -> Result<Vec<Span>> {
    const DIVES: &str = "SELECT CAST(? AS UNSIGNED) AS priority, MIN(id) AS lo, \
         MAX(id) AS hi FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ?";
    let mut statement = Statement::new(vec![DIVES; priorities().count()].join(" UNION ALL "));
    for priority in priorities() {
        statement = statement.number(priority).number(topic.0).number(priority);
    }
    let rows: Vec<(u8, Option<RowId>, Option<RowId>)> =
        load(conn, "measure a topic", statement).await?;
    let span = |(priority, first, last): (u8, Option<RowId>, Option<RowId>)| {
        Some(Span { priority, first: first?, last: last? })
    };
    Ok(rows.into_iter().filter_map(span).collect())
}

/// Lists the priorities of stored messages, suspects included.
pub fn priorities() -> impl Iterator<Item = u8> {
    let suspects = Priority::all().map(Priority::suspect);
    Priority::all().chain(suspects).map(Priority::stored)
}

/// Consecutive rows of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedRows {
    /// How many there are.
    pub rows: u64,
    /// The last of them; `None` when there is none.
    pub last: Option<RowId>,
}

/// PRIMARY: counts up to `limit` rows of a topic and priority after `after` and up to `to`.
pub async fn count_rows(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: u8,
    (after, to): (RowId, RowId),
    limit: u32,
) -> Result<CountedRows> {
    let statement = Statement::new(
        "SELECT COUNT(*) AS n, MAX(id) AS last FROM (SELECT id FROM queue_message \
         FORCE INDEX (PRIMARY) WHERE topic_id = ? AND priority = ? AND id > ? AND id <= ? \
         ORDER BY topic_id, priority, id LIMIT ?) m",
    )
    .number(topic.0)
    .number(priority)
    .numbers([after.0, to.0])
    .number(limit);
    let counted: Vec<CountedRows> = load(conn, "measure a backlog", statement).await?;
    Ok(counted.first().copied().unwrap_or(CountedRows { rows: 0, last: None }))
}

row! { CountedRows { rows, last } }

/// PRIMARY: reads the size of body and headers of the first row at or after each of `places`, in
/// bytes, a dive each.
pub async fn sizes(
    conn: &mut impl Connection,
    topic: TopicId,
    places: &[(u8, RowId)],
) -> Result<Vec<u64>> {
    const DIVE: &str = "(SELECT LENGTH(body) + COALESCE(LENGTH(headers), 0) AS bytes \
         FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id >= ? ORDER BY topic_id, priority, id LIMIT 1)";
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let mut statement = Statement::new(vec![DIVE; places.len()].join(" UNION ALL "));
    for (priority, row) in places {
        statement = statement.number(topic.0).number(*priority).number(row.0);
    }
    load(conn, "measure a backlog", statement).await
}

/// PRIMARY: records a measurement, in the caller's transaction. Returns false if another session
/// has locked the topic's row: the sweeper does not wait, because it has other duties.
pub async fn publish(conn: &mut impl Connection, topic: &Topic, backlog: Backlog) -> Result<bool> {
    const OPERATION: &str = "write down a backlog";
    let query = queue_topic::table.find(topic.id);
    let lock = query.select(queue_topic::id).for_update().skip_locked();
    let locked: Vec<TopicId> = select(conn, OPERATION, lock).await?;
    if locked.is_empty() {
        return Ok(false);
    }
    let statement = diesel::update(query).set((
        queue_topic::backlog_depth.eq(backlog.depth),
        queue_topic::backlog_bytes.eq(backlog.bytes),
        queue_topic::backlog_full.eq(backlog.full),
        queue_topic::backlog_at.eq(now().nullable()),
    ));
    write_surely(conn, OPERATION, statement).await?;
    Ok(true)
}
