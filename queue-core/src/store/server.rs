//! The server's status, and the sizes of the tables.

use super::doctor::Variables;
use super::{Statement, load};
use crate::connection::Connection;
use crate::model::{Error, Fault, Result};

/// No index: reads the status behind the metrics; values that the server does not know are missing.
pub async fn status(conn: &mut impl Connection) -> Result<Variables> {
    let statement = Statement::new(
        "SHOW GLOBAL STATUS WHERE Variable_name IN ('Threads_connected', \
         'Innodb_history_list_length', 'Rpl_semi_sync_master_status', \
         'Rpl_semi_sync_source_status')",
    );
    let rows: Vec<(String, String)> = load(conn, "read the server's status", statement).await?;
    Ok(rows.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect())
}

/// No index: reads how many transactions have old row versions that are not purged, where the
/// status does not show it (MySQL); `None` without PROCESS.
pub async fn history_length(conn: &mut impl Connection) -> Result<Option<u64>> {
    let statement = Statement::new(
        "SELECT CAST(COUNT AS SIGNED) AS length FROM information_schema.INNODB_METRICS \
         WHERE NAME = 'trx_rseg_history_len'",
    );
    let rows: Result<Vec<u64>> = load(conn, "read the history's length", statement).await;
    match rows {
        Err(error) if error.fault() == Fault::Denied => Ok(None),
        rows => Ok(rows?.first().copied()),
    }
}

/// How large a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct TableSize {
    /// Its name.
    pub name: &'static str,
    /// Bytes on disk, including its indexes and the space of deleted rows.
    pub bytes: u64,
}

/// No index: reads the sizes of these tables, from the server's statistics. It names each table, so
/// that the server opens no other table of the database.
pub async fn table_sizes(
    conn: &mut impl Connection,
    tables: &[&'static str],
) -> Result<Vec<TableSize>> {
    const OPERATION: &str = "read the tables' sizes";
    const ONE: &str = "SELECT TABLE_NAME AS name, \
         CAST(COALESCE(DATA_LENGTH + INDEX_LENGTH + DATA_FREE, 0) AS SIGNED) AS bytes \
         FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ";
    // MySQL shows statistics cached for up to a day unless the session disables that.
    let fresh = "SET /*!80000 SESSION information_schema_stats_expiry = 0, */ @queue_fresh = 1";
    conn.batch(fresh).await.map_err(|error| Error::database(OPERATION, &error))?;
    // Literals instead of parameters: bound bytes would be compared without the index.
    let each: Vec<_> = tables.iter().map(|name| format!("{ONE}'{name}'")).collect();
    let rows: Vec<(String, u64)> =
        load(conn, OPERATION, Statement::new(each.join(" UNION ALL "))).await?;
    let size = |(name, bytes): (String, u64)| {
        let name = tables.iter().find(|table| **table == name).copied()?;
        Some(TableSize { name, bytes })
    };
    Ok(rows.into_iter().filter_map(size).collect())
}
