use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary};
use serde::Serialize;

use crate::connection::Connection;
use crate::connection::Statement;
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
pub async fn incarnation(conn: &mut impl Connection) -> Result<Incarnation> {
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
