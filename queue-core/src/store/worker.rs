//! Workers: registration, beats, adoption and death. A worker's death is decided once, by one
//! compare-and-set on its row (history H3).

mod incarnation;
mod lock;
mod row;

pub use self::incarnation::{Incarnation, group, incarnation};
pub use self::lock::{Role, end_old_session, lock_name, take_lock};
pub use self::row::{WorkerRow, alive, find, latest, missing};

use std::time::Duration;

use diesel::dsl::auto_type;
use diesel::prelude::*;
use uuid::Uuid;

use super::{first_inserted, write, write_surely};
use crate::connection::Connection;
use crate::model::{Result, WorkerId};
use crate::schema::functions::{connection_id, current_user, now};
use crate::schema::queue_worker::dsl;

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
    let statement = diesel::insert_into(dsl::queue_worker).values((
        dsl::instance.eq(&registration.instance.as_bytes()[..]),
        dsl::client_id.eq(registration.client_id.as_bytes()),
        dsl::version.eq(registration.version.as_bytes()),
        dsl::account.eq(current_user()),
        dsl::life_conn_id.eq(connection_id()),
        dsl::server_uid.eq(incarnation.server_uid.as_bytes()),
        dsl::server_started_at.eq(incarnation.started_at),
        dsl::lease_ms.eq(lease_ms),
        dsl::beat_at.eq(now()),
        dsl::registered_at.eq(now()),
    ));
    write(conn, OPERATION, statement).await?;
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
    const OPERATION: &str = "adopt the worker";
    let living = living(worker, instance.as_bytes());
    let row = (
        dsl::server_uid.eq(incarnation.server_uid.as_bytes()),
        dsl::server_started_at.eq(incarnation.started_at),
        dsl::beat_no.eq(dsl::beat_no + 1_u64),
        dsl::beat_at.eq(now()),
    );
    match role {
        Role::Life => {
            let row = (dsl::life_conn_id.eq(connection_id()), row);
            write_surely(conn, OPERATION, diesel::update(living).set(row)).await
        }
        Role::Work => {
            let row = (dsl::conn_id.eq(connection_id()), row);
            write_surely(conn, OPERATION, diesel::update(living).set(row)).await
        }
    }
}

/// The worker, unless it has ended.
#[auto_type(no_type_alias)]
fn living<'i>(worker: WorkerId, instance: &'i [u8]) -> _ {
    let alive: &'static [u8] = b"alive";
    dsl::queue_worker.find(worker).filter(dsl::instance.eq(instance).and(dsl::state.eq(alive)))
}

/// PRIMARY: records one beat. 0 rows: the worker is dead for ever.
pub async fn beat(conn: &mut impl Connection, worker: WorkerId, instance: Uuid) -> Result<usize> {
    let statement = diesel::update(living(worker, instance.as_bytes()))
        .set((dsl::beat_no.eq(dsl::beat_no + 1_u64), dsl::beat_at.eq(now())));
    write_surely(conn, "beat", statement).await
}

/// PRIMARY: ends the worker in order; it has released all it held.
pub async fn stop(conn: &mut impl Connection, worker: WorkerId, instance: Uuid) -> Result<usize> {
    let statement = diesel::update(living(worker, instance.as_bytes()))
        .set((dsl::state.eq(&b"stopped"[..]), dsl::ended_at.eq(now().nullable())));
    write_surely(conn, "deregister the worker", statement).await
}

/// PRIMARY: declares the worker dead, unless its row has changed since `seen` was read: a beat, an
/// adoption, an end. 0 rows: it is alive, or another session has decided.
pub async fn declare_dead(
    conn: &mut impl Connection,
    seen: &WorkerRow,
    reason: &str,
) -> Result<usize> {
    let as_seen = dsl::conn_id
        .eq(seen.conn)
        .and(dsl::life_conn_id.eq(seen.life_conn))
        .and(dsl::server_uid.eq(seen.incarnation.server_uid.as_bytes()))
        .and(dsl::server_started_at.eq(seen.incarnation.started_at))
        .and(dsl::beat_no.eq(seen.beat_no));
    let statement =
        diesel::update(living(seen.id, seen.instance.as_bytes()).filter(as_seen)).set((
            dsl::state.eq(&b"dead"[..]),
            dsl::ended_at.eq(now().nullable()),
            dsl::end_reason.eq(reason.as_bytes()),
        ));
    write_surely(conn, "declare the worker dead", statement).await
}
