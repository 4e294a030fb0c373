//! The ledger of applied migrations. diesel's own would be `__diesel_schema_migrations`, which the
//! user's own application may already have in this database.

use std::time::Duration;

use super::installation::Office;
use super::{Statement, execute, execute_surely, load};
use crate::connection::Connection;
use crate::model::{Error, Fault, Result};

/// PRIMARY of the installation: takes the migrator's name lock; the server frees it when the
/// connection ends.
pub async fn take_lock(conn: &mut impl Connection, wait: Duration) -> Result<bool> {
    let lock = Office::Migrator.lock();
    let statement =
        Statement::new(format!("SELECT GET_LOCK({lock}, ?) AS got")).number(wait.as_secs());
    let rows: Vec<Option<i64>> = load(conn, "take the migrator's lock", statement).await?;
    Ok(rows.first() == Some(&Some(1)))
}

/// PRIMARY of the installation: releases the migrator's name lock.
pub async fn release_lock(conn: &mut impl Connection) -> Result<()> {
    let lock = Office::Migrator.lock();
    let statement = Statement::new(format!("SELECT RELEASE_LOCK({lock})"));
    let _was_held: Vec<Option<i64>> = load(conn, "release the migrator's lock", statement).await?;
    Ok(())
}

/// Creates the ledger unless it exists.
pub async fn make_ledger(conn: &mut impl Connection) -> Result<()> {
    let statement = Statement::new(
        "CREATE TABLE IF NOT EXISTS queue_schema_migration (name VARBINARY(64) NOT NULL, \
         applied_at DATETIME(6) NOT NULL, PRIMARY KEY (name)) ENGINE = InnoDB",
    );
    execute(conn, "make the ledger of migrations", statement).await?;
    Ok(())
}

/// PRIMARY (name): lists the applied migrations; none when there is no ledger yet.
pub async fn applied(conn: &mut impl Connection) -> Result<Vec<String>> {
    let statement = Statement::new("SELECT name FROM queue_schema_migration ORDER BY name");
    match load(conn, "read the ledger of migrations", statement).await {
        Err(error) if error.fault() == Fault::Schema => Ok(Vec::new()),
        names => names,
    }
}

/// No index: lists which of these tables exist.
pub async fn existing(conn: &mut impl Connection, tables: &[&str]) -> Result<Vec<String>> {
    let statement = Statement::new(
        "SELECT TABLE_NAME AS name FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME",
    );
    let names: Vec<String> = load(conn, "list the tables", statement).await?;
    Ok(names.into_iter().filter(|name| tables.contains(&name.as_str())).collect())
}

/// PRIMARY of the table: returns whether it has no row.
pub async fn is_empty(conn: &mut impl Connection, table: &str) -> Result<bool> {
    let statement =
        Statement::new(format!("SELECT NOT EXISTS (SELECT 1 FROM {table}) AS is_empty"));
    let rows: Vec<bool> = load(conn, "look into a table", statement).await?;
    Ok(rows.first() == Some(&true))
}

/// Removes a table.
pub async fn drop_table(conn: &mut impl Connection, table: &str) -> Result<()> {
    let dropped = conn.batch(&format!("DROP TABLE IF EXISTS {table}")).await;
    dropped.map_err(|error| Error::database("remove a table", &error))
}

/// Executes the statements of a migration.
pub async fn apply(conn: &mut impl Connection, sql: &str) -> Result<()> {
    conn.batch(sql).await.map_err(|error| Error::database("migrate", &error))
}

/// PRIMARY (name): records a migration as applied.
pub async fn record(conn: &mut impl Connection, name: &str) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_schema_migration (name, applied_at) VALUES (?, UTC_TIMESTAMP(6))",
    )
    .bytes(name.as_bytes().to_vec());
    execute(conn, "note the migration", statement).await?;
    Ok(())
}

/// The constraint that keeps out workers that cannot read pages.
const READS_PAGES: &str = "queue_worker_reads_pages";

const REFUSE_OLD_WORKERS: &str = "ALTER TABLE queue_worker \
     ADD CONSTRAINT queue_worker_reads_pages \
     CHECK (state <> 'alive' OR version NOT LIKE '0.1.%')";

const DEFAULT_TO_PAGES: &str = "ALTER TABLE queue_partition ALTER COLUMN pages SET DEFAULT TRUE";

const TURN_PAGES_ON: &str = "UPDATE queue_partition SET pages = TRUE";

/// No index: returns whether the logs of all streams are written in pages.
/// False for tables of an older release.
pub async fn are_pages_on(conn: &mut impl Connection) -> Result<bool> {
    let statement = Statement::new(
        "SELECT CAST(COUNT(*) AS SIGNED) AS n FROM information_schema.COLUMNS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_partition' \
         AND COLUMN_NAME = 'pages' AND COLUMN_DEFAULT IN ('1', 'TRUE') \
         AND NOT EXISTS (SELECT 1 FROM queue_partition WHERE NOT pages)",
    );
    match load::<u64>(conn, "see whether pages are written", statement).await {
        Err(error) if error.fault() == Fault::Schema => Ok(false),
        rows => Ok(rows?.first().is_some_and(|n| *n > 0)),
    }
}

/// KEY (`state`): counts the living workers that cannot read pages.
pub async fn old_workers(conn: &mut impl Connection) -> Result<u64> {
    let statement = Statement::new(
        "SELECT CAST(COUNT(*) AS SIGNED) AS n FROM queue_worker \
         WHERE state = 'alive' AND version LIKE '0.1.%'",
    );
    let rows: Vec<u64> = load(conn, "look for old workers", statement).await?;
    Ok(rows.first().copied().unwrap_or(0))
}

/// `information_schema`: keeps out workers that cannot read pages: they would skip messages.
///
/// # Errors
/// A database failure, also if such a worker is alive.
pub async fn refuse_old_workers(conn: &mut impl Connection) -> Result<()> {
    let statement = Statement::new(
        "SELECT CAST(COUNT(*) AS SIGNED) AS n FROM information_schema.TABLE_CONSTRAINTS \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'queue_worker' AND CONSTRAINT_NAME = ?",
    )
    .bytes(READS_PAGES.as_bytes());
    let rows: Vec<u64> = load(conn, "see who may register", statement).await?;
    if rows.first().is_some_and(|n| *n > 0) {
        Ok(())
    } else {
        apply(conn, REFUSE_OLD_WORKERS).await
    }
}

/// Writes the logs of new streams in pages.
pub async fn default_to_pages(conn: &mut impl Connection) -> Result<()> {
    apply(conn, DEFAULT_TO_PAGES).await
}

/// No index: writes the logs of all streams in pages from now on.
pub async fn turn_pages_on(conn: &mut impl Connection) -> Result<()> {
    execute_surely(conn, "write pages", Statement::new(TURN_PAGES_ON)).await?;
    Ok(())
}
