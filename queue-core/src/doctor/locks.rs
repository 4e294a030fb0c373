//! The holders of the queue's name locks.

use std::collections::HashMap;

use super::{Check, Verdict, check};
use crate::connection::Connection;
use crate::model::{ConnId, Fault, Result};
use crate::store::installation::{Holder, has_secret, holders};
use crate::store::process_list::{Process, processes};

pub(super) async fn holders_of_locks(conn: &mut impl Connection) -> Result<Check> {
    match look(conn).await {
        Err(error) if error.fault() == Fault::Denied => {
            let detail = "not looked for: this account may not read queue_installation".to_owned();
            Ok(check("locks", true, Verdict::Ok, detail))
        }
        looked => looked,
    }
}

async fn look(conn: &mut impl Connection) -> Result<Check> {
    if !has_secret(conn).await? {
        let detail = "queue_installation has no row, so no process can sweep: run `rowmq migrate`";
        return Ok(check("locks", false, Verdict::Failure, detail.to_owned()));
    }
    let held = holders(conn).await?;
    let sessions = processes(conn).await?;
    let strangers: Vec<_> = held.iter().filter(|holder| !holder.is_known).collect();
    let shown = |holder: &&Holder| describe(holder, &sessions);
    if strangers.is_empty() {
        let is_office = |holder: &&Holder| matches!(&*holder.lock, "sweep" | "janitor" | "migrate");
        let offices = held.iter().filter(is_office);
        let offices: Vec<_> = offices.map(|holder| describe(holder, &sessions)).collect();
        let detail =
            if offices.is_empty() { "no process sweeps".to_owned() } else { offices.join("; ") };
        return Ok(check("locks", true, Verdict::Ok, detail));
    }
    let strangers: Vec<_> = strangers.iter().map(shown).collect();
    let detail = format!(
        "Sessions that the queue does not know hold its locks: {}. A process that has just started \
         is known within a second; another one keeps the work from being done: KILL it.",
        strangers.join("; ")
    );
    Ok(check("locks", false, Verdict::Warning, detail))
}

fn describe(holder: &Holder, sessions: &HashMap<ConnId, Process>) -> String {
    let Holder { lock, conn, .. } = holder;
    match sessions.get(conn) {
        Some(Process { account, command, since }) => {
            format!(
                "{lock} by connection {conn} of {account} ({command} for {} s)",
                since.as_secs()
            )
        }
        None => format!("{lock} by connection {conn}"),
    }
}
