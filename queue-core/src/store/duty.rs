//! Duties: which session performs them, and the report of each last run.

use chrono::{DateTime, Utc};

use super::installation::Office;
use super::{Statement, execute, load};
use crate::connection::{Connection, row};
use crate::model::{ConnId, Result};

/// PRIMARY of the installation: tries to take the office without waiting; returns true when this
/// session holds its lock.
pub async fn take_office(conn: &mut impl Connection, office: Office) -> Result<bool> {
    let lock = office.lock();
    // Taking a lock again that this session already holds would stack it.
    let statement = Statement::new(format!(
        "SELECT CASE WHEN IS_USED_LOCK({lock}) <=> CONNECTION_ID() THEN 1 \
         ELSE GET_LOCK({lock}, 0) END AS got"
    ));
    let rows: Vec<Option<i64>> = load(conn, "take the lock of an office", statement).await?;
    Ok(rows.first() == Some(&Some(1)))
}

/// PRIMARY of the installation: returns whether any session holds the office.
pub async fn is_held(conn: &mut impl Connection, office: Office) -> Result<bool> {
    let lock = office.lock();
    let statement =
        Statement::new(format!("SELECT CAST(IS_USED_LOCK({lock}) AS UNSIGNED) AS holder"));
    let rows: Vec<Option<ConnId>> = load(conn, "ask whether an office is held", statement).await?;
    Ok(rows.first().is_some_and(Option::is_some))
}

/// The last run of a duty.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct DutyStatus {
    /// The duty.
    pub name: String,
    /// The process that performed it.
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

/// PRIMARY (name): records a run of a duty.
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

/// PRIMARY (name): reads the last run of every duty.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<DutyStatus>> {
    let statement = Statement::new(
        "SELECT name, holder, conn_id, runs, ran_at, report FROM queue_duty ORDER BY name",
    );
    load(conn, "read the duties", statement).await
}

row! { DutyStatus { name, holder, conn, runs, ran_at, report: json } }

/// Parses a report; anything that is not JSON counts as null.
fn json(report: Vec<u8>) -> serde_json::Value {
    serde_json::from_slice(&report).unwrap_or(serde_json::Value::Null)
}
