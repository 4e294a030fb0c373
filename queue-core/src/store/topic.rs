//! The topics and their settings.

use std::num::NonZeroU64;
use std::time::Duration;

use chrono::NaiveDateTime;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Bool, Integer, Nullable, Unsigned};

use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::error::{Error, Fault, Result};
use crate::topic::{
    Backlog, OnDone, RetryPolicy, Topic, TopicId, TopicName, TopicSettings, TopicState, WhenFull,
};

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
    #[diesel(sql_type = Binary)]
    retry: Vec<u8>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_run_time_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    keep_done_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Binary>)]
    dead_letter_topic: Option<Vec<u8>>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    ledger_window_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_depth: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    max_bytes: Option<u64>,
    #[diesel(sql_type = Binary)]
    when_full: Vec<u8>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    backlog_depth: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    backlog_bytes: Option<u64>,
    #[diesel(sql_type = Bool)]
    backlog_full: bool,
    #[diesel(sql_type = BigInt)]
    backlog_holds: i64,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    searchable_ms: Option<u64>,
    #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
    dedupe_window_ms: Option<u64>,
}

/// How long a chain of dead-letter topics may be: whoever needs more has made a circle.
const DEAD_LETTER_CHAIN: usize = 16;

/// What was measured of a topic holds for 30 s, as in the procedure `queue_enqueue_at`: a sweeper
/// renews it every few seconds, and without one the topic must not stay closed for ever.
const SELECT: &str = "SELECT id, name, enqueue_paused, claim_paused, body_limit, max_attempts, \
     max_crashes, retry, max_run_time_ms, keep_done_ms, ledger_window_ms, \
     max_depth, max_bytes, when_full, backlog_depth, backlog_bytes, backlog_full, \
     CASE WHEN backlog_at > UTC_TIMESTAMP(6) - INTERVAL 30 SECOND THEN 1 ELSE 0 END \
     AS backlog_holds, searchable_ms, dedupe_window_ms, \
     (SELECT o.name FROM queue_topic o WHERE o.id = queue_topic.dead_letter_topic_id) \
     AS dead_letter_topic FROM queue_topic ";

/// UNIQUE (name): the topic, or `None`.
///
/// # Errors
/// A database failure.
pub async fn find(conn: &mut impl Connection, name: &TopicName) -> Result<Option<Topic>> {
    let statement = Statement::new(SELECT).sql("WHERE name = ?").bytes(name.as_str().as_bytes());
    let rows: Vec<TopicRow> = load(conn, "read the topic", statement).await?;
    rows.into_iter().next().map(TopicRow::into_topic).transpose()
}

