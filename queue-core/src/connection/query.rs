//! Runs statements and queries under the name of an operation, which their errors carry.

use diesel::deserialize::FromSqlRow;
use diesel::mysql::Mysql;
use diesel::query_builder::QueryFragment;

use super::kept::Kept;
use super::{Connection, FromRow, Selects, Statement};
use crate::model::{Error, Result};

/// Runs an INSERT, UPDATE or DELETE of Diesel's. Returns the number of rows it matched.
pub(crate) async fn write(
    conn: &mut impl Connection,
    operation: &'static str,
    query: impl QueryFragment<Mysql> + Send,
) -> Result<usize> {
    conn.execute(Kept(query)).await.map_err(|error| Error::database(operation, &error))
}

/// As [`write()`], for an UPDATE or a DELETE that may read the rows of a range; see
/// [`execute_surely`].
pub(crate) async fn write_surely(
    conn: &mut impl Connection,
    operation: &'static str,
    query: impl QueryFragment<Mysql> + Send + Clone,
) -> Result<usize> {
    match write(conn, operation, query.clone()).await? {
        0 => write(conn, operation, query).await,
        matched => Ok(matched),
    }
}

/// Runs a query of Diesel's. Returns its rows.
pub(crate) async fn select<T: FromSqlRow<S, Mysql> + Send, S>(
    conn: &mut impl Connection,
    operation: &'static str,
    query: impl Selects<T, S>,
) -> Result<Vec<T>> {
    conn.select(Kept(query)).await.map_err(|error| Error::database(operation, &error))
}

/// As [`select`], for a query whose empty answer would mean that something is gone; see
/// [`load_surely`].
pub(crate) async fn select_surely<T: FromSqlRow<S, Mysql> + Send, S>(
    conn: &mut impl Connection,
    operation: &'static str,
    query: impl Selects<T, S> + Clone,
) -> Result<Vec<T>> {
    let rows = select(conn, operation, query.clone()).await?;
    if rows.is_empty() { select(conn, operation, query).await } else { Ok(rows) }
}

/// Runs a statement of our own text. Returns the number of rows it matched.
pub(crate) async fn execute(
    conn: &mut impl Connection,
    operation: &'static str,
    statement: Statement<'_>,
) -> Result<usize> {
    conn.execute(statement).await.map_err(|error| Error::database(operation, &error))
}

/// Runs an UPDATE, a DELETE or an INSERT of a SELECT that may read the rows of a range. If it
/// reports that nothing matched, runs it again and believes the second answer.
///
/// On MariaDB, a `KILL QUERY` that arrives while a range is planned makes the statement match
/// nothing and report success (*run* on 11.8: with one kill in seven; not on MySQL 9.7, nor where
/// keys are joined from a list, for which [`execute`] suffices). Because of this, a stream's worker
/// once took its own range for another worker's, and held it for as long as it lived.
pub(crate) async fn execute_surely(
    conn: &mut impl Connection,
    operation: &'static str,
    statement: Statement<'_>,
) -> Result<usize> {
    match execute(conn, operation, statement.clone()).await? {
        0 => execute(conn, operation, statement).await,
        matched => Ok(matched),
    }
}

/// Runs a query of our own text. Returns its rows, read by position.
pub(crate) async fn load<T: FromRow + Send>(
    conn: &mut impl Connection,
    operation: &'static str,
    statement: Statement<'_>,
) -> Result<Vec<T>> {
    conn.load(statement).await.map_err(|error| Error::database(operation, &error))
}

/// Runs a query whose empty answer would mean that something is gone. If it finds nothing, runs it
/// again, for the same reason as [`execute_surely`]. A SELECT by a whole key does not need this
/// (*run*).
pub(crate) async fn load_surely<T: FromRow + Send>(
    conn: &mut impl Connection,
    operation: &'static str,
    statement: Statement<'_>,
) -> Result<Vec<T>> {
    let rows = load(conn, operation, statement.clone()).await?;
    if rows.is_empty() { load(conn, operation, statement).await } else { Ok(rows) }
}
