//! Pruning dead letters that their topics no longer keep.

use std::time::Duration;

use diesel::prelude::*;

use super::purge;
use crate::connection::{Connection, Statement};
use crate::model::{Result, RowId, TopicId};
use crate::schema::queue_topic;
use crate::store::prune::Pruned;
use crate::store::row_set::RowSet;
use crate::store::{load, select};

/// PRIMARY of the topics: lists the topics that keep their dead letters for a limited time, and how
/// long.
pub async fn kept_for(conn: &mut impl Connection) -> Result<Vec<(TopicId, Duration)>> {
    let query = queue_topic::table
        .filter(queue_topic::keep_dead_ms.is_not_null())
        .order(queue_topic::id)
        .select((queue_topic::id, queue_topic::keep_dead_ms.assume_not_null()));
    let rows: Vec<(TopicId, u64)> =
        select(conn, "list who keeps dead letters for a time", query).await?;
    Ok(rows.into_iter().map(|(topic, ms)| (topic, Duration::from_millis(ms))).collect())
}

/// KEY (`topic_id`, `died_at`), forced and plain, then PRIMARY: purges up to `limit` dead letters
/// of the topic that died at least `ago` before now, except those that a redrive has locked.
pub async fn prune(
    conn: &mut impl Connection,
    topic: TopicId,
    ago: Duration,
    limit: u32,
) -> Result<Pruned> {
    const OPERATION: &str = "prune the dead letters";
    let set = |rows: Vec<RowId>| rows.into_iter().collect::<RowSet>();
    let find = Statement::new(
        "SELECT id FROM queue_dead FORCE INDEX (queue_dead_topic) WHERE topic_id = ? \
         AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND \
         ORDER BY topic_id, died_at, id LIMIT ?",
    )
    .number(topic.0)
    .number(ago.as_secs())
    .number(limit);
    let rows = set(load(conn, OPERATION, find).await?);
    let mut pruned = Pruned { found: rows.len(), removed: 0 };
    for piece in rows.pieces() {
        let (condition, ids) = piece.condition();
        let lock = Statement::new(format!(
            "SELECT id FROM queue_dead FORCE INDEX (PRIMARY) WHERE {condition} AND topic_id = ? \
             AND died_at < UTC_TIMESTAMP(6) - INTERVAL ? SECOND ORDER BY id FOR UPDATE SKIP LOCKED"
        ))
        .numbers(ids)
        .number(topic.0)
        .number(ago.as_secs());
        let locked = set(load(conn, OPERATION, lock).await?);
        if !locked.is_empty() {
            pruned.removed += purge(conn, &locked).await?;
        }
    }
    Ok(pruned)
}
