use anyhow::bail;
use rowmq_core::{doctor, migration};
use serde::Serialize;

use crate::invocation::Invocation;

/// Create the queue's tables, or bring them up to date.
///
/// Adds only; it never drops or rewrites existing data. It waits at most 5 s for a table's lock,
/// then says so and gives up, which is safe.
#[derive(Debug, clap::Args)]
pub(crate) struct Migrate {
    /// Print the SQL that would be run, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Also have the logs of streams written in pages, once no program of version 0.1 is in use.
    #[arg(long, conflicts_with = "dry_run")]
    pages: bool,
}

#[derive(Debug, Serialize)]
struct Applied<'a> {
    database: &'a str,
    applied: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Pending<'a> {
    database: &'a str,
    pending: Vec<Script>,
}

#[derive(Debug, Serialize)]
struct Script {
    name: String,
    sql: String,
}

impl Migrate {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let url = invocation.url()?;
        let database = url.database();
        // An old server would fail half-way, with an obscure syntax error.
        let report = doctor::examine(&url).await?;
        if let Some(check) = report.failures().find(|check| check.name == "version") {
            bail!("{}", check.detail);
        }
        if self.dry_run {
            let pending = migration::pending(&url).await?;
            let pending: Vec<_> = pending
                .into_iter()
                .map(|pending| Script { name: pending.name, sql: pending.sql })
                .collect();
            let text = as_sql(database, &pending);
            return invocation.output.report(&Pending { database, pending }, &text);
        }
        let applied = migration::run(&url).await?;
        let applied: Vec<_> = applied.into_iter().map(|pending| pending.name).collect();
        let sentence = if applied.is_empty() {
            format!("The database '{database}' is up to date.")
        } else {
            format!("The database '{database}' has been migrated: {}.", summary(&applied))
        };
        if self.pages {
            migration::turn_pages_on(&url).await?;
        }
        let pages = if migration::are_pages_on(&url).await? {
            ""
        } else {
            " The logs of streams hold a message a row: run `rowmq migrate --pages` once no program of version 0.1 is in use."
        };
        invocation.output.report(&Applied { database, applied }, &format!("{sentence}{pages}"))
    }
}

/// The migrations by name, and the number of procedures: they are created again whenever their text
/// has changed.
fn summary(applied: &[String]) -> String {
    let is_procedure = |name: &&String| name.ends_with("()");
    let (procedures, migrations): (Vec<_>, Vec<_>) = applied.iter().partition(is_procedure);
    let mut words: Vec<_> = migrations.into_iter().cloned().collect();
    match procedures.len() {
        0 => {}
        1 => words.push("1 procedure".to_owned()),
        n => words.push(format!("{n} procedures")),
    }
    words.join(", ")
}

fn as_sql(database: &str, pending: &[Script]) -> String {
    if pending.is_empty() {
        return format!("-- The database '{database}' is up to date.");
    }
    let texts =
        pending.iter().map(|script| format!("-- {}\n{}", script.name, script.sql.trim_end()));
    texts.collect::<Vec<_>>().join("\n\n")
}
