//! Moves between tables. Each is one INSERT … SELECT and one DELETE by the keys of rows that the
//! caller's transaction has locked, and fails unless the counts are equal; the transaction is then
//! rolled back. A predicate is never given twice (histories H1 and H2).

use std::time::Duration;

use super::Statement;
use super::settle::{ClaimedRows, DELETE};
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::message::{DeadCause, stored_reason};

/// What every table of messages has, as the source row has it.
const CARRIED: &str = "topic_id, msg_id, delivery_no, enqueued_at, ordering_key, biz_id, \
     headers, body";

/// The longest wait or keeping, so that no sum leaves the calendar: ten years.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What becomes of a finished message in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'r> {
    /// It was handled.
    Done,
    /// Another message with its biz id had been handled.
    Repeated,
    /// It was not worth handling, for this reason.
    Discarded(&'r str),
}

/// PRIMARY: to the scheduled messages, due after `delay`, with one more failure. A suspect that
/// failed without a crash is none any more.
///
/// # Errors
/// [`Error::Counts`]; a database failure.
pub async fn to_scheduled(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    delay: Duration,
    error: &str,
) -> Result<()> {
    let insert = format!(
        "INSERT INTO queue_scheduled (due_at, priority, failures, crashes, suspicions, last_error, {CARRIED}) \
         SELECT UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND, priority % 100, failures + 1, \
         crashes, 0, ?, {CARRIED} FROM queue_message FORCE INDEX (PRIMARY)"
    );
    let micros = u64::try_from(delay.min(LONGEST).as_micros()).unwrap_or(0);
    let insert = Statement::new(insert).number(micros).bytes(stored_reason(error).to_vec());
    move_rows(conn, "settle: retry", claimed, insert).await
}

/// PRIMARY: to the dead letters, body and all.
///
/// # Errors
/// [`Error::Counts`]; a database failure.
pub async fn to_dead(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    cause: DeadCause,
    error: &str,
) -> Result<()> {
    let insert = format!(
        "INSERT INTO queue_dead (priority, failures, crashes, suspicions, cause, last_error, died_at, {CARRIED}) \
         SELECT priority % 100, failures + ?, crashes + ?, suspicions, ?, ?, UTC_TIMESTAMP(6), \
         {CARRIED} FROM queue_message FORCE INDEX (PRIMARY)"
    );
    // What ended it is charged here: a crash, or else the failure just met.
    let crashed = u32::from(cause == DeadCause::Crashes);
    let insert = Statement::new(insert)
        .number(1 - crashed)
        .number(crashed)
        .bytes(cause.stored().as_bytes())
        .bytes(stored_reason(error).to_vec());
    move_rows(conn, "settle: dead-letter", claimed, insert).await
}

/// PRIMARY: to the archive, to be pruned after `keep`.
///
/// # Errors
/// [`Error::Counts`]; a database failure.
pub async fn to_archive(
    conn: &mut impl Connection,
    claimed: &ClaimedRows,
    outcome: Outcome<'_>,
    keep: Duration,
) -> Result<()> {
    let insert = format!(
        "INSERT INTO queue_archive \
         (priority, failures, crashes, suspicions, outcome, reason, settled_at, keep_until, \
         {CARRIED}) SELECT priority % 100, failures, crashes, suspicions, ?, ?, UTC_TIMESTAMP(6), \
         UTC_TIMESTAMP(6) + INTERVAL ? SECOND, {CARRIED} FROM queue_message FORCE INDEX (PRIMARY)"
    );
    let (word, reason) = match outcome {
        Outcome::Done => ("done", None),
        Outcome::Repeated => ("repeated", None),
        Outcome::Discarded(reason) => ("discarded", Some(stored_reason(reason).to_vec())),
    };
    let insert = Statement::new(insert)
        .bytes(word.as_bytes())
        .maybe_bytes(reason)
        .number(keep.min(LONGEST).as_secs());
    move_rows(conn, "settle: archive", claimed, insert).await
}

async fn move_rows(
    conn: &mut impl Connection,
    operation: &'static str,
    claimed: &ClaimedRows,
    insert: Statement<'static>,
) -> Result<()> {
    let expected = claimed.rows.len();
    equal(operation, expected, claimed.execute(conn, operation, insert).await?)?;
    equal(operation, expected, claimed.execute(conn, operation, Statement::new(DELETE)).await?)
}

/// Fails, so that the transaction is rolled back, unless exactly the expected rows were touched.
pub(crate) fn equal(operation: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Counts { operation, expected, found }) }
}
