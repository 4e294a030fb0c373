//! Finding messages in whatever table they are: by their ids in one statement over every table, or
//! by reading a bounded number of a table's rows in the order of its key.

use chrono::{DateTime, Utc};

use super::inspect::MessageTable;
use super::lookup::padded;
use super::moment::{LATEST, MOMENT, micros};
use super::row_set::{RowSet, placeholders};
use super::{Statement, load};
use crate::connection::{Connection, row};
use crate::model::found::{Filter, Found, State, StateWord, Trace};
use crate::model::{
    FailedRun, Headers, MsgId, Percent, Priority, Result, RowId, TopicId, WorkerId,
};

/// Whether to read bodies, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bodies {
    /// Read them.
    Read,
    /// Read only their lengths.
    Leave,
}

struct FoundRow {
    state: String,
    row: RowId,
    topic_id: TopicId,
    topic: Option<String>,
    msg_id: MsgId,
    priority: Priority,
    delivery_no: u32,
    failures: u32,
    crashes: u32,
    enqueued_at: DateTime<Utc>,
    key: Option<String>,
    biz_id: Option<String>,
    headers: Headers,
    history: Option<Vec<u8>>,
    body_bytes: u64,
    body: Option<Vec<u8>>,
    at: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    worker: Option<WorkerId>,
    client_id: Option<String>,
    conn_id: Option<u64>,
    cause: Option<String>,
    error: Option<String>,
    progress: Option<Percent>,
}

row! {
    FoundRow {
        state, row, topic_id, topic, msg_id, priority, delivery_no, failures, crashes, enqueued_at,
        key, biz_id, headers, history, body_bytes, body, at, until, worker, client_id, conn_id,
        cause, error, progress,
    }
}

/// Selects the same columns from every table, which the statements call `f`.
fn columns(table: MessageTable, bodies: Bodies) -> String {
    let (state, rest) = match table {
        MessageTable::Ready => (
            "IF(f.worker_id = 0, 'ready', 'claimed')",
            "NULL AS at, NULL AS until, f.worker_id AS worker, (SELECT w.client_id \
             FROM queue_worker w WHERE w.id = f.worker_id) AS client_id, f.conn_id, \
             NULL AS cause, NULL AS error",
        ),
        MessageTable::Scheduled => (
            "'scheduled'",
            "f.due_at AS at, NULL AS until, NULL AS worker, NULL AS client_id, NULL AS conn_id, \
             NULL AS cause, f.last_error AS error",
        ),
        MessageTable::Dead => (
            "'dead'",
            "f.died_at AS at, NULL AS until, NULL AS worker, NULL AS client_id, NULL AS conn_id, \
             f.cause, f.last_error AS error",
        ),
        MessageTable::Archive => (
            "f.outcome",
            "f.settled_at AS at, f.keep_until AS until, NULL AS worker, NULL AS client_id, \
             NULL AS conn_id, NULL AS cause, f.reason AS error",
        ),
    };
    let body = match bodies {
        Bodies::Read => "f.body",
        Bodies::Leave => "NULL",
    };
    format!(
        "SELECT {state} AS state, f.id AS row_id, f.topic_id, (SELECT t.name FROM queue_topic t \
         WHERE t.id = f.topic_id) AS topic, f.msg_id, f.priority, f.delivery_no, f.failures, \
         f.crashes, f.enqueued_at, f.ordering_key, f.biz_id, LEFT(f.headers, 65537) AS headers, f.history, \
         LENGTH(f.body) AS body_bytes, {body} AS body, {rest}, (SELECT k.progress \
         FROM queue_checkpoint k WHERE k.topic_id = f.topic_id AND k.msg_id = f.msg_id) AS progress"
    )
}

