use std::time::Duration;

use crate::chance;
use crate::connection::Connection;
use crate::model::{Error, Fault, Result};
use crate::telemetry;

/// How often a transaction is run before the caller gets the conflict. A deadlock is over at once;
/// a lock wait has already taken a second, and more of them would exceed the deadline.
fn tries(fault: Fault) -> u32 {
    if fault == Fault::Deadlock { 10 } else { 2 }
}

/// The first wait after a conflict; it doubles, with jitter.
const BACKOFF: Duration = Duration::from_millis(2);

/// Runs `work` between BEGIN and COMMIT. A deadlock (1213) or lock wait (1205) anywhere, even in
/// the commit, rolls back and runs `work` again: it must have no effect outside the database.
///
/// Use it only for transactions that begin here; a caller's own transaction is never retried.
///
/// # Errors
/// What `work` returned, after a ROLLBACK; [`Error::UnknownOutcome`] if the connection broke
/// during COMMIT.
pub async fn transaction<C: Connection, T>(
    conn: &mut C,
    operation: &'static str,
    mut work: impl AsyncFnMut(&mut C) -> Result<T>,
) -> Result<T> {
    again_on_conflict(conn, operation, async |conn| once(conn, operation, &mut work).await).await
}

/// Runs `work`, and runs it again after a deadlock or lock wait. `work` must leave nothing in the
/// server after such a failure. A single statement that commits by itself meets this condition.
///
/// # Errors
/// What `work` returned.
pub async fn again_on_conflict<C: Connection, T>(
    conn: &mut C,
    operation: &'static str,
    mut work: impl AsyncFnMut(&mut C) -> Result<T>,
) -> Result<T> {
    let mut backoff = BACKOFF;
    for round in 1.. {
        match work(conn).await {
            Err(error) if error.fault().is_conflict() && round < tries(error.fault()) => {
                telemetry::conflict_retried(operation, error.fault());
                let wait = backoff.mul_f64(chance::between(0.5..=1.5));
                tokio::time::sleep(wait).await;
                backoff = (backoff * 2).min(Duration::from_millis(100));
            }
            other => return other,
        }
    }
    unreachable!("the loop returns in its last round")
}

async fn once<C: Connection, T>(
    conn: &mut C,
    operation: &'static str,
    work: &mut impl AsyncFnMut(&mut C) -> Result<T>,
) -> Result<T> {
    begin(conn, operation).await?;
    let result = work(conn).await;
    end(conn, operation, result).await
}

/// Begins a transaction.
pub(crate) async fn begin(conn: &mut impl Connection, operation: &'static str) -> Result<()> {
    conn.batch("BEGIN").await.map_err(|error| Error::database(operation, &error))
}

/// Ends a transaction according to the result of its work: by COMMIT, or by ROLLBACK after an
/// error.
pub(crate) async fn end<T>(
    conn: &mut impl Connection,
    operation: &'static str,
    result: Result<T>,
) -> Result<T> {
    let named = |error: diesel::result::Error| Error::database(operation, &error);
    match result {
        Ok(value) => match conn.batch("COMMIT").await.map_err(named) {
            Ok(()) => Ok(value),
            Err(error) if error.fault() == Fault::Gone || error.fault() == Fault::Interrupted => {
                Err(Error::UnknownOutcome { operation, message: error.to_string() })
            }
            Err(error) => roll_back(conn, operation, error).await,
        },
        Err(error) if error.fault() == Fault::Gone => Err(error),
        // 1205 rolls back only its statement: a COMMIT now would keep half of the transaction.
        Err(error) => roll_back(conn, operation, error).await,
    }
}

async fn roll_back<T>(
    conn: &mut impl Connection,
    operation: &'static str,
    error: Error,
) -> Result<T> {
    match roll_back_surely(conn, "ROLLBACK").await {
        Ok(()) => Err(error),
        // The transaction may be open, and the next BEGIN would commit what it has done: the
        // connection must be closed.
        Err(rollback) => {
            let message = rollback.to_string();
            Err(Error::Database { operation, fault: Fault::Gone, message })
        }
    }
}

/// How often a ROLLBACK is sent if every one is killed. Beside a session that killed without a
/// pause, up to 7 in a row were killed, in 380 tries on a busy machine (*run*).
const ROLLBACKS: u32 = 1000;

/// Sends a ROLLBACK, and again while it is killed (KILL QUERY). MariaDB 11.8.9 answers a killed one
/// with 1317 and leaves the transaction open: 147 of 149 (*run*).
pub(crate) async fn roll_back_surely(
    conn: &mut impl Connection,
    statement: &str,
) -> diesel::QueryResult<()> {
    for _ in 1..ROLLBACKS {
        match conn.batch(statement).await {
            Err(error) if Fault::of(&error) == Fault::Interrupted => {}
            done => return done,
        }
    }
    conn.batch(statement).await
}
