//! The name locks that show that a worker's sessions are alive.

use std::time::Duration;

use uuid::Uuid;

use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{ConnId, Error, Result};
use crate::store::load;

/// One of a worker's two sessions, each with a name lock of its own that shows it is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Beats and probes.
    Life,
    /// Claims and settles.
    Work,
}

impl Role {
    /// Returns the word used in metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::Work => "work",
        }
    }
}

/// Returns the name of the session's lock. Lock names are server-wide, so the name contains the
/// worker's random instance: 43 bytes of the 64 that MySQL takes.
#[must_use]
pub fn lock_name(instance: Uuid, role: Role) -> String {
    match role {
        Role::Life => format!("queue:{}", instance.simple()),
        Role::Work => format!("queue:{}:work", instance.simple()),
    }
}

/// No index: waits up to `wait` (whole seconds) for the session's name lock, which an earlier
/// session of the same worker holds until the server has ended it (history H6).
pub async fn take_lock(
    conn: &mut impl Connection,
    instance: Uuid,
    role: Role,
    wait: Duration,
) -> Result<bool> {
    let statement = Statement::new("SELECT GET_LOCK(?, ?) AS got")
        .bytes(lock_name(instance, role).into_bytes())
        .number(wait.as_secs());
    let rows: Vec<Option<i64>> = load(conn, "take the worker's name lock", statement).await?;
    Ok(rows.first() == Some(&Some(1)))
}

/// No index: ends the session that holds the name lock of `instance`: an earlier session of the
/// same worker whose loss the server has not noticed. The server rolls its transaction back. An
/// account may end its own sessions, and the name proves that the session is the worker's own; a
/// stored id would not.
pub async fn end_old_session(conn: &mut impl Connection, instance: Uuid, role: Role) -> Result<()> {
    const OPERATION: &str = "end the old session";
    let statement = Statement::new("SELECT CAST(IS_USED_LOCK(?) AS UNSIGNED) AS holder")
        .bytes(lock_name(instance, role).into_bytes());
    let rows: Vec<Option<ConnId>> = load(conn, OPERATION, statement).await?;
    let Some(Some(holder)) = rows.first() else { return Ok(()) };
    // MySQL takes no bound value for KILL.
    let killed = conn.batch(&format!("KILL {holder}")).await;
    killed.map_err(|error| Error::database(OPERATION, &error))
}
