//! The server's process list: which connections are alive.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::{Statement, load};
use crate::connection::{Connection, Rest, row};
use crate::model::{ConnId, Fault, Result};

/// `SHOW PROCESSLIST`: lists the connections that this account may see.
///
/// Not `information_schema.PROCESSLIST`: MySQL 9.7 refuses to read it (3854) while any session
/// runs a statement whose text is not UTF-8, such as an INSERT of a binary body.
pub async fn show(conn: &mut impl Connection) -> Result<HashSet<ConnId>> {
    let rows: Vec<(ConnId, Rest)> =
        load(conn, "read the process list", Statement::new("SHOW PROCESSLIST")).await?;
    Ok(rows.into_iter().map(|(id, _)| id).collect())
}

/// A connection of the process list, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// `user@host`, without the port.
    pub account: String,
    /// Its command, such as `Query` or `Sleep`.
    pub command: String,
    /// How long it has been running that command.
    pub since: Duration,
}

/// `SHOW PROCESSLIST`: lists the connections that this account may see, with the command of each.
pub async fn processes(conn: &mut impl Connection) -> Result<HashMap<ConnId, Process>> {
    // The id, the user, the host, the database, the command, the seconds, and columns that differ.
    type Row = (ConnId, String, String, Option<String>, String, (Option<i64>, Rest));
    let rows: Vec<Row> =
        load(conn, "read the process list", Statement::new("SHOW PROCESSLIST")).await?;
    let process = |(id, user, host, _, command, (seconds, _)): Row| {
        let host = host.rsplit_once(':').map_or(&*host, |(host, _)| host);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let process = Process {
            account: format!("{user}@{host}"),
            command,
            since: Duration::from_secs(seconds.unwrap_or(0)),
        };
        (id, process)
    };
    Ok(rows.into_iter().map(process).collect())
}

/// Lists the connections that the view of `ops/deploy/grants/process-list.sql` shows; `None` if
/// this account has no such view, or if the view does not prove that it is complete: its owner must
/// have PROCESS, and it must show this very session. The second alone would prove nothing: while
/// MariaDB reads the view, it treats this session as the owner's.
pub async fn through_view(
    conn: &mut impl Connection,
    visibility: &Visibility,
) -> Result<Option<HashSet<ConnId>>> {
    let statement = Statement::new(
        "SELECT CAST(conn_id AS UNSIGNED) AS conn_id, CAST(sees_all AS SIGNED) AS sees_all \
         FROM queue_connection",
    );
    let rows: Vec<(ConnId, i64)> = match load(conn, "read the list of connections", statement).await
    {
        Err(error) if matches!(error.fault(), Fault::Denied | Fault::Schema) => return Ok(None),
        rows => rows?,
    };
    let is_proved = rows.iter().any(|(conn, sees_all)| *conn == visibility.conn && *sees_all > 0);
    Ok(is_proved.then(|| rows.into_iter().map(|(conn, _)| conn).collect()))
}

/// What this session may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visibility {
    /// The account as the server matched it, `user@host`.
    pub account: String,
    /// Its own connection.
    pub conn: ConnId,
    /// Whether a grant names PROCESS, so that every connection is listed.
    pub process: bool,
}

/// No index: reads the account, the connection id and whether PROCESS is granted globally.
pub async fn visibility(conn: &mut impl Connection) -> Result<Visibility> {
    // The grantee is quoted as 'user'@'host'; only a grant on *.* shows other accounts' threads.
    let statement = Statement::new(
        "SELECT CURRENT_USER() AS account, CONNECTION_ID() AS conn_id, \
         (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES \
          WHERE PRIVILEGE_TYPE = 'PROCESS' AND GRANTEE = CONCAT('''', \
          LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - 1 \
          - CHAR_LENGTH(SUBSTRING_INDEX(CURRENT_USER(), '@', -1))), '''@''', \
          SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')) AS process",
    );
    let rows: Vec<Visibility> = load(conn, "read the account's grants", statement).await?;
    rows.into_iter().next().ok_or(crate::Error::Counts {
        operation: "read the account's grants",
        expected: 1,
        found: 0,
    })
}

row! { Visibility { account, conn, process } }
