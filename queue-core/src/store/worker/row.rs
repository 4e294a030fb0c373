//! Reading workers.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::Incarnation;
use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::{ConnId, Result, WorkerId};
use crate::store::load;

/// A worker, from its row and the locks of its sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerRow {
    /// Its registration number.
    pub id: WorkerId,
    /// Random, generated when it registered.
    pub instance: Uuid,
    /// Its name for operators.
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
    /// The server it was last connected to.
    pub incarnation: Incarnation,
    /// How long it may be silent before the server drops its sessions.
    pub lease: Duration,
    /// Rises with every beat.
    pub beat_no: u64,
    /// When it last beat, server time: for operators only; no decision depends on it.
    pub beat_at: DateTime<Utc>,
    /// When it registered, server time.
    pub registered_at: DateTime<Utc>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// Whether one of its sessions holds its name lock. A lock held by an unrelated session proves
    /// nothing.
    pub locked: bool,
    /// Claims it holds.
    pub claims: u32,
}

row! {
    WorkerRow {
        id, instance, client_id, version, account, state, conn, life_conn, incarnation,
        lease: Duration::from_millis, beat_no, beat_at, registered_at, end_reason, locked, claims,
    }
}

/// Whether one of the worker's sessions holds its name lock.
macro_rules! locked {
    () => {
        "(COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))) IN (w.conn_id, w.life_conn_id), 0) \
          OR COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)), ':work')) IN (w.conn_id, w.life_conn_id), 0))"
    };
}

const SELECT: &str = concat!(
    "SELECT w.id, w.instance, w.client_id, w.version, w.account, w.state, w.conn_id, \
     w.life_conn_id, w.server_uid, w.server_started_at, w.lease_ms, w.beat_no, w.beat_at, \
     w.registered_at, w.end_reason, ",
    locked!(),
    " AS locked, \
     (SELECT COUNT(*) FROM queue_claim c WHERE c.worker_id = w.id) AS claims \
     FROM queue_worker w ",
);

const MISSING: &str =
    concat!("SELECT w.id FROM queue_worker w WHERE w.state = 'alive' AND NOT ", locked!());

/// KEY (state, id): reads every worker that is not known to have ended.
pub async fn alive(conn: &mut impl Connection) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.state = 'alive' ORDER BY w.id");
    load(conn, "list the workers", statement).await
}

/// KEY (state, id): finds the workers that are not known to have ended and whose sessions hold
/// neither name lock: they are dead, or reconnect.
pub async fn missing(conn: &mut impl Connection) -> Result<Vec<WorkerId>> {
    load(conn, "look for missing workers", Statement::new(MISSING)).await
}

/// PRIMARY: reads the latest `limit` workers, ended ones too, newest first.
pub async fn latest(conn: &mut impl Connection, limit: u32) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("ORDER BY w.id DESC LIMIT ?").number(limit);
    load(conn, "list the workers", statement).await
}

/// PRIMARY: reads one worker.
pub async fn find(conn: &mut impl Connection, id: WorkerId) -> Result<Option<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.id = ?").number(id.0);
    let rows: Vec<WorkerRow> = load(conn, "read the worker", statement).await?;
    Ok(rows.into_iter().next())
}
