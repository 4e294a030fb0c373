//! The topics and their settings.

use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, Unsigned};

use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::error::{Error, Fault, Result};
use crate::topic::{OnDone, RetryPolicy, Topic, TopicId, TopicName, TopicSettings, TopicState};

#[derive(QueryableByName)]
struct TopicRow {
    #[diesel(sql_type = Unsigned<Integer>)]
    id: u32,
    #[diesel(sql_type = Binary)]
    name: Vec<u8>,
    #[diesel(sql_type = Bool)]
    enqueue_paused: bool,
    #[diesel(sql_type = Bool)]
    claim_paused: bool,
    #[diesel(sql_type = Unsigned<Integer>)]
    body_limit: u32,
    #[diesel(sql_type = Unsigned<Integer>)]
    max_attempts: u32,
    #[diesel(sql_type = Unsigned<Integer>)]
    max_crashes: u32,
    #[diesel(sql_type = Unsigned<BigInt>)]
    retry_base_ms: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    retry_cap_ms: u64,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_run_time_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    keep_done_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    ledger_window_ms: Option<u64>,
}

const SELECT: &str = "SELECT id, name, enqueue_paused, claim_paused, body_limit, max_attempts, \
     max_crashes, retry_base_ms, retry_cap_ms, max_run_time_ms, keep_done_ms, \
     ledger_window_ms FROM queue_topic ";

/// UNIQUE (name): the topic, or `None`.
///
/// # Errors
/// A database failure.
pub async fn find(conn: &mut impl Connection, name: &TopicName) -> Result<Option<Topic>> {
    let statement = Statement::new(SELECT).sql("WHERE name = ?").bytes(name.as_str().as_bytes());
    let rows: Vec<TopicRow> = load(conn, "read the topic", statement).await?;
    rows.into_iter().next().map(TopicRow::into_topic).transpose()
}

/// UNIQUE (name): every topic, by name.
///
/// # Errors
/// A database failure.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let statement = Statement::new(SELECT).sql("ORDER BY name");
    let rows: Vec<TopicRow> = load(conn, "list the topics", statement).await?;
    rows.into_iter().map(TopicRow::into_topic).collect()
}

/// UNIQUE (name): makes the topic.
///
/// # Errors
/// [`Error::TopicExists`]; a database failure.
pub async fn create(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_topic (name, body_limit, max_attempts, max_crashes, retry_base_ms, \
         retry_cap_ms, max_run_time_ms, keep_done_ms, ledger_window_ms, created_at, \
         updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
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
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    let statement = Statement::new(
        "UPDATE queue_topic SET body_limit = ?, max_attempts = ?, max_crashes = ?, \
         retry_base_ms = ?, retry_cap_ms = ?, max_run_time_ms = ?, keep_done_ms = ?, \
         ledger_window_ms = ?, updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    );
    let statement = bind_settings(statement, settings).bytes(name.as_str().as_bytes());
    one_topic(name, execute(conn, "set the topic", statement).await?)
}

/// UNIQUE (name): lets messages in and out, or stops either.
///
/// # Errors
/// [`Error::UnknownTopic`]; a database failure.
pub async fn set_state(
    conn: &mut impl Connection,
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
pub async fn delete(conn: &mut impl Connection, id: TopicId) -> Result<usize> {
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
        .maybe_number(settings.ledger_window.map(millis))
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
                ledger_window: self.ledger_window_ms.map(Duration::from_millis),
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
pub async fn server_time(conn: &mut impl Connection) -> Result<NaiveDateTime> {
    #[derive(QueryableByName)]
    struct Now {
        #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
        now: NaiveDateTime,
    }
    let statement = Statement::new("SELECT UTC_TIMESTAMP(6) AS now");
    let rows: Vec<Now> = load(conn, "read the server's clock", statement).await?;
    rows.into_iter().next().map(|row| row.now).ok_or(Error::Counts {
        operation: "read the server's clock",
        expected: 1,
        found: 0,
    })
}
