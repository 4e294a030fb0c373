//! Moves between tables. Each is one INSERT … SELECT and one DELETE by the keys of rows that the
//! caller's transaction has locked. It fails unless the counts are equal; the transaction is then
//! rolled back. A predicate is never evaluated twice (histories H1 and H2).

use std::time::Duration;

use super::settle::{ClaimedRows, DELETE};
use super::topic::{DeadLetterTopic, dead_letter_topic};
use super::{Statement, first_inserted, load_surely, lookup};
use crate::connection::Connection;
use crate::model::{
    DeadCause, Error, FailedRun, LONGEST, Moment, MsgId, OnDone, Result, RowId, stored_reason,
};

/// The columns that every message table has, copied from the source row.
const CARRIED: &str = "topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, \
     headers, body";

/// The row's history with one more line, a [`FailedRun`]: the newest 32 KiB, some hundred runs.
/// [`FailedRun::line_end`] is bound to it.
pub(super) const WITH_FAILED_RUN: &str = "RIGHT(CONCAT(COALESCE(history, ''), \
     '{\"delivery_no\":', delivery_no, ',\"worker\":', worker_id, \
     ',\"at\":\"', DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ'), '\",\"error\":', ?), \
     32768)";

/// The outcome of a finished message in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'r> {
    /// It was handled.
    Done,
    /// Another message with the same biz id had been handled.
    Repeated,
    /// It was discarded, for this reason.
    Discarded(&'r str),
}

/// PRIMARY: moves rows to the scheduled messages. With a failure, one more is counted and recorded
/// in the history; without, nothing is charged. A suspect that got this far without a crash is no
/// longer a suspect.
///
/// # Errors
/// [`Error::Counts`].
pub async fn to_scheduled(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    due: Moment,
    failure: Option<&str>,
) -> Result<()> {
    let operation = if failure.is_some() { "settle: retry" } else { "settle: snooze" };
    move_rows(conn, operation, claimed, into_scheduled(due, failure)).await
}

/// The INSERT of the moves, without the source of its rows.
pub(super) fn into_scheduled(due: Moment, failure: Option<&str>) -> Statement<'static> {
    let moment = due.due_sql();
    let (failures, history) = match failure {
        Some(_) => ("failures + 1", WITH_FAILED_RUN),
        None => ("failures", "history"),
    };
    let insert = format!(
        "INSERT INTO queue_scheduled (due_at, priority, failures, crashes, suspicions, last_error, \
         history, expires_at, unique_key, {CARRIED}) SELECT {moment}, priority % 100, {failures}, \
         crashes, 0, ?, {history}, expires_at, unique_key, {CARRIED}"
    );
    let mut insert = Statement::new(insert)
        .number(due.micros())
        .maybe_bytes(failure.map(|error| stored_reason(error).to_vec()));
    if let Some(error) = failure {
        insert = insert.bytes(FailedRun::line_end(error));
    }
    insert
}

/// PRIMARY: moves rows, bodies included, to the dead letters, or to the topic's dead-letter topic
/// if it has one. The caller must [free](super::unique::release) their unique keys first.
///
/// # Errors
/// [`Error::Counts`].
pub async fn to_dead(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    cause: DeadCause,
    error: &str,
) -> Result<()> {
    const OPERATION: &str = "settle: dead-letter";
    let Some(topic) = dead_letter_topic(conn, claimed.topic).await? else {
        return move_rows(conn, OPERATION, claimed, into_dead(cause, error)).await;
    };
    if topic.searchable.is_empty() {
        return move_rows(conn, OPERATION, claimed, into_topic(&topic, cause, error)).await;
    }
    // One INSERT at a time, so that the first row of each is known.
    for piece in claimed.rows.pieces() {
        let claimed = claimed.with_rows(piece);
        let ids = msg_ids(conn, &claimed).await?;
        move_rows(conn, OPERATION, &claimed, into_topic(&topic, cause, error)).await?;
        let first = RowId(first_inserted(conn, OPERATION).await?);
        for of in &topic.searchable {
            lookup::follow(conn, *of, topic.id, first, &ids).await?;
        }
    }
    Ok(())
}

/// PRIMARY, forced: reads the message ids of rows that the claim still owns.
async fn msg_ids(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<Vec<MsgId>> {
    let select = Statement::new("SELECT msg_id FROM queue_message FORCE INDEX (PRIMARY)");
    let mut ids = Vec::with_capacity(claimed.rows.len());
    for statement in claimed.statements(&select) {
        let rows: Vec<MsgId> = load_surely(conn, "settle: read the message ids", statement).await?;
        ids.extend(rows);
    }
    Ok(ids)
}

pub(super) fn into_dead(cause: DeadCause, error: &str) -> Statement<'static> {
    let insert = format!(
        "INSERT INTO queue_dead \
         (priority, failures, crashes, suspicions, cause, last_error, died_at, history, \
         unique_key, {CARRIED}) \
         SELECT priority % 100, failures + ?, crashes + ?, suspicions, ?, ?, UTC_TIMESTAMP(6), \
         {WITH_FAILED_RUN}, unique_key, {CARRIED}"
    );
    // Adds one to what ended the message: its crashes, or else its failures.
    let crashed = u32::from(cause == DeadCause::Crashes);
    Statement::new(insert)
        .number(1 - crashed)
        .number(crashed)
        .bytes(cause.stored().as_bytes())
        .bytes(stored_reason(error).to_vec())
        .bytes(FailedRun::line_end(error))
}

