//! The schema's embedded migrations: additive only, run by one migrator at a time, and they give up
//! rather than block a table while waiting for its lock.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use diesel::migration::{Migration, MigrationSource};
use diesel::mysql::Mysql;
use diesel_async::AsyncMysqlConnection;
use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;
use diesel_migrations::{EmbeddedMigrations, embed_migrations};

use crate::connection::{Connection, ServerUrl, SessionKind, connect, connect_to_any};
use crate::model::{Error, Fault, Result};
use crate::procedures::{self, Routine};
use crate::store::{self, installation::Links};

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
        "2026-11-24-000001_keep_dead",
        include_str!("../migrations/2026-11-24-000001_keep_dead/up.sql"),
    ),
];

/// How long to wait for another migrator.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How long to wait for open transactions that have called a procedure, and the pause between two
/// attempts, in which their callers continue.
const PROCEDURE_WAIT: Duration = Duration::from_secs(120);
const PROCEDURE_PAUSE: Duration = Duration::from_secs(1);

/// A migration that the database lacks, or a procedure that is missing or stale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// A migration's directory under `migrations/`; a procedure's name with `()` behind it.
    pub name: String,
    /// The SQL that it runs.
    pub sql: String,
}

impl From<Routine> for Pending {
    fn from(routine: Routine) -> Self {
        Self { name: format!("{}()", routine.name), sql: routine.create }
    }
}

impl fmt::Display for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Lists the migrations that the database behind `url` lacks; changes nothing.
///
/// # Errors
/// [`Error::Connect`]; a database failure.
pub async fn pending(url: &ServerUrl) -> Result<Vec<Pending>> {
    let mut conn = connect_to_any(url, SessionKind::Plain).await?;
    let applied = store::migration::applied(&mut conn).await?;
    let mut pending: Vec<_> = missing(&applied)?.into_iter().map(|(_, it)| it).collect();
    if is_ours(&applied) {
        let installed = store::procedure::installed(&mut conn).await?;
        let links = links(&mut conn, &installed).await?;
        pending.extend(stale(links, &installed).map(Pending::from));
    }
    Ok(pending)
}

/// Brings the database behind `url` up to date. Returns the migrations it applied. Needs tokio's
/// multi-thread runtime.
///
/// # Errors
/// [`Error::ReadOnly`] on a server that takes no writes; [`Error::MigrationRunning`]; a database
/// failure.
pub async fn run(url: &ServerUrl) -> Result<Vec<Pending>> {
    let mut conn = connect(url, SessionKind::Plain).await?;
    if !store::installation::has_secret(&mut conn).await? {
        store::installation::make_table(&mut conn).await?;
        store::installation::keep_secret(&mut conn, rand::random()).await?;
    }
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
    if is_ours(&applied) {
        done.extend(repair_procedures(&mut conn).await?);
    }
    // The lock is released with the connection.
    Ok(done)
}

/// Whether this program knows every migration of the database. If not, it is older than the program
/// that migrated last, and its procedures must not replace newer ones.
fn is_ours(applied: &[String]) -> bool {
    applied.iter().all(|name| TEXTS.iter().any(|(known, _)| name == known))
}

/// The links to be in use after this upgrade: the current ones if they are right, else the others.
async fn links(conn: &mut impl Connection, installed: &BTreeMap<String, String>) -> Result<Links> {
    let in_use = match store::installation::links(conn).await {
        Err(error) if error.fault() == Fault::Schema => Links::Even,
        links => links?,
    };
    Ok(if procedures::are_current(in_use, installed) { in_use } else { in_use.other() })
}

/// The procedures that are missing or from another release.
fn stale(links: Links, installed: &BTreeMap<String, String>) -> impl Iterator<Item = Routine> {
    procedures::wanted(links).into_iter().filter(|routine| !routine.is_in(installed))
}

/// Creates the procedures that are missing or from another release, switches to them, and removes
/// those that no call can be in any more.
async fn repair_procedures(conn: &mut AsyncMysqlConnection) -> Result<Vec<Pending>> {
    let installed = store::procedure::installed(conn).await?;
    let can_replace = store::procedure::can_replace(conn).await?;
    let links = links(conn, &installed).await?;
    let mut done = Vec::new();
    store::procedure::wait_for_a_second(conn).await?;
    for routine in stale(links, &installed) {
        let (name, create) = (&routine.name, &routine.create);
        let make = async || store::procedure::create(conn, name, create, can_replace).await;
        again_while_locked(make).await?;
        done.push(Pending::from(routine));
    }
    store::installation::use_links(conn, links).await?;
    for name in procedures::superseded(&installed) {
        again_while_locked(async || store::procedure::drop(conn, &name).await).await?;
    }
    Ok(done)
}

/// Retries for [`PROCEDURE_WAIT`] while an open transaction has the procedure locked.
async fn again_while_locked(mut change: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    loop {
        match change().await {
            Err(error) if error.fault() == Fault::LockWait && start.elapsed() < PROCEDURE_WAIT => {
                tracing::info!(
                    "An open transaction has called the procedure: waiting for its end."
                );
                tokio::time::sleep(PROCEDURE_PAUSE).await;
            }
            changed => return changed,
        }
    }
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
            let sql = sql.to_owned();
            (!applied.contains(&name)).then_some((migration, Pending { name, sql }))
        })
        .collect())
}

/// diesel's migrations need a synchronous connection; the wrapper provides one.
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
