//! The trace of messages: a row an event, written by the transaction that makes it happen.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::QueryableByName;
use diesel::mysql::sql_types::Datetime;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Unsigned};

use super::enqueue::is_kept;
use super::{Statement, execute, execute_surely, load};
use crate::connection::Connection;
use crate::model::trace::{Event, Record, Step};
use crate::model::{
    ConnId, DeliveryNo, MsgId, NewMessage, Offset, PartitionNo, Position, Result, Sampling,
    TopicId, WorkerId, cut,
};

/// The most rows of one INSERT.
const ROWS_PER_INSERT: usize = 500;

/// How much of an error a trace keeps, in bytes: what its column holds.
const ERROR_LIMIT: usize = 1024;

/// The most events of one message that are shown.
const SHOWN: u32 = 1000;

/// PRIMARY: writes that messages were enqueued, those of them that the sampling takes, in the
/// transaction that enqueues them. Changes `LAST_INSERT_ID()`, so it comes last.
pub async fn enqueued(
    conn: &mut impl Connection,
    topic: TopicId,
    sampling: Sampling,
    messages: &[NewMessage],
) -> Result<()> {
    const ROW: &str =
        "(?, ?, ?, UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(CONCAT(USER(), '@', ?), 255)), ";
    let sampled = sampled(sampling, messages);
    let here = here().into_bytes();
    for some in sampled.chunks(ROWS_PER_INSERT) {
        let columns = "topic_id, msg_id, event, at, conn_id, client";
        let mut statement = insert(columns, ROW, some.len());
        for message in some {
            statement = statement
                .number(topic.0)
                .bytes(message.msg_id.as_bytes().to_vec())
                .bytes(Event::Enqueued.word().as_bytes())
                .bytes(here.clone());
        }
        execute(conn, "trace what was enqueued", statement).await?;
    }
    Ok(())
}

/// PRIMARY: writes what happens to deliveries, in the transaction that makes it happen.
pub async fn record(conn: &mut impl Connection, steps: &[Step<'_>]) -> Result<()> {
    const ROW: &str = "(?, ?, ?, UTC_TIMESTAMP(6), ?, ?, CONNECTION_ID(), ?, ?, ?, ?, ?), ";
    for some in steps.chunks(ROWS_PER_INSERT) {
        let columns = "topic_id, msg_id, event, at, delivery_no, worker_id, conn_id, client, \
             partition_no, offset_no, outcome, error";
        let mut statement = insert(columns, ROW, some.len());
        for step in some {
            let text =
                |text: Option<&str>, limit| text.map(|text| cut(text, limit).as_bytes().to_vec());
            statement = statement
                .number(step.topic.0)
                .bytes(step.traced.msg_id.as_bytes().to_vec())
                .bytes(step.event.word().as_bytes())
                .number(step.traced.delivery_no.0)
                .number(step.worker.0)
                .maybe_bytes(text(step.client, 255))
                .maybe_number(step.position.map(|at| u64::from(at.partition.0)))
                .maybe_number(step.position.map(|at| at.offset.0))
                .maybe_bytes(step.outcome.map(str::as_bytes))
                .maybe_bytes(text(step.error, ERROR_LIMIT));
        }
        execute(conn, "trace what happens", statement).await?;
    }
    Ok(())
}

fn insert(columns: &str, row: &str, rows: usize) -> Statement<'static> {
    let mut text = format!("INSERT INTO queue_trace ({columns}) VALUES ");
    text.push_str(&row.repeat(rows));
    text.truncate(text.len() - 2);
    Statement::new(text).once(!is_kept(rows))
}

/// PRIMARY of the topics: which messages of the topic leave a trace.
pub async fn sampling_of(conn: &mut impl Connection, topic: TopicId) -> Result<Sampling> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<Integer>)]
        trace_ppm: u32,
    }
    let statement =
        Statement::new("SELECT trace_ppm FROM queue_topic WHERE id = ?").number(topic.0);
    let rows: Vec<Row> = load(conn, "read what leaves a trace", statement).await?;
    Ok(rows.first().map_or(Sampling::OFF, |row| Sampling::per_million(row.trace_ppm)))
}

