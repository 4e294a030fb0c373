//! Reading workers.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Unsigned};
use serde::Serialize;
use uuid::Uuid;

use super::Incarnation;
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{ConnId, Result, WorkerId};
use crate::store::load;

/// A worker as its row, and the locks of its sessions, tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerRow {
    /// Its registration.
    pub id: WorkerId,
    /// Random, made when it registered.
    pub instance: Uuid,
    /// Who it is, for people.
    pub client_id: String,
    /// The program's version.
    pub version: String,
    /// The account of its sessions.
    pub account: String,
    /// `alive`, `dead` or `stopped`.
    pub state: String,
    /// Its work session, which claims.
    pub conn: ConnId,
    /// Its life session, which beats.
    pub life_conn: ConnId,
    /// The server it spoke to last.
    pub incarnation: Incarnation,
    /// After this silence the server drops its sessions.
    pub lease: Duration,
    /// Rises with every beat.
    pub beat_no: u64,
    /// When it last beat, server time: for people; nothing is decided by it.
    pub beat_at: DateTime<Utc>,
    /// When it registered, server time.
    pub registered_at: DateTime<Utc>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// Whether a session of it holds its name lock. A lock that another session has got hold of
    /// proves nothing.
    pub locked: bool,
    /// Claims it holds.
    pub claims: u32,
}

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Unsigned<BigInt>)]
    id: u64,
    #[diesel(sql_type = Binary)]
    instance: Vec<u8>,
    #[diesel(sql_type = Binary)]
    client_id: Vec<u8>,
    #[diesel(sql_type = Binary)]
    version: Vec<u8>,
    #[diesel(sql_type = Binary)]
    account: Vec<u8>,
    #[diesel(sql_type = Binary)]
    state: Vec<u8>,
    #[diesel(sql_type = Unsigned<BigInt>)]
    conn_id: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    life_conn_id: u64,
    #[diesel(sql_type = Binary)]
    server_uid: Vec<u8>,
    #[diesel(sql_type = BigInt)]
    server_started_at: i64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    lease_ms: u64,
    #[diesel(sql_type = Unsigned<BigInt>)]
    beat_no: u64,
    #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
    beat_at: NaiveDateTime,
    #[diesel(sql_type = diesel::mysql::sql_types::Datetime)]
    registered_at: NaiveDateTime,
    #[diesel(sql_type = Nullable<Binary>)]
    end_reason: Option<Vec<u8>>,
    #[diesel(sql_type = Integer)]
    locked: i32,
    #[diesel(sql_type = BigInt)]
    claims: i64,
}

impl From<Row> for WorkerRow {
    fn from(row: Row) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self {
            id: WorkerId(row.id),
            instance: Uuid::from_slice(&row.instance).unwrap_or_default(),
            client_id: text(row.client_id),
            version: text(row.version),
            account: text(row.account),
            state: text(row.state),
            conn: ConnId(row.conn_id),
            life_conn: ConnId(row.life_conn_id),
            incarnation: Incarnation {
                server_uid: text(row.server_uid),
                started_at: row.server_started_at,
            },
            lease: Duration::from_millis(row.lease_ms),
            beat_no: row.beat_no,
            beat_at: row.beat_at.and_utc(),
            registered_at: row.registered_at.and_utc(),
            end_reason: row.end_reason.map(text),
            locked: row.locked != 0,
            claims: u32::try_from(row.claims).unwrap_or(u32::MAX),
        }
    }
}

const SELECT: &str = "SELECT w.id, w.instance, w.client_id, w.version, w.account, w.state, w.conn_id, \
     w.life_conn_id, w.server_uid, w.server_started_at, w.lease_ms, w.beat_no, w.beat_at, \
     w.registered_at, w.end_reason, \
     (COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) IN (w.conn_id, w.life_conn_id), 0) \
      OR COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)), ':work')) IN (w.conn_id, w.life_conn_id), 0)) AS locked, \
     (SELECT COUNT(*) FROM queue_claim c WHERE c.worker_id = w.id) AS claims \
     FROM queue_worker w ";

/// KEY (state, id): every worker that is not known to have ended.
pub async fn alive(conn: &mut impl Connection) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.state = 'alive' ORDER BY w.id");
    let rows: Vec<Row> = load(conn, "list the workers", statement).await?;
    Ok(rows.into_iter().map(WorkerRow::from).collect())
}

/// PRIMARY: the latest `limit` workers, ended ones too, newest first.
pub async fn latest(conn: &mut impl Connection, limit: u32) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("ORDER BY w.id DESC LIMIT ?").number(limit);
    let rows: Vec<Row> = load(conn, "list the workers", statement).await?;
    Ok(rows.into_iter().map(WorkerRow::from).collect())
}

/// PRIMARY: one worker.
pub async fn find(conn: &mut impl Connection, id: WorkerId) -> Result<Option<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.id = ?").number(id.0);
    let rows: Vec<Row> = load(conn, "read the worker", statement).await?;
    Ok(rows.into_iter().next().map(WorkerRow::from))
}
