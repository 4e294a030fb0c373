//! Dead letters: messages that are not tried again unless an operator redrives them. They stay
//! until they are redriven or purged, or for as long as their topic keeps them.

mod prune;

pub use self::prune::{kept_for, prune};

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::prelude::*;
use serde::Serialize;

use super::moment::{LATEST, MOMENT, micros};
use super::moves::equal;
use super::row_set::{KEYS, RowSet};
use super::{Statement, execute, execute_surely, first_inserted, load, select};
use crate::connection::{Connection, row};
use crate::model::{DeadCause, FailedRun, Headers, MsgId, Priority, Result, RowId, TopicId};
use crate::schema::queue_dead;

/// The most dead letters that one statement reads, wanted or not, so that no statement takes long
/// however many there are.
const WINDOW: u32 = 500;

/// Selects dead letters of a topic: those that meet every condition given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Died at this server time or later.
    pub since: Option<DateTime<Utc>>,
    /// Died before this server time.
    pub before: Option<DateTime<Utc>>,
    /// Died of this.
    pub cause: Option<DeadCause>,
    /// The last error contains this text, byte by byte.
    pub error: Option<String>,
    /// The message has this id.
    pub msg_id: Option<MsgId>,
}

/// A place in the order of death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadPosition {
    died_at: NaiveDateTime,
    row: RowId,
}

/// Consecutive dead letters of a topic, in the order of their death.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadWindow {
    /// The rows that the filter selects.
    pub wanted: Vec<RowId>,
    /// How many dead letters were read.
    pub seen: usize,
    /// Where the next stretch begins; `None` at the end.
    pub next: Option<DeadPosition>,
}

/// A dead letter as operators see it, without its body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadLetter {
    /// Its row among the dead letters.
    pub row: RowId,
    /// The message id.
    pub msg_id: MsgId,
    /// Its priority.
    pub priority: Priority,
    /// How often it was claimed.
    pub delivery_no: u32,
    /// Failed handlings.
    pub failures: u32,
    /// Crashes of workers that held it.
    pub crashes: u32,
    /// Server time at which it was enqueued.
    pub enqueued_at: DateTime<Utc>,
    /// Server time at which it died.
    pub died_at: DateTime<Utc>,
    /// What it died of: `attempts`, `crashes`, `handler` or `decode`.
    pub cause: String,
    /// The handler's last error.
    pub last_error: String,
    /// Ordering key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Business idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biz_id: Option<String>,
    /// Name and value pairs beside the body.
    pub headers: Headers,
    /// The body's length.
    pub body_bytes: u64,
}

/// KEY (`topic_id`, `died_at`), forced: reads the topic's next dead letters and selects those that
/// the filter wants. It reads the rows themselves for the filter, a bounded number of them.
pub async fn window(
    conn: &mut impl Connection,
    topic: TopicId,
    filter: &DeadFilter,
    from: Option<DeadPosition>,
) -> Result<DeadWindow> {
    let cause = filter.cause.map(|cause| cause.stored().as_bytes());
    let msg_id = filter.msg_id.map(|id| id.as_bytes().to_vec());
    let (died_at, row) = match from {
        Some(place) => (micros(place.died_at.and_utc()), place.row.0),
        None => (filter.since.map_or(0, micros), 0),
    };
    let statement = Statement::new(format!(
        "SELECT id, died_at, COALESCE(cause = ?, TRUE) AND COALESCE(LOCATE(?, last_error) > 0, ?) \
         AND COALESCE(msg_id = ?, TRUE) AS wanted \
         FROM queue_dead FORCE INDEX (queue_dead_topic) WHERE topic_id = ? \
         AND died_at >= {MOMENT} AND died_at < {MOMENT} AND (died_at > {MOMENT} OR id > ?) \
         ORDER BY topic_id, died_at, id LIMIT {WINDOW}"
    ))
    .maybe_bytes(cause)
    .maybe_bytes(filter.error.as_deref().map(str::as_bytes))
    .number(filter.error.is_none())
    .maybe_bytes(msg_id)
    .number(topic.0)
    .number(died_at)
    .number(filter.before.map_or(LATEST, micros))
    .number(died_at)
    .number(row);
    let rows: Vec<(DeadPosition, bool)> = load(conn, "look for dead letters", statement).await?;
    let full = rows.len() >= WINDOW as usize;
    let wanted = rows.iter().filter(|(_, wanted)| *wanted);
    Ok(DeadWindow {
        seen: rows.len(),
        next: rows.last().filter(|_| full).map(|(place, _)| *place),
        wanted: wanted.map(|(place, _)| place.row).collect(),
    })
}

row! { DeadPosition { row, died_at } }

/// PRIMARY: reads these dead letters, in the order of their rows, without bodies.
pub async fn read(conn: &mut impl Connection, rows: &RowSet) -> Result<Vec<DeadLetter>> {
    let (condition, ids) = rows.condition();
    let statement = Statement::new(format!(
        "SELECT id, msg_id, priority, delivery_no, failures, crashes, enqueued_at, died_at, cause, \
         last_error, ordering_key, biz_id, LEFT(headers, 65537) AS headers, LENGTH(body) AS body_bytes \
         FROM queue_dead FORCE INDEX (PRIMARY) WHERE {condition} ORDER BY id"
    ))
    .numbers(ids);
    load(conn, "read the dead letters", statement).await
}

row! {
    DeadLetter {
        row, msg_id, priority, delivery_no, failures, crashes, enqueued_at, died_at, cause,
        last_error: Option::unwrap_or_default, key, biz_id, headers, body_bytes,
    }
}

