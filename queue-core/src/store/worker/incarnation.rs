use serde::Serialize;

use crate::connection::Statement;
use crate::connection::{Connection, row};
use crate::model::Result;
use crate::store::load;

/// One life of a server process: connection ids mean something only within it (history H21).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Incarnation {
    /// The server's own id.
    pub server_uid: String,
    /// When it started, in seconds since 1970 by its own clock.
    pub started_at: i64,
}

row! { Incarnation { server_uid, started_at } }

/// `UNIX_TIMESTAMP() - Uptime` is truncated to seconds twice, so it varies by one. A restart within
/// two seconds is noticed all the same, because it frees the name locks.
const START_TOLERANCE_SECONDS: i64 = 2;

impl Incarnation {
    /// Returns whether both are the same life of the same server.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.server_uid == other.server_uid
            && (self.started_at - other.started_at).abs() <= START_TOLERANCE_SECONDS
    }

    /// Returns whether this is a later life of the same server: the sessions of `earlier` are over.
    #[must_use]
    pub fn succeeds(&self, earlier: &Self) -> bool {
        self.server_uid == earlier.server_uid
            && self.started_at - earlier.started_at > START_TOLERANCE_SECONDS
    }
}

/// No index: reads the incarnation of the server behind this connection. The variable of its id is
/// `server_uuid` on MySQL and `server_uid` on MariaDB.
pub async fn incarnation(conn: &mut impl Connection) -> Result<Incarnation> {
    const OPERATION: &str = "read the server's incarnation";
    let uid = Statement::new(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uid', 'server_uuid')",
    );
    let uid: Vec<(String, String)> = load(conn, OPERATION, uid).await?;
    let now: Vec<i64> =
        load(conn, OPERATION, Statement::new("SELECT UNIX_TIMESTAMP() AS now")).await?;
    let uptime = Statement::new("SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime'");
    let uptime: Vec<(String, String)> = load(conn, OPERATION, uptime).await?;
    let value = |rows: Vec<(String, String)>| rows.into_iter().next().unwrap_or_default().1;
    let uptime: i64 = value(uptime).parse().unwrap_or_default();
    let now = now.first().copied().unwrap_or(0);
    Ok(Incarnation { server_uid: value(uid), started_at: now - uptime })
}

/// No index: lists the ids of the servers in this server's replication group. A member that has
/// left it, or was expelled, can no longer commit. MySQL only; needs SELECT on that table.
pub async fn group(conn: &mut impl Connection) -> Result<Vec<String>> {
    let statement = Statement::new(
        "SELECT CAST(MEMBER_ID AS CHAR) AS server_uid \
         FROM performance_schema.replication_group_members",
    );
    load(conn, "list the servers of the group", statement).await
}
