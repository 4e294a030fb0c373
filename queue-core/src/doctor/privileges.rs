//! The account's privileges.

use super::{Check, Verdict, check};
use crate::account::{Account, Held};
use crate::connection::Connection;
use crate::model::Result;
use crate::store::{grant, process_list};

/// Whether an account of this kind decides which workers are dead.
pub(super) fn looks_for_the_dead(account: Account) -> bool {
    matches!(account, Account::Consumer | Account::Janitor)
}

pub(super) async fn visibility(conn: &mut impl Connection) -> Result<Check> {
    let visibility = process_list::visibility(conn).await?;
    let detail = if visibility.process {
        format!("{} sees every connection (PROCESS)", visibility.account)
    } else if process_list::through_view(conn, &visibility).await?.is_some() {
        let detail = format!("{} sees every connection (by queue_connection)", visibility.account);
        return Ok(check("process list", true, Verdict::Warning, detail));
    } else {
        format!(
            "{} sees only its own account's connections: the janitor needs the consumers' account, or GRANT PROCESS ON *.*, or the view of ops/deploy/grants/process-list.sql; without any of them a dead consumer is rescued after a lease.",
            visibility.account
        )
    };
    Ok(check("process list", visibility.process, Verdict::Warning, detail))
}

/// Compares the account's privileges with its file in `ops/deploy/grants`: what it lacks, and what
/// it has beyond.
pub(super) async fn grants(
    conn: &mut impl Connection,
    account: Account,
    database: &str,
) -> Result<Check> {
    let lines = grant::own(conn).await?;
    let difference = Held::of_lines(lines.iter().map(String::as_str)).beside(account, database);
    let mut said = Vec::new();
    if !difference.missing.is_empty() {
        said.push(format!(
            "missing for a {account}: {}: run `rowmq grants {account} --user NAME@HOST` and grant what it prints",
            difference.missing.join("; ")
        ));
    }
    if !difference.excess.is_empty() {
        said.push(format!("more than a {account} needs: {}", difference.excess.join("; ")));
    }
    let (verdict, detail) = match (difference.missing.is_empty(), difference.excess.is_empty()) {
        (true, true) => (Verdict::Ok, format!("what a {account} needs, and no more")),
        (true, false) => (Verdict::Warning, said.join("; ")),
        (false, _) => (Verdict::Failure, said.join("; ")),
    };
    Ok(Check { name: "grants", verdict, detail })
}
