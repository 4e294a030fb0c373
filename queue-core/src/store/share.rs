//! The shares of workers in the limit of a topic: how many of its messages each may run at once.
//!
//! A claim locks its worker's own share, so claims of different workers do not wait for each other.
//! The shares of a topic change behind its [gate](super::limit). None outlives a change of the
//! topic's limits.

use diesel::prelude::*;

use super::{Statement, execute, load, load_surely, write_surely};
use crate::connection::{Connection, row};
use crate::model::{Result, TopicId, WorkerId};
use crate::schema::queue_share;
use crate::store::claim::Claim;

const RUNNING: &str = "SELECT worker_id, COUNT(*) AS n FROM queue_message FORCE INDEX (PRIMARY) \
     WHERE topic_id = ? AND priority = ? AND id BETWEEN ? AND ? AND worker_id = ? AND claim_no = ? \
     GROUP BY worker_id";

/// A worker's share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// The most messages that the worker may run at once.
    pub n: u32,
    /// The limit that it is part of.
    pub of: u32,
}

row! { Share { n, of } }

impl Share {
    /// How many more messages a worker that runs `running` of them may claim under the limit.
    #[must_use]
    pub fn room(self, limit: u32, running: u32) -> u32 {
        if self.of == limit { self.n.saturating_sub(running) } else { 0 }
    }
}

/// PRIMARY, forced: locks the worker's share until the transaction ends. A worker without one has a
/// share of nothing.
pub async fn lock(conn: &mut impl Connection, topic: TopicId, worker: WorkerId) -> Result<Share> {
    let statement = Statement::new(
        "SELECT n, max_running FROM queue_share FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND worker_id = ? FOR UPDATE",
    )
    .number(topic.0)
    .number(worker.0);
    let rows: Vec<Share> = load(conn, "claim: lock the share", statement).await?;
    Ok(rows.first().copied().unwrap_or_default())
}

/// A share, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// Whose it is.
    pub worker: WorkerId,
    /// The share.
    pub share: Share,
    /// Whether the worker is no longer registered.
    pub is_gone: bool,
}

row! { Stored { worker, share, is_gone } }

/// PRIMARY of both tables, forced, plain: reads every share in the topic.
pub async fn all(conn: &mut impl Connection, topic: TopicId) -> Result<Vec<Stored>> {
    let statement = Statement::new(
        "SELECT worker_id, n, max_running, (w.id IS NULL) AS gone \
         FROM queue_share FORCE INDEX (PRIMARY) \
         LEFT JOIN queue_worker w FORCE INDEX (PRIMARY) ON w.id = worker_id WHERE topic_id = ?",
    )
    .number(topic.0);
    load_surely(conn, "deal: read the shares", statement).await
}

/// PRIMARY, the claims' key ranges, forced, plain: counts the messages that these claims still
/// have, by worker, with a round trip for 32 claims. A worker may be in the list several times.
pub async fn running(conn: &mut impl Connection, claims: &[Claim]) -> Result<Vec<(WorkerId, u64)>> {
    let mut running = Vec::new();
    for some in claims.chunks(32) {
        // Padded with what no claim has, so that there are few statement texts and they stay
        // prepared.
        let n = some.len().next_power_of_two();
        let mut statement = Statement::new(vec![RUNNING; n].join(" UNION ALL "));
        let numbers = |claim: &Claim| {
            let Claim { topic, priority, lo, hi, fence, .. } = claim;
            let places = [u64::from(topic.0), u64::from(priority.stored()), lo.0, hi.0];
            places.into_iter().chain([fence.worker.0, fence.claim_no.0])
        };
        statement = statement.numbers(some.iter().flat_map(numbers));
        statement = statement.numbers(std::iter::repeat_n(0, 6 * (n - some.len())));
        let counted: Vec<(WorkerId, u64)> =
            load_surely(conn, "deal: count what runs", statement).await?;
        running.extend(counted);
    }
    Ok(running)
}

/// PRIMARY, forced: locks the shares in the topic that no claim has locked, and returns their
/// workers. It does not wait for the others: a frozen worker would hold up the whole topic.
pub async fn lock_unused(conn: &mut impl Connection, topic: TopicId) -> Result<Vec<WorkerId>> {
    let statement = Statement::new(
        "SELECT worker_id FROM queue_share FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? FOR UPDATE SKIP LOCKED",
    )
    .number(topic.0);
    load(conn, "deal: lock the shares", statement).await
}

/// PRIMARY: stores a worker's share.
pub async fn set(
    conn: &mut impl Connection,
    topic: TopicId,
    worker: WorkerId,
    share: Share,
) -> Result<()> {
    let statement = Statement::new(
        "INSERT INTO queue_share (topic_id, worker_id, n, max_running) VALUES (?, ?, ?, ?) \
         ON DUPLICATE KEY UPDATE n = VALUES(n), max_running = VALUES(max_running)",
    )
    .number(topic.0)
    .number(worker.0)
    .number(share.n)
    .number(share.of);
    execute(conn, "deal: store a share", statement).await?;
    Ok(())
}

/// PRIMARY: removes a worker's share.
pub async fn remove(conn: &mut impl Connection, topic: TopicId, worker: WorkerId) -> Result<()> {
    let statement = diesel::delete(queue_share::table.find((topic, worker)));
    write_surely(conn, "deal: remove a share", statement).await?;
    Ok(())
}
