//! The end of the server's binary log, read on the connection that is about to follow it.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};

/// The end of the binary log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) file: Vec<u8>,
    pub(crate) offset: u64,
}

/// No index: reads the end of the binary log; `None` where the server writes none.
///
/// MySQL has accepted this statement since 8.2, and no other since 8.4; MariaDB only accepts the
/// old one.
pub(crate) async fn position(conn: &mut Conn) -> Result<Option<Position>, Error> {
    let row: Option<Row> = match conn.query_first("SHOW BINARY LOG STATUS").await {
        Err(Error::Server(error)) if error.code == SYNTAX_ERROR => {
            conn.query_first("SHOW MASTER STATUS").await?
        }
        other => other?,
    };
    Ok(row.and_then(|row| Some(Position { file: row.get(0)?, offset: row.get(1)? })))
}

/// `ER_PARSE_ERROR`.
const SYNTAX_ERROR: u16 = 1064;

/// Sets how often the server sends a heartbeat on an idle stream. Both products know the variable
/// by its old name; it counts nanoseconds.
pub(crate) async fn set_heartbeat(
    conn: &mut Conn,
    every: std::time::Duration,
) -> Result<(), Error> {
    conn.query_drop(format!("SET @master_heartbeat_period = {}", every.as_nanos())).await
}
