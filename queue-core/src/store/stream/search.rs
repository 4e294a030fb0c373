//! Finding messages of a log.

use chrono::{DateTime, Utc};

use super::log::Stretch;
use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::found::{Filter, Found, State, Trace};
use crate::model::{
    ConnId, Group, GroupPart, Headers, MsgId, Offset, PartitionNo, Position, Priority, Result,
    RowId, TopicId, WorkerId,
};
use crate::store::find::{Bodies, plain_condition};
use crate::store::load;
use crate::store::row_set::placeholders;

/// The result of a search in a stretch of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// The messages that are wanted, newest first.
    pub wanted: Vec<Offset>,
    /// How many messages were read.
    pub seen: usize,
    /// The oldest of them; `None` at the beginning of the stretch.
    pub oldest: Option<Offset>,
}

/// PRIMARY, forced, plain, backwards: reads the newest messages of a stretch, at most `limit`, and
/// selects those that are wanted: messages that have one of the ids, if any are given, and meet the
/// rest of the filter, as far as a log records it.
pub async fn newest(
    conn: &mut impl Connection,
    stretch: Stretch,
    ids: &[MsgId],
    filter: &Filter,
    limit: u32,
) -> Result<Looked> {
    let statement = Statement::new("SELECT offset_no, (TRUE")
        .followed_by(plain_condition(ids, filter))
        .sql(
            ") AS wanted FROM queue_log FORCE INDEX (PRIMARY) WHERE topic_id = ? \
             AND partition_no = ? AND offset_no >= ? AND offset_no < ? \
             ORDER BY topic_id DESC, partition_no DESC, offset_no DESC LIMIT ?",
        )
        .number(stretch.stream.0)
        .number(stretch.partition.0)
        .number(stretch.lo.0)
        .number(stretch.hi.0)
        .number(limit);
    let rows: Vec<(Offset, bool)> = load(conn, "search the log", statement).await?;
    let full = rows.len() >= limit as usize;
    let wanted = rows.iter().filter(|(_, wanted)| *wanted);
    Ok(Looked {
        seen: rows.len(),
        oldest: rows.last().filter(|_| full).map(|(offset, _)| *offset),
        wanted: wanted.map(|(offset, _)| *offset).collect(),
    })
}

struct LogRow {
    position: Position,
    topic: Option<String>,
    msg_id: MsgId,
    enqueued_at: DateTime<Utc>,
    sequenced_at: DateTime<Utc>,
    key: Option<String>,
    biz_id: Option<String>,
    headers: Headers,
    body_bytes: u64,
    body: Option<Vec<u8>>,
}

row! {
    LogRow {
        position, topic, msg_id, enqueued_at, sequenced_at, key, biz_id, headers, body_bytes, body,
    }
}
row! { Position { partition, offset } }

/// PRIMARY, forced, plain: reads these messages of a partition, at most 512, newest first.
pub async fn at(
    conn: &mut impl Connection,
    stream: TopicId,
    partition: PartitionNo,
    offsets: &[Offset],
    bodies: Bodies,
) -> Result<Vec<Found>> {
    let Some(last) = offsets.last() else { return Ok(Vec::new()) };
    let body = match bodies {
        Bodies::Read => "l.body",
        Bodies::Leave => "NULL",
    };
    // Padded, so that there are few statement texts and they stay prepared.
    let n = offsets.len().next_power_of_two();
    let padded = offsets.iter().chain(std::iter::repeat(last)).take(n);
    let statement = Statement::new(format!(
        "SELECT l.partition_no, l.offset_no, (SELECT t.name FROM queue_topic t \
         WHERE t.id = l.topic_id) AS topic, l.msg_id, l.enqueued_at, l.sequenced_at, \
         l.ordering_key, l.biz_id, l.headers, LENGTH(l.body) AS body_bytes, {body} AS body \
         FROM queue_log l FORCE INDEX (PRIMARY) WHERE l.topic_id = ? AND l.partition_no = ? \
         AND l.offset_no IN ({}) ORDER BY l.topic_id DESC, l.partition_no DESC, l.offset_no DESC",
        placeholders(n)
    ))
    .number(stream.0)
    .number(partition.0)
    .numbers(padded.map(|offset| offset.0));
    let rows: Vec<LogRow> = load(conn, "read what was found in the log", statement).await?;
    Ok(rows.into_iter().map(Found::from).collect())
}

impl From<LogRow> for Found {
    fn from(row: LogRow) -> Self {
        let trace = Trace {
            row: RowId(row.position.offset.0),
            priority: Priority::default(),
            delivery_no: 0,
            failures: 0,
            crashes: 0,
            error: None,
            headers: row.headers,
            history: Vec::new(),
            progress: None,
            body_bytes: row.body_bytes,
            body: row.body,
        };
        Self {
            topic: row.topic.unwrap_or_default(),
            msg_id: row.msg_id,
            state: State::Logged { position: row.position, sequenced_at: row.sequenced_at },
            enqueued_at: row.enqueued_at,
            key: row.key,
            biz_id: row.biz_id,
            trace: Some(trace),
        }
    }
}

/// PRIMARY of the cursor, KEY (`group_id`, `partition_no`) of the ranges, plain: reads what a group
/// has done with a message of its stream; `None` if the group has no cursor there.
pub async fn part_of(
    conn: &mut impl Connection,
    group: Group,
    at: Position,
) -> Result<Option<GroupPart>> {
    let statement = Statement::new(
        "SELECT c.next_offset, r.worker_id, r.conn_id, w.client_id, p.offset_no AS passed \
         FROM queue_cursor c LEFT JOIN queue_range r ON r.group_id = c.group_id \
         AND r.partition_no = c.partition_no AND r.mark <= ? AND r.hi > ? \
         LEFT JOIN queue_worker w ON w.id = r.worker_id \
         LEFT JOIN queue_passed p ON p.range_id = r.id AND p.offset_no = ? \
         WHERE c.group_id = ? AND c.partition_no = ? ORDER BY r.id LIMIT 1",
    )
    .numbers([at.offset.0; 3])
    .number(group.id.0)
    .number(at.partition.0);
    type Row = (Offset, Option<WorkerId>, Option<ConnId>, Option<String>, Option<Offset>);
    let rows: Vec<Row> = load(conn, "read what a group has made of it", statement).await?;
    let part = |(next, worker, conn, client_id, passed): Row| match (worker, passed) {
        (_, Some(_)) => GroupPart::Passed,
        (Some(WorkerId(0)), None) => GroupPart::Waiting,
        (Some(worker), None) => GroupPart::Claimed {
            worker,
            client_id: client_id.unwrap_or_default(),
            conn_id: conn.unwrap_or(ConnId(0)),
        },
        (None, None) if at.offset < next => GroupPart::Passed,
        (None, None) => GroupPart::Ahead,
    };
    Ok(rows.into_iter().next().map(part))
}