/// As [`find`], where there must be one.
///
/// # Errors
/// [`Error::UnknownTopic`]; a database failure.
pub async fn existing(conn: &mut impl Connection, name: &TopicName) -> Result<Topic> {
    let found = find(conn, name).await?;
    found.ok_or_else(|| Error::UnknownTopic { topic: name.clone() })
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

/// No index: the topics that have a limit, asked four times a second; a row for each topic.
///
/// # Errors
/// A database failure.
pub async fn limited(conn: &mut impl Connection) -> Result<Vec<Topic>> {
    let statement =
        Statement::new(SELECT).sql("WHERE max_depth IS NOT NULL OR max_bytes IS NOT NULL");
    let rows: Vec<TopicRow> = load(conn, "list the topics with a limit", statement).await?;
    rows.into_iter().map(TopicRow::into_topic).collect()
}

/// UNIQUE (name): makes the topic.
///
/// # Errors
/// [`Error::TopicExists`]; [`Error::InvalidRetry`]; a dead-letter topic that does not exist or
/// leads back here; a database failure.
pub async fn create(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    settings.retry.check()?;
    let dead_letter_topic = dead_letter_topic_id(conn, name, settings).await?;
    let statement = Statement::new(
        "INSERT INTO queue_topic (name, body_limit, max_attempts, max_crashes, retry, \
         max_run_time_ms, keep_done_ms, ledger_window_ms, max_depth, max_bytes, when_full, \
         searchable_ms, dedupe_window_ms, dead_letter_topic_id, created_at, updated_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
    );
    let statement = bind_settings(statement.bytes(name.as_str().as_bytes()), settings)
        .maybe_number(dead_letter_topic);
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
/// [`Error::UnknownTopic`]; [`Error::InvalidRetry`]; a dead-letter topic that leads back here; a
/// database failure.
pub async fn set(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<()> {
    settings.retry.check()?;
    let dead_letter_topic = dead_letter_topic_id(conn, name, settings).await?;
    let statement = Statement::new(
        "UPDATE queue_topic SET body_limit = ?, max_attempts = ?, max_crashes = ?, \
         retry = ?, max_run_time_ms = ?, keep_done_ms = ?, ledger_window_ms = ?, \
         max_depth = ?, max_bytes = ?, when_full = ?, searchable_ms = ?, dedupe_window_ms = ?, \
         dead_letter_topic_id = ?, updated_at = UTC_TIMESTAMP(6) WHERE name = ?",
    );
    let statement = bind_settings(statement, settings)
        .maybe_number(dead_letter_topic)
        .bytes(name.as_str().as_bytes());
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

/// UNIQUE (name), once for each topic of the chain: the number of the topic that the settings name
/// for dead letters, unless these would come back to `name` in the end, for ever.
async fn dead_letter_topic_id(
    conn: &mut impl Connection,
    name: &TopicName,
    settings: &TopicSettings,
) -> Result<Option<u64>> {
    let Some(first) = &settings.dead_letter_topic else { return Ok(None) };
    let (mut id, mut next) = (None, Some(first.clone()));
    for _ in 0..DEAD_LETTER_CHAIN {
        let Some(topic) = next.take_if(|topic| topic != name) else { break };
        let found = find(conn, &topic).await?.ok_or(Error::UnknownTopic { topic })?;
        id = id.or(Some(u64::from(found.id.0)));
        next = found.settings.dead_letter_topic;
    }
    match next {
        None => Ok(id),
        Some(_) => Err(Error::Setting {
            name: "dead_letter_topic",
            value: format!("'{first}' for '{name}'"),
            fix: "it must be another topic whose own dead letters do not come back, within 16 steps",
        }),
    }
}

/// Where a topic's dead letters go instead of staying dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterTopic {
    /// The topic they are enqueued in.
    pub id: TopicId,
    /// The name of the topic they come from.
    pub from: TopicName,
    /// Those of the two that are searchable.
    pub searchable: Vec<TopicId>,
}

/// PRIMARY: where the topic's dead letters go. Asked in the transaction that moves them: what a
/// process remembers of a topic may name one that is gone.
///
/// # Errors
/// A database failure.
pub async fn dead_letter_topic(
    conn: &mut impl Connection,
    topic: TopicId,
) -> Result<Option<DeadLetterTopic>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Unsigned<Integer>)]
        id: u32,
        #[diesel(sql_type = Binary)]
        name: Vec<u8>,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        here_ms: Option<u64>,
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        there_ms: Option<u64>,
    }
    let statement = Statement::new(
        "SELECT o.id, t.name, t.searchable_ms AS here_ms, o.searchable_ms AS there_ms FROM queue_topic t JOIN queue_topic o \
         ON o.id = t.dead_letter_topic_id WHERE t.id = ?",
    )
    .number(topic.0);
    let rows: Vec<Row> = load(conn, "read where dead letters go", statement).await?;
    let found = |row: Row| {
        let from = TopicName::new(String::from_utf8_lossy(&row.name))?;
        let (here, there) = (row.here_ms.map(|_| topic), row.there_ms.map(|_| TopicId(row.id)));
        let searchable = here.into_iter().chain(there).collect();
        Ok(DeadLetterTopic { id: TopicId(row.id), from, searchable })
    };
    rows.into_iter().next().map(found).transpose()
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
        .bytes(settings.retry.to_string().into_bytes())
        .maybe_number(settings.max_run_time.map(millis))
        .maybe_number(keep)
        .maybe_number(settings.ledger_window.map(millis))
        .maybe_number(settings.max_depth.map(NonZeroU64::get))
        .maybe_number(settings.max_bytes.map(NonZeroU64::get))
        .bytes(settings.when_full.word().as_bytes())
        .maybe_number(settings.searchable.map(millis))
        .maybe_number(settings.dedupe_window.map(millis))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A policy that somebody wrote into the table past this library: what cannot be read is as good as
/// none, and the topic must go on.
fn retry(topic: &TopicName, stored: &[u8]) -> RetryPolicy {
    String::from_utf8_lossy(stored).parse().unwrap_or_else(|error| {
        tracing::warn!(topic.name = %topic, %error, "Topic has no readable retry policy.");
        RetryPolicy::default()
    })
}

fn one_topic(name: &TopicName, matched: usize) -> Result<()> {
    if matched == 1 { Ok(()) } else { Err(Error::UnknownTopic { topic: name.clone() }) }
}

impl TopicRow {
    /// What was measured of late, of a topic that has a limit.
    fn backlog(&self) -> Option<Backlog> {
        self.max_depth.or(self.max_bytes)?;
        let (depth, bytes) = (self.backlog_depth?, self.backlog_bytes);
        (self.backlog_holds != 0).then_some(Backlog { depth, bytes, full: self.backlog_full })
    }

    fn into_topic(self) -> Result<Topic> {
        let name = TopicName::new(String::from_utf8_lossy(&self.name))?;
        let backlog = self.backlog();
        Ok(Topic {
            id: TopicId(self.id),
            backlog,
            settings: TopicSettings {
                body_limit: self.body_limit,
                max_attempts: self.max_attempts,
                max_crashes: self.max_crashes,
                retry: retry(&name, &self.retry),
                max_run_time: self.max_run_time_ms.map(Duration::from_millis),
                on_done: self
                    .keep_done_ms
                    .map_or(OnDone::Delete, |ms| OnDone::Keep(Duration::from_millis(ms))),
                dead_letter_topic: self
                    .dead_letter_topic
                    .map(|name| TopicName::new(String::from_utf8_lossy(&name)))
                    .transpose()?,
                ledger_window: self.ledger_window_ms.map(Duration::from_millis),
                max_depth: self.max_depth.and_then(NonZeroU64::new),
                max_bytes: self.max_bytes.and_then(NonZeroU64::new),
                when_full: WhenFull::from_stored(&self.when_full),
                searchable: self.searchable_ms.map(Duration::from_millis),
                dedupe_window: self.dedupe_window_ms.map(Duration::from_millis),
            },
            state: TopicState {
                enqueue_paused: self.enqueue_paused,
                claim_paused: self.claim_paused,
            },
            name,
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
