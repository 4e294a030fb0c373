//! Audit entries.

use std::time::Duration;

use super::{Statement, execute, execute_surely, first_inserted, load, load_surely};
use crate::connection::{Connection, row};
use crate::model::{Action, Actor, AuditDenied, AuditNo, Change, Entry, Error, Fault, Result, cut};

/// The most bytes that each column takes; longer text is cut.
const ACTOR: usize = 255;
const TARGET: usize = 129;
const DETAIL: usize = 1024;

/// PRIMARY: writes an entry, in the transaction that makes the change.
pub async fn record(conn: &mut impl Connection, change: &Change) -> Result<AuditNo> {
    let statement = Statement::new(
        "INSERT INTO queue_audit (at, actor, origin, action, target, detail) \
         VALUES (UTC_TIMESTAMP(6), ?, ?, ?, ?, ?)",
    )
    .bytes(cut(&change.actor.name, ACTOR).as_bytes())
    .bytes(cut(&change.actor.origin, ACTOR).as_bytes())
    .bytes(change.action.word().as_bytes())
    .bytes(cut(&change.target, TARGET).as_bytes())
    .maybe_bytes(change.detail.as_deref().map(|detail| cut(detail, DETAIL).as_bytes()));
    execute(conn, "write the audit", statement).await.map_err(or_denied)?;
    first_inserted(conn, "write the audit").await.map(AuditNo)
}

/// PRIMARY: returns whether an entry of this action and target is newer than `entry`. Reads only
/// what is committed, even within a transaction.
pub async fn has_since(
    conn: &mut impl Connection,
    entry: AuditNo,
    action: Action,
    target: &str,
) -> Result<bool> {
    let statement = Statement::new(
        "SELECT id AS _id FROM queue_audit FORCE INDEX (PRIMARY) \
         WHERE id > ? AND action = ? AND target = ? LIMIT 1",
    )
    .number(entry.0)
    .bytes(action.word().as_bytes())
    .bytes(target.as_bytes());
    let rows: Vec<AuditNo> = load_surely(conn, "read the audit", statement).await?;
    Ok(!rows.is_empty())
}

/// PRIMARY: adds to an entry the number of messages that a transaction has changed.
pub async fn add(conn: &mut impl Connection, entry: AuditNo, messages: usize) -> Result<()> {
    let statement = Statement::new("UPDATE queue_audit SET messages = messages + ? WHERE id = ?")
        .number(messages as u64)
        .number(entry.0);
    execute_surely(conn, "write the audit", statement).await.map(|_| ()).map_err(or_denied)
}

fn or_denied(error: Error) -> Error {
    match error {
        Error::Database { fault: Fault::Denied, message, .. } => AuditDenied { message }.into(),
        other => other,
    }
}

/// No index: reads the account of this connection and the host it comes from, as the server sees
/// them.
pub async fn account(conn: &mut impl Connection) -> Result<String> {
    let statement = Statement::new("SELECT USER() AS account");
    let rows: Vec<String> = load(conn, "read the account", statement).await?;
    Ok(rows.into_iter().next().unwrap_or_default())
}

/// KEY (`at`): removes up to `limit` entries that are older than `time`.
pub async fn prune(conn: &mut impl Connection, time: Duration, limit: u32) -> Result<usize> {
    let statement = Statement::new(
        "DELETE FROM queue_audit WHERE at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY at LIMIT ?",
    )
    .number(time.as_secs())
    .number(limit);
    execute_surely(conn, "prune the audit", statement).await
}

/// PRIMARY: reads the newest entries, at most `limit`; with `before`, only entries older than it.
pub async fn latest(
    conn: &mut impl Connection,
    before: Option<AuditNo>,
    limit: u32,
) -> Result<Vec<Entry>> {
    let statement = Statement::new(
        "SELECT id, at, actor, origin, action, target, detail, messages FROM queue_audit \
         WHERE id < ? ORDER BY id DESC LIMIT ?",
    )
    .number(before.map_or(u64::MAX, |entry| entry.0))
    .number(limit);
    load(conn, "read the audit", statement).await
}

row! { Entry { no, at, actor, action, target, detail, messages } }
row! { Actor { name, origin } }
