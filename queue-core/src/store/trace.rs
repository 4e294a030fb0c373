//! The trace of messages: one row an event, written by the transaction that causes it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::prelude::*;

use super::enqueue::is_kept;
use super::{Statement, execute, execute_surely, load, select};
use crate::connection::{Connection, row};
use crate::model::trace::{Event, Record, Step};
use crate::model::{
    ConnId, DeliveryNo, MsgId, NewMessage, Offset, PartitionNo, Position, Result, Sampling,
    TopicId, WorkerId, cut,
};
use crate::schema::queue_topic;

/// The most rows of one INSERT.
const ROWS_PER_INSERT: usize = 500;

/// How many bytes of an error a trace keeps: the size of its column.
const ERROR_LIMIT: usize = 1024;

/// The most events shown for one message.
const SHOWN: u32 = 1000;

/// PRIMARY: records the enqueue of those messages that the sampling selects, in the transaction
/// that enqueues them. It changes `LAST_INSERT_ID()`, so it comes last.
pub async fn enqueued(
    conn: &mut impl Connection,
    topic: TopicId,
    sampling: Sampling,
    messages: &[NewMessage],
) -> Result<()> {
    const ROW: &str =
        "(?, ?, ?, UTC_TIMESTAMP(6), CONNECTION_ID(), LEFT(CONCAT(USER(), '@', ?), 255)), ";
    tracing::trace!(step = "enqueued");
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

/// PRIMARY: records the events of deliveries, in the transaction that causes them.
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

/// PRIMARY of the topics: reads which messages of the topic leave a trace.
pub async fn sampling_of(conn: &mut impl Connection, topic: TopicId) -> Result<Sampling> {
    let query = queue_topic::table.find(topic).select(queue_topic::trace_ppm);
    let rows: Vec<u32> = select(conn, "read what leaves a trace", query).await?;
    Ok(rows.first().copied().map_or(Sampling::OFF, Sampling::per_million))
}

struct RecordRow {
    topic_id: TopicId,
    topic: Option<String>,
    event: String,
    at: DateTime<Utc>,
    delivery_no: DeliveryNo,
    worker: WorkerId,
    conn: ConnId,
    client: Option<String>,
    partition: Option<PartitionNo>,
    offset: Option<Offset>,
    outcome: Option<String>,
    error: Option<String>,
}

row! {
    RecordRow {
        topic_id, topic, event, at, delivery_no, worker, conn, client, partition, offset, outcome,
        error,
    }
}

/// KEY (`msg_id`), forced: reads the events of the message, in order of time, in whatever topics;
/// if there are more than a thousand, the first thousand.
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
    /// Returns `None` for a row that our programs cannot have written.
    fn into_record(self) -> Option<Record> {
        let position = self.partition.zip(self.offset);
        Some(Record {
            topic: self.topic.unwrap_or_default(),
            topic_id: self.topic_id,
            event: Event::ALL.into_iter().find(|event| event.word() == self.event)?,
            at: self.at,
            delivery_no: self.delivery_no,
            worker: Some(self.worker).filter(|worker| worker.0 > 0),
            conn: self.conn,
            client: self.client,
            position: position.map(|(partition, offset)| Position { partition, offset }),
            outcome: self.outcome,
            error: self.error,
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

/// Returns the process and thread that enqueue, appended to `USER()` on the server: seed 001's
/// `ip@pid@thread`.
fn here() -> String {
    // Constant in a simulation: its history must not depend on the thread that plays it.
    #[cfg(feature = "simulation")]
    if crate::connection::simulation::is_on() {
        return "simulation".to_owned();
    }
    let thread = std::thread::current();
    let name = thread.name().map_or_else(|| format!("{:?}", thread.id()), str::to_owned);
    format!("{}@{name}", std::process::id())
}

/// Selects the messages that leave a trace in a topic with this sampling.
fn sampled(sampling: Sampling, messages: &[NewMessage]) -> Vec<&NewMessage> {
    if sampling.is_off() {
        return Vec::new();
    }
    messages.iter().filter(|message| sampling.takes(message.msg_id)).collect()
}
