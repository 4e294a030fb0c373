//! The schema's embedded migrations. They only add to the schema, and one migrator runs them at a
//! time. A migration gives up rather than block a table while it waits for the table's lock.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use diesel_async::AsyncMysqlConnection;

use crate::connection::{Connection, ServerUrl, SessionKind, connect, connect_to_any};
use crate::model::{CannotMigrate, Error, Fault, Result};
use crate::procedures::{self, Routine};
use crate::store::{self, installation::Links};

/// The migrations in their order, each by its directory and its SQL.
const MIGRATIONS: &[(&str, &str)] = &[
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
    ("2026-11-28-000001_shares", include_str!("../migrations/2026-11-28-000001_shares/up.sql")),
    ("2026-11-29-000001_pages", include_str!("../migrations/2026-11-29-000001_pages/up.sql")),
    ("2026-11-29-000002_doorbell", include_str!("../migrations/2026-11-29-000002_doorbell/up.sql")),
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
    let mut pending: Vec<_> = missing(&applied).collect();
    if is_ours(&applied) {
        let installed = store::procedure::installed(&mut conn).await?;
        let links = links(&mut conn, &installed).await?;
        pending.extend(stale(links, &installed).map(Pending::from));
    }
    Ok(pending)
}

/// Brings the database behind `url` up to date. Returns the migrations it applied.
///
/// # Errors
/// [`Error::ReadOnly`] on a server that takes no writes; [`CannotMigrate::Running`]; a database
/// failure.
pub async fn run(url: &ServerUrl) -> Result<Vec<Pending>> {
    let mut conn = connect(url, SessionKind::Plain).await?;
    let mut was_begun = store::installation::has_secret(&mut conn).await?;
    if !was_begun {
        was_begun = procedures::are_there(&store::procedure::installed(&mut conn).await?);
        store::installation::make_table(&mut conn).await?;
        store::installation::keep_secret(&mut conn, rand::random()).await?;
    }
    lock(&mut conn, url).await?;
    store::migration::make_ledger(&mut conn).await?;
    let applied = store::migration::applied(&mut conn).await?;
    let mut done = Vec::new();
    if applied.is_empty() && was_begun {
        clear_remnants(&mut conn, url).await?;
    }
    for migration in missing(&applied) {
        let ran = store::migration::apply(&mut conn, &migration.sql).await;
        ran.map_err(|error| refused(error, url))?;
        store::migration::record(&mut conn, &migration.name).await?;
        done.push(migration);
    }
    if is_ours(&applied) {
        done.extend(repair_procedures(&mut conn).await?);
    }
    if applied.is_empty() {
        // No older program can be at work in a new database.
        turn_on(&mut conn, url).await?;
    }
    // The driver closes the connection some time after this. After an error the lock ends with it.
    store::migration::release_lock(&mut conn).await?;
    Ok(done)
}

/// Removes what a first migration has left that did not end, and what is left if all tables were
/// dropped, as `migrate:fresh` of Laravel does: empty tables, and procedures. Only in a database
/// in which a migrator was at work before: what else has such a name is not ours.
async fn clear_remnants(conn: &mut impl Connection, url: &ServerUrl) -> Result<()> {
    let tables = store::migration::existing(conn, &created("TABLE")).await?;
    for table in &tables {
        if !store::migration::is_empty(conn, table).await? {
            let (database, table) = (url.database().to_owned(), table.clone());
            return Err(CannotMigrate::NotRecorded { database, table }.into());
        }
    }
    for table in &tables {
        store::migration::drop_table(conn, table).await?;
    }
    for procedure in created("PROCEDURE") {
        store::procedure::drop(conn, procedure).await?;
    }
    Ok(())
}

/// Returns the names of the tables, or of the procedures, that the migrations create.
fn created(what: &str) -> Vec<&'static str> {
    let statement = format!("CREATE {what} ");
    let lines = MIGRATIONS.iter().flat_map(|(_, sql)| sql.lines());
    let named = lines.filter_map(|line| line.strip_prefix(&statement));
    let names = named.map(|rest| rest.trim_start_matches("IF NOT EXISTS "));
    names.filter_map(|rest| rest.split([' ', '(']).next()).collect()
}

