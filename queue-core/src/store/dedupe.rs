//! The message ids that clients chose, within their topic's dedupe window.

use std::time::Duration;

use super::row_set::{LIST_LIMIT, placeholders};
use super::{Statement, execute, execute_surely, load_surely};
use crate::connection::Connection;
use crate::model::{Moment, MsgId, Result, TopicId};

/// PRIMARY: enters the ids, each of which must be named once, and returns those that were there
/// already. An id whose time is over counts as new. If another open transaction has entered an id,
/// this waits for that transaction to end.
///
/// The statement also updates the row of an id that is already there. So it takes an exclusive lock
/// on that row at once; a plain INSERT that fails leaves a shared lock, and two sessions that then
/// both want to write deadlock. It also finds the id whatever the transaction's snapshot is. The
/// server counts an updated row twice: if it counts as many rows as ids, all ids are new.
pub async fn enter(
    conn: &mut impl Connection,
    topic: TopicId,
    ids: &[MsgId],
    window: Duration,
) -> Result<Vec<MsgId>> {
    const OPERATION: &str = "enqueue: look for the ids";
    tracing::trace!(step = "enter");
    let mut sorted = ids.to_vec();
    // Sorted, so that two batches lock common ids in the same order and do not deadlock.
    sorted.sort_unstable();
    let mut repeated = Vec::new();
    for some in sorted.chunks(LIST_LIMIT) {
        let rows = vec!["(?, ?, UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)"; some.len()];
        let mut statement = Statement::new(format!(
            "INSERT INTO queue_dedupe (topic_id, msg_id, keep_until) VALUES {} \
             ON DUPLICATE KEY UPDATE \
             repeats = IF(keep_until < UTC_TIMESTAMP(6), 0, repeats + 1), \
             keep_until = IF(keep_until < UTC_TIMESTAMP(6), VALUES(keep_until), keep_until)",
            rows.join(", ")
        ))
        .once(!super::enqueue::is_kept(some.len()));
        for id in some {
            statement = statement
                .number(topic.0)
                .bytes(id.as_bytes().to_vec())
                .number(Moment::After(window).micros());
        }
        if execute(conn, OPERATION, statement).await? > some.len() {
            repeated.extend(repeats(conn, topic, some).await?);
        }
    }
    Ok(repeated)
}

/// PRIMARY, forced: finds which of the ids that this transaction has entered were there before.
async fn repeats(conn: &mut impl Connection, topic: TopicId, ids: &[MsgId]) -> Result<Vec<MsgId>> {
    let n = ids.len().next_power_of_two();
    let mut statement = Statement::new(format!(
        "SELECT msg_id FROM queue_dedupe FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND msg_id IN ({}) AND repeats > 0",
        placeholders(n)
    ))
    .number(topic.0);
    for id in ids.iter().chain(ids.last().into_iter().cycle()).take(n) {
        statement = statement.bytes(id.as_bytes().to_vec());
    }
    load_surely(conn, "enqueue: look for the ids", statement).await
}

/// PRIMARY, one key at a time: removes ids that this transaction has entered for messages that it
/// then did not store.
pub async fn take_back(conn: &mut impl Connection, topic: TopicId, ids: &[MsgId]) -> Result<()> {
    for some in ids.chunks(LIST_LIMIT) {
        let ids: Vec<_> = some.iter().map(|id| format!("\"{}\"", id.0.simple())).collect();
        let statement = Statement::new(
            "DELETE d FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' \
             COLUMNS (id CHAR(32) PATH '$')) k STRAIGHT_JOIN queue_dedupe d FORCE INDEX (PRIMARY) \
             ON d.topic_id = ? AND d.msg_id = UNHEX(k.id)",
        )
        .bytes(format!("[{}]", ids.join(",")).into_bytes())
        .number(topic.0);
        execute(conn, "enqueue: take the ids back", statement).await?;
    }
    Ok(())
}

/// PRIMARY: forgets up to `limit` ids of a topic that is being deleted.
pub async fn forget_some(conn: &mut impl Connection, topic: TopicId, limit: u32) -> Result<usize> {
    let statement = Statement::new("DELETE FROM queue_dedupe WHERE topic_id = ? LIMIT ?")
        .number(topic.0)
        .number(limit);
    execute_surely(conn, "purge the topic", statement).await
}
