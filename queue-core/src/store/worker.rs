//! Workers: registration, beats, adoption and death. A worker's death is decided once, by one
//! compare-and-set on its row (history H3).

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary, Integer, Nullable, Unsigned};
use diesel_async::{AsyncMysqlConnection, SimpleAsyncConnection};
use serde::Serialize;
use uuid::Uuid;

use super::{Statement, execute, load};
use crate::error::{Error, Result};
use crate::message::{ConnId, WorkerId};

/// One life of a server process: connection ids mean something only within it (history H21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Incarnation {
    /// The server's own id.
    pub server_uid: String,
    /// When it started, in seconds since 1970 by its own clock.
    pub started_at: i64,
}

/// `UNIX_TIMESTAMP() - Uptime` is cut to seconds twice, so it wavers by one; a restart that leaves
/// it within two seconds is caught by the name locks, which it frees.
const START_TOLERANCE_SECONDS: i64 = 2;

impl Incarnation {
    /// Whether both are the same life of the same server.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.server_uid == other.server_uid
            && (self.started_at - other.started_at).abs() <= START_TOLERANCE_SECONDS
    }
}

/// No index: the incarnation of the server behind this connection. `uid_variable` is
/// `server_uuid` (MySQL) or `server_uid` (MariaDB).
///
/// # Errors
/// A database failure.
pub async fn incarnation(conn: &mut AsyncMysqlConnection) -> Result<Incarnation> {
    #[derive(QueryableByName)]
    struct Variable {
        #[diesel(sql_type = Binary, column_name = "Value")]
        value: Vec<u8>,
    }
    #[derive(QueryableByName)]
    struct Now {
        #[diesel(sql_type = BigInt)]
        now: i64,
    }
    const OPERATION: &str = "read the server's incarnation";
    let uid = Statement::new(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uid', 'server_uuid')",
    );
    let uid: Vec<Variable> = load(conn, OPERATION, uid).await?;
    let now: Vec<Now> =
        load(conn, OPERATION, Statement::new("SELECT UNIX_TIMESTAMP() AS now")).await?;
    let uptime = Statement::new("SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime'");
    let uptime: Vec<Variable> = load(conn, OPERATION, uptime).await?;
    let text = |rows: &[Variable]| {
        rows.first().map(|row| String::from_utf8_lossy(&row.value).into_owned()).unwrap_or_default()
    };
    let uptime: i64 = text(&uptime).parse().unwrap_or_default();
    let now = now.first().map_or(0, |row| row.now);
    Ok(Incarnation { server_uid: text(&uid), started_at: now - uptime })
}

/// One of a worker's two sessions, each with a name lock of its own that says it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Beats and probes.
    Life,
    /// Claims and settles.
    Work,
}

/// The name of the session's lock. Lock names are server-wide, so the worker's random instance
/// stands in it: 43 bytes of the 64 that MySQL takes.
#[must_use]
pub fn lock_name(instance: Uuid, role: Role) -> String {
    match role {
        Role::Life => format!("queue:{}", instance.simple()),
        Role::Work => format!("queue:{}:work", instance.simple()),
    }
}

/// No index: waits up to `wait` (whole seconds) for the session's name lock, which an earlier
/// session of the same worker holds until the server has ended it (history H6).
///
/// # Errors
/// A database failure.
pub async fn take_lock(
    conn: &mut AsyncMysqlConnection,
    instance: Uuid,
    role: Role,
    wait: Duration,
) -> Result<bool> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<BigInt>)]
        got: Option<i64>,
    }
    let statement = Statement::new("SELECT GET_LOCK(?, ?) AS got")
        .bytes(lock_name(instance, role).into_bytes())
        .number(wait.as_secs());
    let rows: Vec<Row> = load(conn, "take the worker's name lock", statement).await?;
    Ok(rows.first().and_then(|row| row.got) == Some(1))
}

/// No index: ends the session that holds the name lock of `instance`, an earlier one of the same
/// worker that the server has not missed yet; its transaction is rolled back. An account may end
/// its own sessions, and the name proves that it is ours: a stored id never would.
///
/// # Errors
/// A database failure.
pub async fn end_old_session(
    conn: &mut AsyncMysqlConnection,
    instance: Uuid,
    role: Role,
) -> Result<()> {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = Nullable<Unsigned<BigInt>>)]
        holder: Option<u64>,
    }
    const OPERATION: &str = "end the old session";
    let statement = Statement::new("SELECT CAST(IS_USED_LOCK(?) AS UNSIGNED) AS holder")
        .bytes(lock_name(instance, role).into_bytes());
    let rows: Vec<Row> = load(conn, OPERATION, statement).await?;
    let Some(holder) = rows.first().and_then(|row| row.holder) else { return Ok(()) };
    // KILL takes no bound value on MySQL.
    let killed = conn.batch_execute(&format!("KILL {holder}")).await;
    killed.map_err(|error| Error::database(OPERATION, &error))
}

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// Random, made at the start of the process: never a host, pod or process name, which recur.
    pub instance: Uuid,
    /// Who it is, for people: host, address, process, instance.
    pub client_id: String,
    /// The program's version.
    pub version: String,
    /// After this silence the server drops its sessions.
    pub lease: Duration,
}

