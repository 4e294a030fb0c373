//! The throughput of workers, by topic. Rows of workers that are gone are kept under number 0.

use std::time::Duration;

use diesel::dsl::{exists, not};
use diesel::prelude::*;

use super::{Statement, execute, execute_surely, load, write_surely};
use crate::connection::{Connection, row};
use crate::model::{Result, Throughput, TopicId, WorkerId};
use crate::schema::queue_throughput::dsl;
use crate::schema::queue_topic;

/// The most topics in one [`record`].
pub const TOPICS_AT_ONCE: usize = 32;

/// PRIMARY: stores a worker's totals for up to [`TOPICS_AT_ONCE`] topics. A total, unlike an
/// increment, may be stored twice.
pub async fn record(
    conn: &mut impl Connection,
    worker: WorkerId,
    totals: &[(TopicId, Throughput)],
) -> Result<usize> {
    let rows = vec!["(?, ?, ?, ?, ?, ?)"; totals.len()].join(", ");
    let mut statement = Statement::new(format!(
        "INSERT INTO queue_throughput (worker_id, topic_id, done, failed, picked_up, waited_us) \
         VALUES {rows} ON DUPLICATE KEY UPDATE done = VALUES(done), \
         failed = VALUES(failed), picked_up = VALUES(picked_up), waited_us = VALUES(waited_us)"
    ));
    for (topic, total) in totals {
        statement = statement
            .number(worker.0)
            .number(topic.0)
            .number(total.done)
            .number(total.failed)
            .number(total.picked_up)
            .number(u64::try_from(total.waited.as_micros()).unwrap_or(u64::MAX));
    }
    execute(conn, "tell the throughput", statement).await
}

/// Sums the totals by topic. Reads the whole table, which has a row for each topic of each worker.
pub async fn by_topic(conn: &mut impl Connection) -> Result<Vec<(TopicId, Throughput)>> {
    let statement = Statement::new(
        "SELECT topic_id, CAST(SUM(done) AS UNSIGNED) AS done, \
         CAST(SUM(failed) AS UNSIGNED) AS failed, \
         CAST(SUM(picked_up) AS UNSIGNED) AS picked_up, \
         CAST(SUM(waited_us) AS UNSIGNED) AS waited_us FROM queue_throughput GROUP BY topic_id",
    );
    load(conn, "read the throughput", statement).await
}

row! { Throughput { done, failed, picked_up, waited: Duration::from_micros } }

/// PRIMARY of both tables: lists the workers of the first `limit` totals whose worker has no row
/// any more.
pub async fn of_gone(conn: &mut impl Connection, limit: u32) -> Result<Vec<WorkerId>> {
    let statement = Statement::new(
        "SELECT t.worker_id FROM queue_throughput t FORCE INDEX (PRIMARY) WHERE t.worker_id > 0 \
         AND NOT EXISTS (SELECT 1 FROM queue_worker w WHERE w.id = t.worker_id) \
         ORDER BY t.worker_id LIMIT ?",
    )
    .number(limit);
    let mut workers: Vec<WorkerId> =
        load(conn, "look for workers that are gone", statement).await?;
    workers.dedup();
    Ok(workers)
}

/// PRIMARY: locks a worker's totals; returns how many topics they cover.
pub async fn lock(conn: &mut impl Connection, worker: WorkerId) -> Result<usize> {
    let statement = Statement::new(
        "SELECT worker_id FROM queue_throughput FORCE INDEX (PRIMARY) WHERE worker_id = ? FOR UPDATE",
    )
    .number(worker.0);
    let rows: Vec<WorkerId> = load(conn, "lock the throughput", statement).await?;
    Ok(rows.len())
}

/// PRIMARY: adds a worker's totals to those of all workers that are gone.
pub async fn fold(conn: &mut impl Connection, worker: WorkerId) -> Result<usize> {
    let statement = Statement::new(
        "INSERT INTO queue_throughput (worker_id, topic_id, done, failed, picked_up, waited_us) \
         SELECT 0, t.topic_id, t.done, t.failed, t.picked_up, t.waited_us \
         FROM queue_throughput t FORCE INDEX (PRIMARY) WHERE t.worker_id = ? \
         ON DUPLICATE KEY UPDATE done = queue_throughput.done + VALUES(done), \
         failed = queue_throughput.failed + VALUES(failed), \
         picked_up = queue_throughput.picked_up + VALUES(picked_up), \
         waited_us = queue_throughput.waited_us + VALUES(waited_us)",
    )
    .number(worker.0);
    execute_surely(conn, "fold the throughput", statement).await
}

/// PRIMARY: removes a worker's totals.
pub async fn forget(conn: &mut impl Connection, worker: WorkerId) -> Result<usize> {
    let statement = diesel::delete(dsl::queue_throughput.filter(dsl::worker_id.eq(worker)));
    write_surely(conn, "forget the throughput", statement).await
}

/// PRIMARY: removes totals that workers that are gone stored for topics that are gone.
pub async fn forget_topics(conn: &mut impl Connection) -> Result<usize> {
    let topic = queue_topic::table.filter(queue_topic::id.eq(dsl::topic_id));
    let statement = diesel::delete(
        dsl::queue_throughput.filter(dsl::worker_id.eq(WorkerId(0)).and(not(exists(topic)))),
    );
    write_surely(conn, "forget the throughput of topics", statement).await
}
