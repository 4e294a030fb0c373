//! Duties: which session performs them, and the report of each last run.

use chrono::{DateTime, Utc};
use diesel::deserialize::{self, FromSql, FromSqlRow};
use diesel::dsl::DuplicatedKeys;
use diesel::mysql::{Mysql, MysqlValue};
use diesel::prelude::*;
use diesel::sql_types::Binary;

use super::installation::Office;
use super::{Statement, load, select, write};
use crate::connection::Connection;
use crate::model::column::{Text, Time};
use crate::model::{ConnId, Result};
use crate::schema::functions::{connection_id, now};
use crate::schema::queue_duty::{self, dsl};

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
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, Queryable, Selectable)]
#[diesel(table_name = queue_duty)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct DutyStatus {
    /// The duty.
    #[diesel(deserialize_as = Text)]
    pub name: String,
    /// The process that performed it.
    #[diesel(deserialize_as = Text)]
    pub holder: String,
    /// Its connection.
    #[diesel(column_name = conn_id)]
    pub conn: ConnId,
    /// How often it has run since it was first recorded.
    pub runs: u64,
    /// When it ran last, server time.
    #[diesel(deserialize_as = Time)]
    pub ran_at: DateTime<Utc>,
    /// What it reported, as JSON.
    #[diesel(deserialize_as = Report)]
    pub report: serde_json::Value,
}

/// PRIMARY (name): records a run of a duty.
pub async fn record(
    conn: &mut impl Connection,
    name: &'static str,
    holder: &str,
    report: &[u8],
) -> Result<()> {
    let row = (
        dsl::conn_id.eq(connection_id()),
        dsl::holder.eq(holder.as_bytes()),
        dsl::ran_at.eq(now()),
        dsl::report.eq(report),
    );
    let statement = diesel::insert_into(dsl::queue_duty)
        .values((dsl::name.eq(name.as_bytes()), dsl::runs.eq(1_u64), row.clone()))
        .on_conflict(DuplicatedKeys)
        .do_update()
        .set((row, dsl::runs.eq(dsl::runs + 1_u64)));
    write(conn, "record the duty", statement).await?;
    Ok(())
}

/// PRIMARY (name): reads the last run of every duty.
pub async fn all(conn: &mut impl Connection) -> Result<Vec<DutyStatus>> {
    let query = dsl::queue_duty.select(DutyStatus::as_select()).order(dsl::name);
    select(conn, "read the duties", query).await
}

/// A report; anything that is not JSON counts as null.
#[derive(Debug, FromSqlRow)]
pub struct Report(serde_json::Value);

impl FromSql<Binary, Mysql> for Report {
    fn from_sql(value: MysqlValue<'_>) -> deserialize::Result<Self> {
        Ok(Self(serde_json::from_slice(value.as_bytes()).unwrap_or(serde_json::Value::Null)))
    }
}

impl From<Report> for serde_json::Value {
    fn from(report: Report) -> Self {
        report.0
    }
}
