//! Messages of a log, as people look for them.

use chrono::NaiveDateTime;
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, Unsigned};

use super::log::Stretch;
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::found::{Filter, Found, State, Trace};
use crate::model::{
    ConnId, Group, GroupPart, Headers, MsgId, Offset, PartitionNo, Position, Priority, Result,
    RowId, TopicId, WorkerId,
};
use crate::store::find::{Bodies, plain_condition};
use crate::store::load;
use crate::store::row_set::placeholders;

/// What a look into a stretch of the log has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Looked {
    /// Those that are wanted, newest first.
    pub wanted: Vec<Offset>,
    /// How many messages were looked at.
    pub seen: usize,
    /// The oldest of them; `None` at the beginning of the stretch.
    pub oldest: Option<Offset>,
}

/// PRIMARY, forced, plain, backwards: the newest messages of a stretch, at most `limit`, and which
/// of them are wanted: they have one of the ids, if there are any, and whatever else of the filter
/// a log can tell.
pub async fn newest(
    conn: &mut impl Connection,
    stretch: Stretch,
    ids: &[MsgId],
    filter: &Filter,
    limit: u32,
) -> Result<Looked> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        offset_no: u64,
        #[diesel(sql_type = Bool)]
        wanted: bool,
    }
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
    let rows: Vec<Row> = load(conn, "search the log", statement).await?;
    let full = rows.len() >= limit as usize;
    Ok(Looked {
        seen: rows.len(),
        oldest: rows.last().filter(|_| full).map(|row| Offset(row.offset_no)),
        wanted: rows.iter().filter(|row| row.wanted).map(|row| Offset(row.offset_no)).collect(),
    })
}

#[derive(QueryableByName)]
struct LogRow {
    #[diesel(sql_type = Unsigned<Integer>)]
    partition_no: u32,
    #[diesel(sql_type = Unsigned<BigInt>)]
    offset_no: u64,
    #[diesel(sql_type = Nullable<Binary>)]
    topic: Option<Vec<u8>>,
    #[diesel(sql_type = Binary)]
    msg_id: Vec<u8>,
    #[diesel(sql_type = Datetime)]
    enqueued_at: NaiveDateTime,
    #[diesel(sql_type = Datetime)]
    sequenced_at: NaiveDateTime,
    #[diesel(sql_type = Nullable<Binary>)]
    ordering_key: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    biz_id: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    headers: Option<Vec<u8>>,
    #[diesel(sql_type = BigInt)]
    body_bytes: i64,
    #[diesel(sql_type = Nullable<Binary>)]
    body: Option<Vec<u8>>,
}

/// PRIMARY, forced, plain: these messages of a partition, at most 512, newest first.
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
    // Padded, so that the texts have few shapes and stay prepared.
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
    Ok(rows.into_iter().filter_map(LogRow::into_found).collect())
}

impl LogRow {
    /// `None` for a row that no program of ours can have written.
    fn into_found(self) -> Option<Found> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let position =
            Position { partition: PartitionNo(self.partition_no), offset: Offset(self.offset_no) };
        let trace = Trace {
            row: RowId(self.offset_no),
            priority: Priority::default(),
            delivery_no: 0,
            failures: 0,
            crashes: 0,
            error: None,
            headers: Headers::from_stored(self.headers.as_deref()),
            history: Vec::new(),
            progress: None,
            body_bytes: self.body_bytes.unsigned_abs(),
            body: self.body,
        };
        Some(Found {
            topic: self.topic.map(text).unwrap_or_default(),
            msg_id: MsgId::from_bytes(&self.msg_id)?,
            state: State::Logged { position, sequenced_at: self.sequenced_at.and_utc() },
            enqueued_at: self.enqueued_at.and_utc(),
            key: self.ordering_key.map(text),
            biz_id: self.biz_id.map(text),
            trace: Some(trace),
        })
    }
}

/// PRIMARY of the cursor, KEY (`group_id`, `partition_no`) of the ranges, plain: what a group has
/// made of a message of its stream; `None` if the group has no cursor there.
pub async fn part_of(
    conn: &mut impl Connection,
    group: Group,
    at: Position,
) -> Result<Option<GroupPart>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<BigInt>)]
        next_offset: u64,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        worker_id: Option<u64>,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        conn_id: Option<u64>,
        #[diesel(sql_type = Nullable<Binary>)]
        client_id: Option<Vec<u8>>,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        passed: Option<u64>,
    }
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
    let rows: Vec<Row> = load(conn, "read what a group has made of it", statement).await?;
    let part = |row: &Row| match (row.worker_id, row.passed) {
        (_, Some(_)) => GroupPart::Passed,
        (Some(0), None) => GroupPart::Waiting,
        (Some(worker), None) => GroupPart::Claimed {
            worker: WorkerId(worker),
            client_id: String::from_utf8_lossy(row.client_id.as_deref().unwrap_or_default()).into(),
            conn_id: ConnId(row.conn_id.unwrap_or(0)),
        },
        (None, None) if at.offset.0 < row.next_offset => GroupPart::Passed,
        (None, None) => GroupPart::Ahead,
    };
    Ok(rows.first().map(part))
}