#[derive(QueryableByName)]
struct RecordRow {
    #[diesel(sql_type = Unsigned<Integer>)]
    topic_id: u32,
    #[diesel(sql_type = Nullable<Binary>)]
    topic: Option<Vec<u8>>,
    #[diesel(sql_type = Binary)]
    event: Vec<u8>,
    #[diesel(sql_type = Datetime)]
    at: NaiveDateTime,
    #[diesel(sql_type = Unsigned<Integer>)]
    delivery_no: u32,
    #[diesel(sql_type = Unsigned<BigInt>)]
    worker_id: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    conn_id: u64,
    #[diesel(sql_type = Nullable<Binary>)]
    client: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Unsigned<Integer>>)]
    partition_no: Option<u32>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    offset_no: Option<u64>,
    #[diesel(sql_type = Nullable<Binary>)]
    outcome: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Binary>)]
    error: Option<Vec<u8>>,
}

/// KEY (`msg_id`), forced: what happened to the message, in order of time, in whatever topics; of
/// more than a thousand events the first.
pub async fn of_message(conn: &mut impl Connection, id: MsgId) -> Result<Vec<Record>> {
    let statement = Statement::new(
        "SELECT r.topic_id, (SELECT t.name FROM queue_topic t WHERE t.id = r.topic_id) AS topic, \
         r.event, r.at, r.delivery_no, r.worker_id, r.conn_id, r.client, r.partition_no, \
         r.offset_no, r.outcome, r.error \
         FROM queue_trace r FORCE INDEX (queue_trace_msg) WHERE r.msg_id = ? \
         ORDER BY r.at, r.id LIMIT ?",
    )
    .bytes(id.as_bytes().to_vec())
    .number(SHOWN);
    let rows: Vec<RecordRow> = load(conn, "read the trace", statement).await?;
    Ok(rows.into_iter().filter_map(RecordRow::into_record).collect())
}

impl RecordRow {
    /// `None` for a row that no program of ours can have written.
    fn into_record(self) -> Option<Record> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let event = Event::ALL.into_iter().find(|event| event.word().as_bytes() == self.event)?;
        let position = self.partition_no.zip(self.offset_no);
        Some(Record {
            topic: self.topic.map(text).unwrap_or_default(),
            topic_id: TopicId(self.topic_id),
            event,
            at: self.at.and_utc(),
            delivery_no: DeliveryNo(self.delivery_no),
            worker: (self.worker_id > 0).then_some(WorkerId(self.worker_id)),
            conn: ConnId(self.conn_id),
            client: self.client.map(text),
            position: position.map(|(partition, offset)| Position {
                partition: PartitionNo(partition),
                offset: Offset(offset),
            }),
            outcome: self.outcome.map(text),
            error: self.error.map(text),
        })
    }
}

/// KEY (`at`): removes up to `limit` events that are older than `time`.
pub async fn prune(conn: &mut impl Connection, time: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_trace WHERE at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY at LIMIT ?",
    )
    .number(time.as_secs())
    .number(limit);
    execute_surely(conn, "prune the trace", statement).await
}

/// The process and thread that enqueue, as `USER()` on the server is followed by them: seed 001's
/// `ip@pid@thread`.
fn here() -> String {
    // A history is the same whichever thread plays it.
    #[cfg(feature = "simulation")]
    if crate::connection::simulation::is_on() {
        return "simulation".to_owned();
    }
    let thread = std::thread::current();
    let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
    format!("{}@{name}", std::process::id())
}

/// Those of the messages that leave a trace in a topic of this sampling.
fn sampled(sampling: Sampling, messages: &[NewMessage]) -> Vec<&NewMessage> {
    if sampling.is_off() {
        return Vec::new();
    }
    messages.iter().filter(|message| sampling.takes(message.msg_id)).collect()
}
