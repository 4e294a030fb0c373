//! The ledger of applied migrations. diesel's own would be `__diesel_schema_migrations`, which the
//! user's own application may already have in this database.

use std::time::Duration;

use super::installation::Office;
use super::{Statement, execute, load};
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
