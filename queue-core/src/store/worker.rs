//! Workers: registration, beats, adoption and death. A worker's death is decided once, by one
//! compare-and-set on its row (history H3).

mod incarnation;
mod lock;
mod row;

pub use self::incarnation::{Incarnation, incarnation};
pub use self::lock::{Role, end_old_session, lock_name, take_lock};
pub use self::row::{WorkerRow, alive, find, latest};

use std::time::Duration;

use uuid::Uuid;

use super::{Statement, execute, execute_surely, first_inserted};
use crate::connection::Connection;
use crate::model::{Result, WorkerId};

/// A worker's registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Random, generated when the process starts: never a host, pod or process name, which recur.
    pub instance: Uuid,
    /// Its name for operators: host, address, process, instance.
    pub client_id: String,
    /// The program's version.
    pub version: String,
    /// How long it may be silent before the server drops its sessions.
    pub lease: Duration,
}

/// PRIMARY: registers the worker whose life session this connection is.
pub async fn register(
    conn: &mut impl Connection,
    registration: &Registration,
    incarnation: &Incarnation,
) -> Result<WorkerId> {
    const OPERATION: &str = "register the worker";
    let lease_ms = u64::try_from(registration.lease.as_millis()).unwrap_or(u64::MAX);
    let statement = Statement::new(
        "INSERT INTO queue_worker (instance, client_id, version, account, life_conn_id, \
         server_uid, server_started_at, lease_ms, beat_at, registered_at) \
         VALUES (?, ?, ?, CURRENT_USER(), CONNECTION_ID(), ?, ?, ?, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6))",
    )
    .bytes(registration.instance.as_bytes().to_vec())
    .bytes(registration.client_id.as_bytes())
    .bytes(registration.version.as_bytes())
    .bytes(incarnation.server_uid.as_bytes())
    .signed(incarnation.started_at)
    .number(lease_ms);
    execute(conn, OPERATION, statement).await?;
    Ok(WorkerId(first_inserted(conn, OPERATION).await?))
}

/// PRIMARY: makes this connection a session of the worker; competes with [`declare_dead`]. 0 rows:
/// the worker is dead for ever, or a failover that lost its row has given the number to another
/// worker.
pub async fn adopt(
    conn: &mut impl Connection,
    worker: WorkerId,
    instance: Uuid,
    role: Role,
    incarnation: &Incarnation,
) -> Result<usize> {
    let column = match role {
        Role::Life => "life_conn_id",
        Role::Work => "conn_id",
    };
    let statement = Statement::new(format!(
        "UPDATE queue_worker SET {column} = CONNECTION_ID(), server_uid = ?, \
         server_started_at = ?, beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) \
         WHERE id = ? AND instance = ? AND state = 'alive'"
    ))
    .bytes(incarnation.server_uid.as_bytes())
    .signed(incarnation.started_at)
    .number(worker.0)
    .bytes(instance.as_bytes().to_vec());
    execute_surely(conn, "adopt the worker", statement).await
}

/// PRIMARY: records one beat. 0 rows: the worker is dead for ever.
pub async fn beat(conn: &mut impl Connection, worker: WorkerId, instance: Uuid) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) \
         WHERE id = ? AND instance = ? AND state = 'alive'",
    )
    .number(worker.0)
    .bytes(instance.as_bytes().to_vec());
    execute_surely(conn, "beat", statement).await
}

/// PRIMARY: ends the worker in order; it has released all it held.
pub async fn stop(conn: &mut impl Connection, worker: WorkerId, instance: Uuid) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_worker SET state = 'stopped', ended_at = UTC_TIMESTAMP(6) \
         WHERE id = ? AND instance = ? AND state = 'alive'",
    )
    .number(worker.0)
    .bytes(instance.as_bytes().to_vec());
    execute_surely(conn, "deregister the worker", statement).await
}

/// PRIMARY: declares the worker dead, unless its row has changed since `seen` was read: a beat, an
/// adoption, an end. 0 rows: it is alive, or another session has decided.
pub async fn declare_dead(
    conn: &mut impl Connection,
    seen: &WorkerRow,
    reason: &str,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6), end_reason = ? \
         WHERE id = ? AND instance = ? AND state = 'alive' AND conn_id = ? AND life_conn_id = ? \
         AND server_uid = ? AND server_started_at = ? AND beat_no = ?",
    )
    .bytes(reason.as_bytes())
    .number(seen.id.0)
    .bytes(seen.instance.as_bytes().to_vec())
    .number(seen.conn.0)
    .number(seen.life_conn.0)
    .bytes(seen.incarnation.server_uid.as_bytes())
    .signed(seen.incarnation.started_at)
    .number(seen.beat_no);
    execute_surely(conn, "declare the worker dead", statement).await
}
