//! Keys of messages that end, or that are redriven.

use super::{WantedKey, take};
use crate::connection::Connection;
use crate::connection::Statement;
use crate::model::{MsgId, Result, RowId, TopicId};
use crate::store::row_set::RowSet;
use crate::store::settle::ClaimedRows;
use crate::store::{execute_surely, load, load_surely};

/// Builds the join to the keys that the messages of the table `message` hold.
fn held(message: &str) -> String {
    format!(
        "queue_unique u FORCE INDEX (PRIMARY) ON u.topic_id = {message}.topic_id \
         AND u.unique_key = {message}.unique_key AND u.msg_id = {message}.msg_id"
    )
}

/// PRIMARY of the messages, forced, joined to PRIMARY of the keys: frees the keys of rows that end
/// in this transaction. A key that another message has taken over stays. It waits for keys that
/// another session has locked, unless the caller has [locked](lock) them before.
pub async fn release(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<usize> {
    let prefix = Statement::new(format!(
        "DELETE u FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN {}",
        held("m")
    ));
    let mut freed = 0;
    for statement in claimed.statements_of("m.", &prefix) {
        freed += execute_surely(conn, "settle: free the unique keys", statement).await?;
    }
    Ok(freed)
}

/// PRIMARY of the messages, forced, joined to PRIMARY of the keys: locks rows of the claim together
/// with the keys they hold; returns which. It waits for no lock: if another session has locked a
/// row or its key, that row is skipped.
pub async fn lock(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<RowSet> {
    let mut found = Vec::with_capacity(claimed.rows.len());
    for statement in of_claim(claimed) {
        // Rows that this read misses count as locked; `holding` then finds them.
        let statement = statement.sql(" FOR UPDATE SKIP LOCKED");
        let rows: Vec<RowId> = load(conn, "settle: lock the unique keys", statement).await?;
        found.extend(rows);
    }
    Ok(RowSet::new(found))
}

/// PRIMARY of the messages, forced, joined to PRIMARY of the keys, plain: reads which of the rows
/// hold a key, locked or not.
pub async fn holding(conn: &mut impl Connection, claimed: &ClaimedRows) -> Result<RowSet> {
    let mut found = Vec::with_capacity(claimed.rows.len());
    for statement in of_claim(claimed) {
        let operation = "settle: look for unique keys";
        let rows: Vec<RowId> = load_surely(conn, operation, statement).await?;
        found.extend(rows);
    }
    Ok(RowSet::new(found))
}

/// Builds the statements that join the rows of the claim to the keys they hold.
fn of_claim(claimed: &ClaimedRows) -> Vec<Statement<'static>> {
    let prefix = Statement::new(format!(
        "SELECT m.id FROM queue_message m FORCE INDEX (PRIMARY) STRAIGHT_JOIN {}",
        held("m")
    ));
    claimed.statements_of("m.", &prefix)
}

/// UNIQUE (id), forced, joined to PRIMARY of the keys: removes scheduled messages and frees their
/// keys; returns how many rows were removed, keys included. It is one statement, because on a
/// connection in autocommit each statement commits by itself.
pub async fn drop_of_scheduled(conn: &mut impl Connection, rows: &RowSet) -> Result<usize> {
    let (condition, ids) = rows.condition();
    let statement = Statement::new(format!(
        "DELETE s, u FROM queue_scheduled s FORCE INDEX (queue_scheduled_id) LEFT JOIN {} \
         WHERE {condition}",
        held("s")
    ))
    .numbers(ids);
    execute_surely(conn, "cancel", statement).await
}

/// PRIMARY, forced: takes the keys of locked dead letters again, just before they are redriven. If
/// another message holds a letter's key, the letter continues without a key. The letter's new row
/// is not recorded, and neither is how it was enqueued. So a later message that would replace or
/// debounce it is stored beside it and takes over the key: the newest message is never lost.
pub async fn take_again(conn: &mut impl Connection, topic: TopicId, rows: &RowSet) -> Result<()> {
    const OPERATION: &str = "redrive: take the unique keys";
    let (condition, ids) = rows.condition();
    let statement = Statement::new(format!(
        "SELECT id, unique_key, msg_id FROM queue_dead FORCE INDEX (PRIMARY) \
         WHERE {condition} AND unique_key IS NOT NULL"
    ))
    .numbers(ids);
    let mut rows: Vec<(RowId, Vec<u8>, MsgId)> = load_surely(conn, OPERATION, statement).await?;
    rows.sort_unstable_by(|(a, a_key, _), (b, b_key, _)| (a_key, a).cmp(&(b_key, b)));
    // Only the first letter of each key: a second one would find the key held.
    let (mut wanted, mut without): (Vec<WantedKey<'_>>, Vec<RowId>) = (Vec::new(), Vec::new());
    for (row, key, msg_id) in &rows {
        match wanted.last() {
            Some(last) if last.key == key => without.push(*row),
            _ => wanted.push(WantedKey { key, msg_id: *msg_id, time: None }),
        }
    }
    let held = if wanted.is_empty() { Vec::new() } else { take(conn, topic, &wanted).await? };
    let is_held = |key: &Vec<u8>| held.iter().any(|holder| holder.key == *key);
    without.extend(rows.iter().filter(|(_, key, _)| is_held(key)).map(|(row, ..)| *row));
    let taken: Vec<&[u8]> = wanted
        .iter()
        .map(|one| one.key)
        .filter(|key| !held.iter().any(|holder| holder.key == *key))
        .collect();
    for key in taken {
        let statement = Statement::new(
            "UPDATE queue_unique SET priority = 0, ready_id = 0 \
             WHERE topic_id = ? AND unique_key = ?",
        );
        execute_surely(conn, OPERATION, statement.number(topic.0).bytes(key.to_vec())).await?;
    }
    let without = RowSet::new(without);
    if without.is_empty() {
        return Ok(());
    }
    let (condition, ids) = without.condition();
    let statement = Statement::new(format!(
        "UPDATE queue_dead FORCE INDEX (PRIMARY) SET unique_key = NULL WHERE {condition}"
    ))
    .numbers(ids);
    execute_surely(conn, OPERATION, statement).await.map(drop)
}