/// Builds the INSERT that moves a message to the hot table, under another topic, as one that was
/// never tried there. It appends two headers that name the message's origin, unless the headers are
/// no JSON object. Headers may be any bytes: in latin1 every byte is a character, and MariaDB
/// refuses to convert a text that is not UTF-8 (*run*). MySQL fails on JSON deeper than 100 instead
/// of calling it invalid (3157, *run*): headers with more opening brackets are left as they are,
/// because a dead letter must be stored somewhere. No floor is published, because the row is new.
pub(super) fn into_topic(
    topic: &DeadLetterTopic,
    cause: DeadCause,
    error: &str,
) -> Statement<'static> {
    const CARRIED: &str = "msg_id, delivery_no, enqueued_at, ordering_key, biz_id, body";
    const BYTES: &str = "CONVERT(headers USING latin1)";
    let priority = if topic.is_stream { "5" } else { "priority % 100" };
    let insert = format!(
        "INSERT INTO queue_message (topic_id, priority, headers, history, {CARRIED}) \
         SELECT ?, {priority}, CASE WHEN headers IS NULL THEN ? \
         WHEN LENGTH(headers) - LENGTH(REPLACE(REPLACE({BYTES}, '[', ''), '{{', '')) > 100 \
         THEN headers WHEN NOT JSON_VALID({BYTES}) THEN headers \
         WHEN JSON_TYPE({BYTES}) <> 'OBJECT' THEN headers WHEN JSON_LENGTH({BYTES}) = 0 THEN ? \
         ELSE CONCAT(LEFT(headers, LENGTH(headers) - LOCATE('}}', REVERSE(headers))), ?) END, \
         {WITH_FAILED_RUN}, {CARRIED}"
    );
    let origin =
        format!("\"queue-dead-from\":\"{}\",\"queue-dead-cause\":\"{cause}\"}}", topic.from);
    Statement::new(insert)
        .number(topic.id.0)
        .bytes(format!("{{{origin}").into_bytes())
        .bytes(format!("{{{origin}").into_bytes())
        .bytes(format!(",{origin}").into_bytes())
        .bytes(FailedRun::line_end(error))
}

/// How long a discarded message's reason is kept if the topic keeps nothing else.
const KEEP_DISCARDED: Duration = Duration::from_secs(7 * 24 * 3600);

/// PRIMARY: moves rows to the archive, which keeps them for as long as the topic's settings say.
///
/// # Errors
/// [`Error::Counts`].
pub async fn to_archive(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    outcome: Outcome<'_>,
    on_done: OnDone,
) -> Result<()> {
    move_rows(conn, "settle: archive", claimed, into_archive(outcome, on_done)).await
}

/// The INSERT of [`to_archive`], without the source of its rows.
pub(super) fn into_archive(outcome: Outcome<'_>, on_done: OnDone) -> Statement<'static> {
    let keep = match on_done {
        OnDone::Keep(keep) => keep,
        OnDone::Delete => KEEP_DISCARDED,
    };
    let insert = format!(
        "INSERT INTO queue_archive \
         (priority, failures, crashes, suspicions, outcome, reason, settled_at, keep_until, \
         history, {CARRIED}) SELECT priority % 100, failures, crashes, suspicions, ?, ?, \
         UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL ? SECOND, history, {CARRIED}"
    );
    let (word, reason) = match outcome {
        Outcome::Done => ("done", None),
        Outcome::Repeated => ("repeated", None),
        Outcome::Discarded(reason) => ("discarded", Some(stored_reason(reason).to_vec())),
    };
    Statement::new(insert)
        .bytes(word.as_bytes())
        .maybe_bytes(reason)
        .number(keep.min(LONGEST).as_secs())
}

async fn move_rows(
    conn: &mut impl Connection,
    operation: &'static str,
    claimed: &ClaimedRows,
    insert: Statement<'static>,
) -> Result<()> {
    let expected = claimed.rows.len();
    let insert = insert.sql(" FROM queue_message FORCE INDEX (PRIMARY)");
    equal(operation, expected, claimed.execute_surely(conn, operation, insert).await?)?;
    equal(
        operation,
        expected,
        claimed.execute_surely(conn, operation, Statement::new(DELETE)).await?,
    )
}

/// Fails unless exactly the expected number of rows was touched, so that the transaction is rolled
/// back.
pub(crate) fn equal(operation: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Counts { operation, expected, found }) }
}