/// KEY (id) of the messages for the rows in the lookup, and KEY (`msg_id`) of the other tables,
/// forced: finds the messages with these ids, at most 512, in whatever topic they are now. It is
/// one statement, and so reads one snapshot, in which a message that is being moved is in one
/// table. A ready or claimed message is found only if the lookup of `topic` has its row.
pub async fn by_ids(
    conn: &mut impl Connection,
    topic: TopicId,
    ids: &[MsgId],
    bodies: Bodies,
) -> Result<Vec<(TopicId, Found)>> {
    let n = ids.len().next_power_of_two();
    let list = placeholders(n);
    let mut sql = format!(
        "{} FROM queue_lookup l FORCE INDEX (PRIMARY) STRAIGHT_JOIN queue_message f \
         FORCE INDEX (queue_message_id) ON f.id = l.row_id AND f.msg_id = l.msg_id \
         WHERE l.topic_id = ? AND l.msg_id IN ({list})",
        columns(MessageTable::Ready, bodies)
    );
    for (table, name, index) in [
        (MessageTable::Scheduled, "queue_scheduled", "queue_scheduled_msg"),
        (MessageTable::Dead, "queue_dead", "queue_dead_msg"),
        (MessageTable::Archive, "queue_archive", "queue_archive_msg"),
    ] {
        let columns = columns(table, bodies);
        sql.push_str(&format!(
            " UNION ALL {columns} FROM {name} f FORCE INDEX ({index}) WHERE f.msg_id IN ({list})"
        ));
    }
    let mut statement = Statement::new(sql).number(topic.0);
    for _ in MessageTable::ALL {
        for id in padded(ids, n) {
            statement = statement.bytes(id.as_bytes().to_vec());
        }
    }
    let rows: Vec<FoundRow> = load(conn, "find messages by their ids", statement).await?;
    Ok(rows.into_iter().filter_map(FoundRow::into_found).collect())
}

/// KEY (id) of the messages and the scheduled, PRIMARY of the others, forced: reads these rows of a
/// table, at most 512, in the order of their ids.
pub async fn by_rows(
    conn: &mut impl Connection,
    table: MessageTable,
    rows: &RowSet,
    bodies: Bodies,
) -> Result<Vec<Found>> {
    let (name, index) = match table {
        MessageTable::Ready => ("queue_message", "queue_message_id"),
        MessageTable::Scheduled => ("queue_scheduled", "queue_scheduled_id"),
        MessageTable::Dead => ("queue_dead", "PRIMARY"),
        MessageTable::Archive => ("queue_archive", "PRIMARY"),
    };
    let (condition, ids) = rows.condition();
    let columns = columns(table, bodies);
    let statement = Statement::new(format!(
        "{columns} FROM {name} f FORCE INDEX ({index}) WHERE {condition} ORDER BY id"
    ))
    .numbers(ids);
    let rows: Vec<FoundRow> = load(conn, "read what was found", statement).await?;
    Ok(rows.into_iter().filter_map(|row| row.into_found().map(|(_, found)| found)).collect())
}

/// A place in the order of a table: the column that follows the topic in the index, as a number (a
/// priority, or microseconds since 1970), and the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablePosition {
    /// The table.
    pub table: MessageTable,
    /// The priority, or the moment.
    pub at: u64,
    /// The row.
    pub row: RowId,
}

/// Consecutive rows of a topic in a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableRows {
    /// The rows that are wanted, in order.
    pub wanted: Vec<TablePosition>,
    /// How many rows were read.
    pub seen: usize,
    /// The last of them; `None` at the end of the table.
    pub last: Option<TablePosition>,
}

/// PRIMARY of the messages, and of the others the KEY that begins with the topic, forced: reads the
/// topic's next rows in the table, at most `limit`, and selects those that are wanted: rows that
/// have one of the ids, if any are given, and meet the rest of the filter.
pub async fn read_table(
    conn: &mut impl Connection,
    topic: TopicId,
    ids: &[MsgId],
    filter: &Filter,
    from: TablePosition,
    limit: u32,
) -> Result<TableRows> {
    let table = from.table;
    let (name, index, first, error) = match table {
        MessageTable::Ready => ("queue_message", "PRIMARY", "priority", "''"),
        MessageTable::Scheduled => {
            ("queue_scheduled", "queue_scheduled_topic", "due_at", "last_error")
        }
        MessageTable::Dead => ("queue_dead", "queue_dead_topic", "died_at", "last_error"),
        MessageTable::Archive => ("queue_archive", "queue_archive_topic", "settled_at", "reason"),
    };
    let (value, number) = match table {
        MessageTable::Ready => ("?", first.to_owned()),
        _ => (MOMENT, format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {first})")),
    };
    let statement = Statement::new(format!("SELECT id, CAST({number} AS SIGNED) AS at, (TRUE"))
        .followed_by(condition(ids, filter, table, error));
    let statement = statement
        .sql(&format!(
            ") AS wanted FROM {name} FORCE INDEX ({index}) WHERE topic_id = ? \
         AND (({first} = {value} AND id > ?) OR {first} > {value}) \
         ORDER BY topic_id, {first}, id LIMIT ?"
        ))
        .number(topic.0)
        .number(from.at)
        .number(from.row.0)
        .number(from.at)
        .number(limit);
    let rows: Vec<(RowId, i64, bool)> = load(conn, "search a table", statement).await?;
    let place = |(row, at, _): &(RowId, i64, bool)| TablePosition {
        table,
        at: at.unsigned_abs(),
        row: *row,
    };
    Ok(TableRows {
        seen: rows.len(),
        last: rows.last().filter(|_| rows.len() >= limit as usize).map(place),
        wanted: rows.iter().filter(|(_, _, wanted)| *wanted).map(place).collect(),
    })
}

