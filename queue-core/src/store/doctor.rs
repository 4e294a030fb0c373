//! The statements of the self-test.

use std::collections::HashMap;

use super::{Statement, execute, execute_surely, load};
use crate::connection::{Connection, Rest};
use crate::model::{ConnId, Error, Result};

/// The server's variables that matter to the queue, by name; those it does not know are missing.
#[derive(Debug, Clone, Default)]
pub struct Variables(HashMap<String, String>);

impl Variables {
    /// Returns the value as the server shows it.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns the value as a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(|value| value.parse().ok())
    }

    /// Returns whether the value is ON or 1.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), Some("ON" | "1" | "YES"))
    }
}

impl<'v> FromIterator<(&'v str, &'v str)> for Variables {
    fn from_iter<I: IntoIterator<Item = (&'v str, &'v str)>>(variables: I) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self(variables.into_iter().map(owned).collect())
    }
}

/// No index: reads the variables that the self-test checks.
pub async fn variables(conn: &mut impl Connection) -> Result<Variables> {
    let statement = Statement::new(
        "SHOW VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', \
         'super_read_only', 'innodb_read_only', 'binlog_format', 'log_bin', 'sync_binlog', \
         'innodb_flush_log_at_trx_commit', 'max_allowed_packet', 'wsrep_on', \
         'transaction_isolation', 'tx_isolation', 'max_connections', 'autocommit', \
         'group_replication_group_name', 'group_replication_single_primary_mode', \
         'group_replication_consistency', 'rpl_semi_sync_master_enabled', \
         'rpl_semi_sync_master_wait_point', 'rpl_semi_sync_source_enabled', \
         'rpl_semi_sync_source_wait_point')",
    );
    let rows: Vec<(String, String)> = load(conn, "read the server's variables", statement).await?;
    Ok(Variables(rows.into_iter().collect()))
}

/// No index: lists our tables and procedures in the database; a procedure's name ends in `()`,
/// because one procedure has the name of a table.
pub async fn objects(conn: &mut impl Connection) -> Result<Vec<String>> {
    let statement = Statement::new(
        "SELECT TABLE_NAME AS name FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'queue\\_%' \
         UNION ALL SELECT CONCAT(ROUTINE_NAME, '()') FROM information_schema.ROUTINES \
         WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME LIKE 'queue\\_%'",
    );
    load(conn, "list the queue's tables", statement).await
}

/// No index: lists the columns and keys of our tables that this account may see, a line each, such
/// as `queue_floor COLUMN floor bigint unsigned NOT NULL` and
/// `queue_worker KEY queue_worker_state (state, id)`.
pub async fn shape(conn: &mut impl Connection) -> Result<Vec<String>> {
    let statement = Statement::new(
        "SELECT CAST(TABLE_NAME AS CHAR) AS table_name, \
         CAST(CONCAT('COLUMN ', COLUMN_NAME) AS CHAR) AS head, \
         CAST(COLUMN_TYPE AS CHAR) AS column_type, \
         CAST(CONCAT(IF(IS_NULLABLE = 'YES', ' NULL', ' NOT NULL'), \
         IF(EXTRA LIKE '%auto_increment%', ' AUTO_INCREMENT', '')) AS CHAR) AS rest \
         FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'queue\\_%' \
         UNION ALL SELECT CAST(TABLE_NAME AS CHAR), \
         CAST(CASE WHEN INDEX_NAME = 'PRIMARY' THEN 'PRIMARY KEY' \
         WHEN MIN(NON_UNIQUE) = 0 THEN CONCAT('UNIQUE KEY ', INDEX_NAME) \
         ELSE CONCAT('KEY ', INDEX_NAME) END AS CHAR), '', \
         CAST(CONCAT('(', GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX SEPARATOR ', '), ')') \
         AS CHAR) FROM information_schema.STATISTICS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'queue\\_%' \
         GROUP BY TABLE_NAME, INDEX_NAME",
    );
    let rows: Vec<(String, String, String, String)> =
        load(conn, "read the shape of the queue's tables", statement).await?;
    let line = |(table, head, column_type, rest): (String, String, String, String)| {
        format!("{table} {head} {}{rest}", without_width(&column_type))
    };
    Ok(rows.into_iter().map(line).collect())
}

/// Removes the display width: MariaDB's `bigint(20) unsigned` is MySQL's `bigint unsigned`. Both
/// keep the 1 of a boolean.
fn without_width(column_type: &str) -> String {
    let is_number = ["tinyint", "int", "bigint"].iter().any(|it| column_type.starts_with(it));
    match (column_type.split_once('('), column_type.split_once(')')) {
        (Some((name, _)), Some((_, rest))) if is_number && column_type != "tinyint(1)" => {
            format!("{name}{rest}")
        }
        _ => column_type.to_owned(),
    }
}

