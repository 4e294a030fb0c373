//! The topics and their settings.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::prelude::*;
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};

use super::{Statement, execute};
use crate::error::{Error, Fault, Result};
use crate::schema::queue_topic;
use crate::topic::{OnDone, RetryPolicy, Topic, TopicId, TopicName, TopicSettings, TopicState};

#[derive(Queryable, Selectable)]
#[diesel(table_name = queue_topic, check_for_backend(diesel::mysql::Mysql))]
struct TopicRow {
    id: u32,
    name: Vec<u8>,
    enqueue_paused: bool,
    claim_paused: bool,
    body_limit: u32,
    max_attempts: u32,
    max_crashes: u32,
    retry_base_ms: u64,
    retry_cap_ms: u64,
    max_run_time_ms: Option<u64>,
    keep_done_ms: Option<u64>,
}

/// UNIQUE (name): the topic, or `None`.
///
/// # Errors
/// A database failure.
pub async fn find(conn: &mut AsyncMysqlConnection, name: &TopicName) -> Result<Option<Topic>> {
    queue_topic::table
        .filter(queue_topic::name.eq(name.as_str().as_bytes()))
        .select(TopicRow::as_select())
        .first(conn)
        .await
        .optional()
        .map_err(|error| Error::database("read the topic", &error))?
        .map(TopicRow::into_topic)
        .transpose()
}

/// UNIQUE (name): every topic, by name.
///
/// # Errors
/// A database failure.
pub async fn all(conn: &mut AsyncMysqlConnection) -> Result<Vec<Topic>> {
    let rows: Vec<TopicRow> = queue_topic::table
        .order(queue_topic::name)
        .select(TopicRow::as_select())
        .load(conn)
        .await
        .map_err(|error| Error::database("list the topics", &error))?;
    rows.into_iter().map(TopicRow::into_topic).collect()
}

/// UNIQUE (name): makes the topic.
///
/// # Errors
/// [`Error::TopicExists`]; a database failure.
pub async fn create(
    conn: &mut AsyncMysqlConnection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_topic (name, body_limit, max_attempts, max_crashes, retry_base_ms, \
         retry_cap_ms, max_run_time_ms, keep_done_ms, created_at, updated_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
    );
    let statement = bind_settings(statement.bytes(name.as_str().as_bytes()), settings);
    match execute(conn, "create the topic", statement).await {
        Err(error) if error.fault() == Fault::Duplicate => {
            Err(Error::TopicExists { topic: name.clone() })
        }
        other => other.map(|_| ()),
    }
}

/// UNIQUE (name): replaces the topic's settings.
///
/// # Errors
/// [`Error::UnknownTopic`]; a database failure.
pub async fn set(
    conn: &mut AsyncMysqlConnection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_topic SET body_limit = ?, max_attempts = ?, max_crashes = ?, \
         retry_base_ms = ?, retry_cap_ms = ?, max_run_time_ms = ?, keep_done_ms = ?, \
         updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    );
    let statement = bind_settings(statement, settings).bytes(name.as_str().as_bytes());
    one_topic(name, execute(conn, "set the topic", statement).await?)
}

/// UNIQUE (name): lets messages in and out, or stops either.
///
/// # Errors
/// [`Error::UnknownTopic`]; a database failure.
pub async fn set_state(
    conn: &mut AsyncMysqlConnection,
    name: &TopicName,
    state: TopicState,
) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_topic SET enqueue_paused = ?, claim_paused = ?, \
         updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    )
    .number(u64::from(state.enqueue_paused))
    .number(u64::from(state.claim_paused))
    .bytes(name.as_str().as_bytes());
    one_topic(name, execute(conn, "pause or resume the topic", statement).await?)
}

/// PRIMARY: removes the topic's row; its messages must be gone already.
///
/// # Errors
/// A database failure.
pub async fn delete(conn: &mut AsyncMysqlConnection, id: TopicId) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_topic WHERE id = ?").number(id.0);
    execute(conn, "delete the topic", statement).await
}

fn bind_settings<'q>(statement: Statement<'q>, settings: &TopicSettings) -> Statement<'q> {
    let keep = match settings.on_done {
        OnDone::Delete => None,
        OnDone::Keep(time) => Some(millis(time)),
    };
    statement
        .number(settings.body_limit)
        .number(settings.max_attempts)
        .number(settings.max_crashes)
        .number(millis(settings.retry.base))
        .number(millis(settings.retry.cap))
        .maybe_number(settings.max_run_time.map(millis))
        .maybe_number(keep)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn one_topic(name: &TopicName, matched: usize) -> Result<()> {
    if matched == 1 { Ok(()) } else { Err(Error::UnknownTopic { topic: name.clone() }) }
}

impl TopicRow {
    fn into_topic(self) -> Result<Topic> {
        let name = String::from_utf8_lossy(&self.name).into_owned();
        Ok(Topic {
            id: TopicId(self.id),
            name: TopicName::new(name)?,
            settings: TopicSettings {
                body_limit: self.body_limit,
                max_attempts: self.max_attempts,
                max_crashes: self.max_crashes,
                retry: RetryPolicy {
                    base: Duration::from_millis(self.retry_base_ms),
                    cap: Duration::from_millis(self.retry_cap_ms),
                },
                max_run_time: self.max_run_time_ms.map(Duration::from_millis),
                on_done: self
                    .keep_done_ms
                    .map_or(OnDone::Delete, |ms| OnDone::Keep(Duration::from_millis(ms))),
            },
            state: TopicState {
                enqueue_paused: self.enqueue_paused,
                claim_paused: self.claim_paused,
            },
        })
    }
}

/// The server's clock, UTC.
///
/// # Errors
/// A database failure.
pub async fn server_time(conn: &mut AsyncMysqlConnection) -> Result<NaiveDateTime> {
    #[derive(QueryableByName)]
    struct Now {
        #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
        now: NaiveDateTime,
    }
    let statement = Statement::new("SELECT UTC_TIMESTAMP(6) AS now");
    let rows: Vec<Now> = super::load(conn, "read the server's clock", statement).await?;
    rows.into_iter().next().map(|row| row.now).ok_or(Error::Counts {
        operation: "read the server's clock",
        expected: 1,
        found: 0,
    })
}