/// PRIMARY: registers a worker whose life session this is.
///
/// # Errors
/// A database failure.
pub async fn register(
    conn: &mut AsyncMysqlConnection,
    registration: &Registration,
    incarnation: &Incarnation,
) -> Result<WorkerId> {
    #[derive(QueryableByName)]
    struct Inserted {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
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
    let rows: Vec<Inserted> =
        load(conn, OPERATION, Statement::new("SELECT LAST_INSERT_ID() AS id")).await?;
    let id = rows.first().map(|row| WorkerId(row.id));
    id.ok_or(Error::Counts { operation: OPERATION, expected: 1, found: 0 })
}

/// PRIMARY: the competing update to [`declare_dead`]: a session of the worker is now this
/// connection. 0 rows: the worker is dead for ever, or a failover that lost its row has given the
/// number to another.
///
/// # Errors
/// A database failure.
pub async fn adopt(
    conn: &mut AsyncMysqlConnection,
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
    execute(conn, "adopt the worker", statement).await
}

/// PRIMARY: one beat. 0 rows: the worker is dead for ever.
///
/// # Errors
/// A database failure.
pub async fn beat(
    conn: &mut AsyncMysqlConnection,
    worker: WorkerId,
    instance: Uuid,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_worker SET beat_no = beat_no + 1, beat_at = UTC_TIMESTAMP(6) \
         WHERE id = ? AND instance = ? AND state = 'alive'",
    )
    .number(worker.0)
    .bytes(instance.as_bytes().to_vec());
    execute(conn, "beat", statement).await
}

/// PRIMARY: the worker ends by itself, having released all it held.
///
/// # Errors
/// A database failure.
pub async fn stop(
    conn: &mut AsyncMysqlConnection,
    worker: WorkerId,
    instance: Uuid,
) -> Result<usize> {
    let statement = Statement::new(
        "UPDATE queue_worker SET state = 'stopped', ended_at = UTC_TIMESTAMP(6) \
         WHERE id = ? AND instance = ? AND state = 'alive'",
    )
    .number(worker.0)
    .bytes(instance.as_bytes().to_vec());
    execute(conn, "deregister the worker", statement).await
}

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
    /// Whether a session of it holds its name lock.
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
     (COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)))), 0) <> 0 \
      OR COALESCE(IS_USED_LOCK(CONCAT('queue:', LOWER(HEX(w.instance)), ':work')), 0) <> 0) AS locked, \
     (SELECT COUNT(*) FROM queue_claim c WHERE c.worker_id = w.id) AS claims \
     FROM queue_worker w ";

/// KEY (state, id): every worker that is not known to have ended.
///
/// # Errors
/// A database failure.
pub async fn alive(conn: &mut AsyncMysqlConnection) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.state = 'alive' ORDER BY w.id");
    let rows: Vec<Row> = load(conn, "list the workers", statement).await?;
    Ok(rows.into_iter().map(WorkerRow::from).collect())
}

/// PRIMARY: the latest `limit` workers, ended ones too, newest first.
///
/// # Errors
/// A database failure.
pub async fn latest(conn: &mut AsyncMysqlConnection, limit: u32) -> Result<Vec<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("ORDER BY w.id DESC LIMIT ?").number(limit);
    let rows: Vec<Row> = load(conn, "list the workers", statement).await?;
    Ok(rows.into_iter().map(WorkerRow::from).collect())
}

/// PRIMARY: one worker.
///
/// # Errors
/// A database failure.
pub async fn find(conn: &mut AsyncMysqlConnection, id: WorkerId) -> Result<Option<WorkerRow>> {
    let statement = Statement::new(SELECT).sql("WHERE w.id = ?").number(id.0);
    let rows: Vec<Row> = load(conn, "read the worker", statement).await?;
    Ok(rows.into_iter().next().map(WorkerRow::from))
}

/// PRIMARY: decides the worker's death, unless anything of it has moved since `seen` was read: a
/// beat, an adoption, an end. 0 rows: it lives, or somebody else decided.
///
/// # Errors
/// A database failure.
pub async fn declare_dead(
    conn: &mut AsyncMysqlConnection,
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
    execute(conn, "declare the worker dead", statement).await
}