/// No index: reads this session's connection id, twice: as a bare function, which a proxy may
/// answer itself, and within an expression, which reaches the server.
pub async fn connection_ids(conn: &mut impl Connection) -> Result<(ConnId, ConnId)> {
    const OPERATION: &str = "read the connection id";
    let bare: Vec<ConnId> =
        load(conn, OPERATION, Statement::new("SELECT CONNECTION_ID() AS id")).await?;
    let inner = Statement::new("SELECT CAST(CONNECTION_ID() + 0 AS UNSIGNED) AS id");
    let inner: Vec<ConnId> = load(conn, OPERATION, inner).await?;
    let id = |rows: &[ConnId]| rows.first().copied().unwrap_or(ConnId(0));
    Ok((id(&bare), id(&inner)))
}

/// No index: reads host and port of the server that this one replicates; `None` if there is none.
///
/// # Errors
/// A database failure; `Denied` without the privilege to know.
pub async fn replica_of(conn: &mut impl Connection) -> Result<Option<String>> {
    let statement = Statement::new("SHOW REPLICA STATUS");
    // MySQL renamed the columns; their positions are the same: the state, the host, the user, the
    // port.
    type Source = (Option<String>, Option<String>, Option<String>, i64, Rest);
    let sources: Vec<Source> = load(conn, "read the replication", statement).await?;
    // Group replication's own channels have no host.
    let source = |(_, host, _, port, _): Source| {
        host.filter(|host| !host.is_empty()).map(|host| format!("{host}:{port}"))
    };
    Ok(sources.into_iter().find_map(source))
}

/// Tries a scratch name lock, to check that name locks exclude each other between sessions.
pub async fn try_lock(conn: &mut impl Connection, name: &str) -> Result<bool> {
    let statement = Statement::new("SELECT GET_LOCK(?, 0) AS got").bytes(name.as_bytes().to_vec());
    let rows: Vec<Option<i64>> = load(conn, "try a name lock", statement).await?;
    Ok(rows.first() == Some(&Some(1)))
}

/// PRIMARY of the duties: inserts scratch rows for the SKIP LOCKED trial.
pub async fn insert_scratch(conn: &mut impl Connection, names: [&str; 2]) -> Result<()> {
    // Unique names, because processes that start together all run this trial.
    for name in names {
        let statement = Statement::new(
            "INSERT INTO queue_duty (name, conn_id, holder, runs, ran_at, report) \
             VALUES (?, CONNECTION_ID(), 'trial of SKIP LOCKED', 0, UTC_TIMESTAMP(6), 'null')",
        )
        .bytes(name.as_bytes().to_vec());
        execute(conn, "prepare the trial of SKIP LOCKED", statement).await?;
    }
    Ok(())
}

/// PRIMARY of the duties: locks a scratch row; false if another session has locked it.
///
/// By its key alone, which leaves the server one plan. For one of two names in an IN, MySQL plans
/// to read the table from its beginning while it counts at most four rows, and a row that is read
/// is locked for a moment: concurrent trials skipped their own rows.
pub async fn lock_scratch(conn: &mut impl Connection, name: &str) -> Result<bool> {
    let statement = Statement::new(
        "SELECT name FROM queue_duty FORCE INDEX (PRIMARY) WHERE name = ? FOR UPDATE SKIP LOCKED",
    )
    .bytes(name.as_bytes().to_vec());
    let rows: Vec<Vec<u8>> = load(conn, "try SKIP LOCKED", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY of the duties: removes the scratch rows of this trial.
///
/// Each row is deleted by its key. For a table of a few rows the server would plan to read all of
/// it, which briefly locks the rows of concurrent trials. Such a trial would skip its own row, and
/// report a healthy server as unsuitable.
pub async fn remove_scratch(conn: &mut impl Connection, names: [&str; 2]) -> Result<()> {
    for name in names {
        // A hint needs the form for several tables.
        let statement =
            Statement::new("DELETE d FROM queue_duty AS d FORCE INDEX (PRIMARY) WHERE d.name = ?")
                .bytes(name.as_bytes().to_vec());
        execute_surely(conn, "end the trial of SKIP LOCKED", statement).await?;
    }
    Ok(())
}

/// Begins a transaction of the trial.
pub async fn begin(conn: &mut impl Connection) -> Result<()> {
    let begun = conn.batch("BEGIN").await;
    begun.map_err(|error| Error::database("begin a trial", &error))
}

/// Rolls a transaction of the trial back.
pub async fn roll_back(conn: &mut impl Connection) -> Result<()> {
    let ended = conn.batch("ROLLBACK").await;
    ended.map_err(|error| Error::database("end a trial", &error))
}
