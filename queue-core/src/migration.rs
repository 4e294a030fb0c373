//! The schema's migrations, embedded: additive only, taken one migrator at a time, giving up
//! politely instead of standing in a queue for a table lock.

use std::fmt;
use std::time::Duration;

use diesel::migration::{Migration, MigrationSource};
use diesel::mysql::Mysql;
use diesel_async::AsyncMysqlConnection;
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use crate::connection::{ServerUrl, SessionKind, connect, connect_to_any};
use crate::error::{Error, Fault, Result};
use crate::store;

const EMBEDDED: EmbeddedMigrations = embed_migrations!("migrations");

/// The text of each migration, for `--dry-run`; a test keeps it equal to what is embedded.
const TEXTS: &[(&str, &str)] = &[
    ("2026-11-21-000001_queue", include_str!("../migrations/2026-11-21-000001_queue/up.sql")),
    (
        "2026-11-22-000001_sql_consumer",
        include_str!("../migrations/2026-11-22-000001_sql_consumer/up.sql"),
    ),
    ("2026-11-23-000002_accounts", include_str!("../migrations/2026-11-23-000002_accounts/up.sql")),
    (
        "2026-11-23-000006_sql_claims",
        include_str!("../migrations/2026-11-23-000006_sql_claims/up.sql"),
    ),
];

/// How long another migrator is waited for.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// A migration that the database does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Its directory under `migrations/`.
    pub name: String,
    /// What it runs.
    pub sql: &'static str,
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The migrations that the database behind `url` lacks; changes nothing.
///
/// # Errors
/// [`Error::Connect`]; a database failure.
pub async fn pending(url: &ServerUrl) -> Result<Vec<Pending>> {
    let mut conn = connect_to_any(url, SessionKind::Plain).await?;
    let applied = store::migration::applied(&mut conn).await?;
    Ok(missing(&applied)?.into_iter().map(|(_, pending)| pending).collect())
}

/// Brings the database behind `url` up to date; the migrations it applied. Needs tokio's
/// multi-thread runtime.
///
/// # Errors
/// [`Error::ReadOnly`] on a server that takes no writes; [`Error::MigrationRunning`]; a database
/// failure.
pub async fn run(url: &ServerUrl) -> Result<Vec<Pending>> {
    let mut conn = connect(url, SessionKind::Plain).await?;
    if !store::migration::take_lock(&mut conn, LOCK_WAIT).await? {
        return Err(Error::MigrationRunning { database: url.database().to_owned() });
    }
    store::migration::make_ledger(&mut conn).await?;
    let applied = store::migration::applied(&mut conn).await?;
    let mut done = Vec::new();
    for (migration, pending) in missing(&applied)? {
        conn = apply(conn, &migration, url)?;
        store::migration::record(&mut conn, &pending.name).await?;
        done.push(pending);
    }
    // The lock goes with the connection.
    Ok(done)
}

type Boxed = Box<dyn Migration<Mysql>>;

fn missing(applied: &[String]) -> Result<Vec<(Boxed, Pending)>> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| Error::Database {
        operation: "read the embedded migrations",
        fault: Fault::Other,
        message: error.to_string(),
    };
    let mut all = MigrationSource::<Mysql>::migrations(&EMBEDDED).map_err(failed)?;
    all.sort_by_key(|migration| migration.name().version().as_owned());
    Ok(all
        .into_iter()
        .filter_map(|migration| {
            let name = migration.name().to_string();
            let sql = TEXTS.iter().find(|(text, _)| *text == name).map_or("", |(_, sql)| sql);
            (!applied.contains(&name)).then_some((migration, Pending { name, sql }))
        })
        .collect())
}

/// diesel's migrations speak to a synchronous connection: the wrapper stands in for it.
fn apply(
    conn: AsyncMysqlConnection,
    migration: &Boxed,
    url: &ServerUrl,
) -> Result<AsyncMysqlConnection> {
    let ran = tokio::task::block_in_place(|| {
        let mut wrapper = AsyncConnectionWrapper::<AsyncMysqlConnection>::from(conn);
        let ran = migration.run(&mut wrapper).map_err(|error| error.to_string());
        ran.map(|()| wrapper.into_inner())
    });
    ran.map_err(|message| match Fault::of_text(&message) {
        Fault::ReadOnly => Error::ReadOnly { server: url.server(), reason: message },
        fault => Error::Database { operation: "migrate", fault, message },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_migration_has_its_text_for_the_dry_run() {
        let missing = missing(&[]).expect("migrations are embedded");
        let names: Vec<_> = missing.iter().map(|(_, pending)| pending.name.as_str()).collect();
        assert_eq!(names, TEXTS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
