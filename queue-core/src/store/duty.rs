//! Duties: who performs them, and what they did last.

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Nullable, Unsigned};

use super::installation::Office;
use super::{Statement, execute, load};
use crate::connection::Connection;
use crate::model::{ConnId, Result};

/// PRIMARY of the installation: tries to take the office without waiting; true when this session
/// holds its lock.
pub async fn take_office(conn: &mut impl Connection, office: Office) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<BigInt>)]
        got: Option<i64>,
    }
    let lock = office.lock();
    // Asking again for a lock that this session holds would stack it.
    let statement = Statement::new(format!(
        "SELECT CASE WHEN IS_USED_LOCK({lock}) <=> CONNECTION_ID() THEN 1 \
         ELSE GET_LOCK({lock}, 0) END AS got"
    ));
    let rows: Vec<Row> = load(conn, "take the lock of an office", statement).await?;
    Ok(rows.first().and_then(|row| row.got) == Some(1))
}

/// PRIMARY of the installation: whether any session holds the office.
pub async fn is_held(conn: &mut impl Connection, office: Office) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        holder: Option<u64>,
    }
    let lock = office.lock();
    let statement =
        Statement::new(format!("SELECT CAST(IS_USED_LOCK({lock}) AS UNSIGNED) AS holder"));
    let rows: Vec<Row> = load(conn, "ask whether an office is held", statement).await?;
    Ok(rows.first().is_some_and(|row| row.holder.is_some()))
}

/// What a duty did last.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct DutyStatus {
    /// The duty.
    pub name: String,
    /// Who performed it.
    pub holder: String,
    /// Its connection.
    pub conn: ConnId,
    /// How often it has run since it was first recorded.
    pub runs: u64,
    /// When it ran last, server time.
    pub ran_at: DateTime<Utc>,
    /// What it reported, as JSON.
    pub report: serde_json::Value,
}

/// PRIMARY (name): records what a duty did.
pub async fn record(
    conn: &mut impl Connection,
    name: &'static str,
    holder: &str,
    report: &[u8],
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_duty (name, conn_id, holder, runs, ran_at, report) \
         VALUES (?, CONNECTION_ID(), ?, 1, UTC_TIMESTAMP(6), ?) \
         ON DUPLICATE KEY UPDATE conn_id = CONNECTION_ID(), holder = ?, runs = runs + 1, \
         ran_at = UTC_TIMESTAMP(6), report = ?",
    )
    .bytes(name.as_bytes())
    .bytes(holder.as_bytes())
    .bytes(report)
    .bytes(holder.as_bytes())
    .bytes(report);
    execute(conn, "record the duty", statement).await?;
    Ok(())
}

/// PRIMARY (name): what every duty did last.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<DutyStatus>> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Binary)]
        name: Vec<u8>,
        #[diesel(sql_type = Binary)]
        holder: Vec<u8>,
        #[diesel(sql_type = Unsigned<BigInt>)]
        conn_id: u64,
        #[diesel(sql_type = Unsigned<BigInt>)]
        runs: u64,
        #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
        ran_at: NaiveDateTime,
        #[diesel(sql_type = Binary)]
        report: Vec<u8>,
    }
    let statement = Statement::new(
        "SELECT name, holder, conn_id, runs, ran_at, report FROM queue_duty ORDER BY name",
    );
    let rows: Vec<Row> = load(conn, "read the duties", statement).await?;
    Ok(rows
        .into_iter()
        .map(|row| DutyStatus {
            name: String::from_utf8_lossy(&row.name).into_owned(),
            holder: String::from_utf8_lossy(&row.holder).into_owned(),
            conn: ConnId(row.conn_id),
            runs: row.runs,
            ran_at: row.ran_at.and_utc(),
            report: serde_json::from_slice(&row.report).unwrap_or(serde_json::Value::Null),
        })
        .collect())
}