/// Builds ` AND …`, with its values.
fn condition(
    ids: &[MsgId],
    filter: &Filter,
    table: MessageTable,
    error: &str,
) -> Statement<'static> {
    let mut sql = plain_condition(ids, filter);
    if let Some(text) = &filter.error {
        let has_it = format!(" AND COALESCE(LOCATE(?, {error}) > 0, FALSE)");
        sql = sql.sql(&has_it).bytes(text.clone().into_bytes());
    }
    match (table, filter.state) {
        (MessageTable::Ready, Some(StateWord::Ready)) => sql.sql(" AND worker_id = 0"),
        (MessageTable::Ready, Some(_)) => sql.sql(" AND worker_id <> 0"),
        (MessageTable::Archive, Some(state)) => {
            sql.sql(" AND outcome = ?").bytes(state.word().as_bytes())
        }
        _ => sql,
    }
}

/// Builds the same for the columns that every table has.
pub(super) fn plain_condition(ids: &[MsgId], filter: &Filter) -> Statement<'static> {
    let mut sql = Statement::new("");
    if !ids.is_empty() {
        let n = ids.len().next_power_of_two();
        sql = sql.sql(&format!(" AND msg_id IN ({})", placeholders(n)));
        for id in padded(ids, n) {
            sql = sql.bytes(id.as_bytes().to_vec());
        }
    }
    for (column, value) in [("biz_id", &filter.biz_id), ("ordering_key", &filter.key)] {
        if let Some(value) = value {
            let is_it = format!(" AND COALESCE({column} = ?, FALSE)");
            sql = sql.sql(&is_it).bytes(value.clone());
        }
    }
    if filter.since.is_some() || filter.before.is_some() {
        sql = sql
            .sql(&format!(" AND enqueued_at >= {MOMENT} AND enqueued_at < {MOMENT}"))
            .number(filter.since.map_or(0, micros))
            .number(filter.before.map_or(LATEST, micros));
    }
    if let Some((name, value)) = &filter.header {
        // Written as JSON writes them; the rows found are then parsed and compared.
        let [name, value] =
            [name, value].map(|text| serde_json::Value::from(text.as_str()).to_string());
        let value = value.trim_matches('"').to_owned();
        sql = sql
            .sql(" AND COALESCE(LOCATE(?, headers) > 0 AND LOCATE(?, headers) > 0, FALSE)")
            .bytes(name.into_bytes())
            .bytes(value.into_bytes());
    }
    sql
}

impl FoundRow {
    /// Returns `None` for a row that our programs cannot have written.
    fn into_found(self) -> Option<(TopicId, Found)> {
        let (at, keep_until) = (self.at, self.until);
        let state = match self.state.as_str() {
            "ready" => State::Ready { suspect: self.priority.is_suspect() },
            "claimed" => State::Claimed {
                worker: self.worker?,
                client_id: self.client_id.unwrap_or_default(),
                conn_id: self.conn_id?,
            },
            "scheduled" => State::Scheduled { due_at: at? },
            "dead" => State::Dead { died_at: at?, cause: self.cause? },
            "done" => State::Done { settled_at: at?, keep_until: keep_until? },
            "repeated" => State::Repeated { settled_at: at?, keep_until: keep_until? },
            _ => State::Discarded { settled_at: at?, keep_until: keep_until? },
        };
        let trace = Trace {
            row: self.row,
            priority: self.priority.plain(),
            delivery_no: self.delivery_no,
            failures: self.failures,
            crashes: self.crashes,
            error: self.error.filter(|error| !error.is_empty()),
            headers: self.headers,
            history: FailedRun::from_stored(&self.history.unwrap_or_default()),
            progress: self.progress,
            body_bytes: self.body_bytes,
            body: self.body,
        };
        let found = Found {
            topic: self.topic.unwrap_or_default(),
            msg_id: self.msg_id,
            state,
            enqueued_at: self.enqueued_at,
            key: self.key,
            biz_id: self.biz_id,
            trace: Some(trace),
        };
        Some((self.topic_id, found))
    }
}