/// PRIMARY: reads the body of a dead letter of the topic; `None` if there is no such dead letter.
pub async fn body(
    conn: &mut impl Connection,
    topic: TopicId,
    row: RowId,
) -> Result<Option<Vec<u8>>> {
    let query =
        queue_dead::table.find(row).filter(queue_dead::topic_id.eq(topic)).select(queue_dead::body);
    let rows: Vec<Vec<u8>> = select(conn, "read a dead letter", query).await?;
    Ok(rows.into_iter().next())
}

/// PRIMARY: reads the failed runs of a dead letter of the topic, oldest first.
pub async fn history(
    conn: &mut impl Connection,
    topic: TopicId,
    row: RowId,
) -> Result<Vec<FailedRun>> {
    let query = queue_dead::table
        .find(row)
        .filter(queue_dead::topic_id.eq(topic))
        .select(queue_dead::history);
    let rows: Vec<Option<Vec<u8>>> = select(conn, "read a dead letter's history", query).await?;
    let history = rows.into_iter().flatten().next().unwrap_or_default();
    Ok(FailedRun::from_stored(&history))
}

/// How many of the newest dead letters [`errors`] reads.
pub const ERRORS_OF: u32 = 5000;

/// How many bytes of an error distinguish it from others.
const DISTINGUISHING_BYTES: u32 = 200;

/// Dead letters that share an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeadError {
    /// What they died of: `attempts`, `crashes`, `handler` or `decode`.
    pub cause: String,
    /// The beginning of their handlers' last error.
    pub error: String,
    /// How many there are.
    pub letters: u64,
    /// When the last of them died, server time.
    pub last_at: DateTime<Utc>,
}

/// KEY (`topic_id`, `died_at`), forced: groups the topic's newest dead letters by error, the most
/// frequent first; at most `limit` errors, of [`ERRORS_OF`] letters.
pub async fn errors(
    conn: &mut impl Connection,
    topic: TopicId,
    limit: u32,
) -> Result<Vec<DeadError>> {
    let statement = Statement::new(format!(
        "SELECT cause, error, COUNT(*) AS letters, MAX(died_at) AS last_at FROM (\
         SELECT cause, LEFT(COALESCE(last_error, ''), {DISTINGUISHING_BYTES}) AS error, died_at \
         FROM queue_dead FORCE INDEX (queue_dead_topic) WHERE topic_id = ? \
         ORDER BY topic_id DESC, died_at DESC LIMIT {ERRORS_OF}) d \
         GROUP BY cause, error ORDER BY letters DESC, last_at DESC LIMIT ?"
    ))
    .number(topic.0)
    .number(limit);
    load(conn, "group the dead letters by error", statement).await
}

row! { DeadError { cause, error: whole, letters, last_at } }

/// Removes the part of a character that was left where a text was cut.
fn whole(text: String) -> String {
    text.trim_end_matches('\u{fffd}').to_owned()
}

/// A dead letter, locked by this transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedDead {
    /// Its row among the dead letters.
    pub row: RowId,
    /// Its priority.
    pub priority: Priority,
    /// The message.
    pub msg_id: MsgId,
}

/// PRIMARY, forced: locks those of the rows that are still there, at most 512. It waits for rows
/// that another redrive has locked, and then usually finds them gone. If it skipped these rows, it
/// would miss them when the other redrive fails.
pub async fn lock(conn: &mut impl Connection, rows: &RowSet) -> Result<Vec<LockedDead>> {
    let (condition, ids) = rows.condition();
    let statement = Statement::new(format!(
        "SELECT id, priority, msg_id FROM queue_dead FORCE INDEX (PRIMARY) WHERE {condition} \
         ORDER BY id FOR UPDATE"
    ))
    .numbers(ids);
    load(conn, "lock dead letters", statement).await
}

row! { LockedDead { row, priority, msg_id } }

/// PRIMARY, forced: moves locked rows back to the hot table, in the order of their death, and
/// returns the lowest row they got there. Failures and crashes count from zero again; the delivery
/// number continues, so that an old one never fences a later delivery. The caller must
/// [take](super::unique::take_again) their unique keys first.
///
/// # Errors
/// [`crate::Error::Counts`].
pub async fn redrive(conn: &mut impl Connection, rows: &RowSet) -> Result<RowId> {
    const CARRIED: &str = "topic_id, priority, msg_id, delivery_no, enqueued_at, ordering_key, \
         biz_id, unique_key, headers, history, body";
    const OPERATION: &str = "redrive";
    let (condition, ids) = rows.condition();
    let insert = Statement::new(format!(
        "INSERT INTO queue_message ({CARRIED}) SELECT {CARRIED} FROM queue_dead \
         FORCE INDEX (PRIMARY) WHERE {condition} ORDER BY died_at, id"
    ))
    .numbers(ids);
    equal(OPERATION, rows.len(), execute_surely(conn, OPERATION, insert).await?)?;
    let first = RowId(first_inserted(conn, OPERATION).await?);
    equal(OPERATION, rows.len(), purge(conn, rows).await?)?;
    Ok(first)
}

/// PRIMARY, forced: deletes these dead letters and returns how many were there.
pub async fn purge(conn: &mut impl Connection, rows: &RowSet) -> Result<usize> {
    let delete = Statement::new(format!(
        "DELETE d FROM {KEYS} STRAIGHT_JOIN queue_dead d FORCE INDEX (PRIMARY) ON d.id = k.id"
    ))
    .bytes(rows.json());
    execute(conn, "purge dead letters", delete).await
}