async fn lock(conn: &mut impl Connection, url: &ServerUrl) -> Result<()> {
    match store::migration::take_lock(conn, LOCK_WAIT).await? {
        true => Ok(()),
        false => Err(CannotMigrate::Running { database: url.database().to_owned() }.into()),
    }
}

/// Returns whether the logs of streams are written in pages. They are in databases that this
/// release has created, and in others after [`turn_pages_on`].
///
/// # Errors
/// [`Error::Connect`]; a database failure.
pub async fn are_pages_on(url: &ServerUrl) -> Result<bool> {
    let mut conn = connect_to_any(url, SessionKind::Plain).await?;
    store::migration::are_pages_on(&mut conn).await
}

/// Has the logs of streams written in pages from now on, which programs of version 0.1 cannot read:
/// the server refuses workers of that version afterwards.
///
/// # Errors
/// [`CannotMigrate::OldWorkers`] if one of them is alive; otherwise as [`run`].
pub async fn turn_pages_on(url: &ServerUrl) -> Result<()> {
    let mut conn = connect(url, SessionKind::Plain).await?;
    lock(&mut conn, url).await?;
    if !store::migration::are_pages_on(&mut conn).await? {
        turn_on(&mut conn, url).await?;
    }
    store::migration::release_lock(&mut conn).await
}

async fn turn_on(conn: &mut impl Connection, url: &ServerUrl) -> Result<()> {
    let refusing = store::migration::refuse_old_workers(conn).await;
    let workers = store::migration::old_workers(conn).await?;
    if workers > 0 {
        let database = url.database().to_owned();
        return Err(CannotMigrate::OldWorkers { database, workers }.into());
    }
    refusing?;
    store::migration::default_to_pages(conn).await?;
    store::migration::turn_pages_on(conn).await
}

/// Whether this program knows every migration of the database. If not, it is older than the program
/// that migrated last, and its procedures must not replace newer ones.
fn is_ours(applied: &[String]) -> bool {
    applied.iter().all(|name| MIGRATIONS.iter().any(|(known, _)| name == known))
}

/// The links that calls use after this upgrade: the current links if they lead to this release's
/// bodies, else the other ones.
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
/// those that no call can still be running.
async fn repair_procedures(conn: &mut AsyncMysqlConnection) -> Result<Vec<Pending>> {
    let installed = store::procedure::installed(conn).await?;
    let can_replace = store::procedure::can_replace(conn).await?;
    let links = links(conn, &installed).await?;
    let mut done = Vec::new();
    // They get this account as their definer.
    let current = match store::procedure::has_definer(conn).await? {
        true => installed.clone(),
        false => BTreeMap::new(),
    };
    store::procedure::wait_for_a_second(conn).await?;
    for routine in stale(links, &current) {
        let (name, create) = (&routine.name, &routine.create);
        let make = async || {
            let is_there = installed.contains_key(name);
            if is_there && can_replace {
                return store::procedure::replace(conn, create).await;
            }
            if is_there {
                store::procedure::drop(conn, name).await?;
            }
            store::procedure::create(conn, create).await
        };
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

fn missing(applied: &[String]) -> impl Iterator<Item = Pending> {
    MIGRATIONS
        .iter()
        .map(|&(name, sql)| Pending { name: name.to_owned(), sql: sql.to_owned() })
        .filter(|migration| !applied.contains(&migration.name))
}

/// Names the server if it takes no writes.
fn refused(error: Error, url: &ServerUrl) -> Error {
    match error {
        Error::Database { fault: Fault::ReadOnly, message, .. } => {
            Error::ReadOnly { server: url.server(), reason: message }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_of_a_migration_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut folders: Vec<_> = std::fs::read_dir(folder)
            .expect("the migrations")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.path().join("up.sql").exists())
            .map(|entry| entry.file_name().into_string().expect("a name"))
            .collect();
        folders.sort();
        assert_eq!(folders, MIGRATIONS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }
}
