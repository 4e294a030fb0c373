//! Audit entries.

use std::time::Duration;

use diesel::prelude::*;

use super::{
    Statement, execute_surely, first_inserted, load, load_surely, select, write, write_surely,
};
use crate::connection::Connection;
use crate::model::{Action, AuditDenied, AuditNo, Change, Entry, Error, Fault, Result, cut};
use crate::schema::functions::now;
use crate::schema::queue_audit::dsl;

/// The most bytes that each column takes; longer text is cut.
const ACTOR: usize = 255;
const TARGET: usize = 129;
const DETAIL: usize = 1024;

/// PRIMARY: writes an entry, in the transaction that makes the change.
pub async fn record(conn: &mut impl Connection, change: &Change) -> Result<AuditNo> {
    let statement = diesel::insert_into(dsl::queue_audit).values((
        dsl::at.eq(now()),
        dsl::actor.eq(cut(&change.actor.name, ACTOR).as_bytes()),
        dsl::origin.eq(cut(&change.actor.origin, ACTOR).as_bytes()),
        dsl::action.eq(change.action.word().as_bytes()),
        dsl::target.eq(cut(&change.target, TARGET).as_bytes()),
        dsl::detail.eq(change.detail.as_deref().map(|detail| cut(detail, DETAIL).as_bytes())),
    ));
    write(conn, "write the audit", statement).await.map_err(or_denied)?;
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
    let statement = diesel::update(dsl::queue_audit.find(entry))
        .set(dsl::messages.eq(dsl::messages + messages as u64));
    write_surely(conn, "write the audit", statement).await.map(|_| ()).map_err(or_denied)
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
    let query = dsl::queue_audit
        .filter(dsl::id.lt(before.unwrap_or(AuditNo(u64::MAX))))
        .order(dsl::id.desc())
        .limit(limit.into())
        .select((
            dsl::id,
            dsl::at,
            (dsl::actor, dsl::origin),
            dsl::action,
            dsl::target,
            dsl::detail,
            dsl::messages,
        ));
    select(conn, "read the audit", query).await
}
