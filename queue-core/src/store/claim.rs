//! Claiming: a worker takes ready rows.

mod marks;
mod update;
mod walk;

pub use self::marks::{Marks, ScanPosition};
pub use self::update::{own_first, own_ready, owned};
pub use self::walk::{Walk, next_ready, urgent, walk};

use chrono::{DateTime, Utc};

use super::row_set::{KEYS, RowSet};
use super::{Statement, execute, execute_surely, load, load_surely};
use crate::connection::{Connection, row};
use crate::model::{
    ClaimNo, ConnId, Delivery, DeliveryNo, Headers, MsgId, Priority, Result, RowId, TopicId,
    WorkerId,
};

/// The fence of a claim: every claim, settle, release and rescue checks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The worker.
    pub worker: WorkerId,
    /// Its claim.
    pub claim_no: ClaimNo,
}

row! { Fence { worker, claim_no } }

/// A claim, as recorded: the key range that holds all its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The worker and claim number.
    pub fence: Fence,
    /// The topic of its rows.
    pub topic: TopicId,
    /// The priority of its rows.
    pub priority: Priority,
    /// Its lowest row.
    pub lo: RowId,
    /// Its highest row.
    pub hi: RowId,
    /// How many rows it had when it was made.
    pub n: u32,
    /// The connection that made it.
    pub conn: ConnId,
}

row! { Claim { fence, topic, priority, lo, hi, n, conn } }

const COLUMNS: &str = "priority, id, msg_id, delivery_no, failures, crashes, enqueued_at, \
     expires_at, UTC_TIMESTAMP(6), ordering_key, biz_id, unique_key, headers, body";

/// A row as it is claimed: [`COLUMNS`], in that order.
pub(super) struct MessageRow {
    priority: Priority,
    id: RowId,
    msg_id: MsgId,
    delivery_no: DeliveryNo,
    failures: u32,
    crashes: u32,
    enqueued_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    claimed_at: DateTime<Utc>,
    ordering_key: Option<Vec<u8>>,
    biz_id: Option<Vec<u8>>,
    unique_key: Option<Vec<u8>>,
    headers: Headers,
    body: Vec<u8>,
}

row! {
    MessageRow {
        priority, id, msg_id, delivery_no, failures, crashes, enqueued_at, expires_at, claimed_at,
        ordering_key, biz_id, unique_key, headers, body,
    }
}

impl MessageRow {
    pub(super) fn into_delivery(
        self,
        topic_id: TopicId,
        claim_no: ClaimNo,
        claimed: u32,
    ) -> Delivery {
        Delivery {
            topic_id,
            msg_id: self.msg_id,
            delivery_no: DeliveryNo(self.delivery_no.0.saturating_add(claimed)),
            failures: self.failures,
            crashes: self.crashes,
            enqueued_at: self.enqueued_at,
            expires_at: self.expires_at,
            claimed_at: self.claimed_at,
            key: self.ordering_key,
            biz_id: self.biz_id,
            unique_key: self.unique_key,
            headers: self.headers,
            body: self.body,
            priority: self.priority,
            row: self.id,
            claim_no,
            position: None,
            traced: false,
        }
    }
}

/// How far apart a claim's rows may lie. Rescue reads a claim's whole key range, so a released row
/// far below the others must not stretch that range over the backlog.
fn span(limit: u32) -> u64 {
    u64::from(limit) * 10 + 1000
}

/// PRIMARY, forced: locks up to `limit` ready rows of one priority in order of id, from `from` on,
/// passing over rows that other sessions have locked. Rows far from the first one are left out; the
/// commit unlocks them.
///
/// One range only. MariaDB ends a range not at its last key but at the first existing row beyond
/// it, so each range of an empty priority reads every dead entry of the next one: with the ten
/// ranges that this once had, a drain took 97 µs of the server a message instead of 41.
pub async fn lock_ready(
    conn: &mut impl Connection,
    topic: TopicId,
    place: ScanPosition,
    limit: u32,
    claim_no: ClaimNo,
) -> Result<Vec<Delivery>> {
    tracing::trace!(step = "lock_ready");
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = ? AND id >= ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT ? FOR UPDATE SKIP LOCKED"
    ))
    .number(topic.0)
    .number(place.priority.stored())
    .number(place.from.0)
    .number(limit);
    let rows: Vec<MessageRow> = load(conn, "claim: lock ready rows", statement).await?;
    let Some(lowest) = rows.first().map(|row| row.id) else { return Ok(Vec::new()) };
    Ok(rows
        .into_iter()
        .take_while(|row| row.id.0 - lowest.0 <= span(limit))
        .map(|row| row.into_delivery(topic, claim_no, 1))
        .collect())
}

/// PRIMARY, forced: locks those of these rows that are ready, passing over rows that other sessions
/// have locked.
pub async fn lock_rows(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: Priority,
    rows: &RowSet,
    claim_no: ClaimNo,
) -> Result<Vec<Delivery>> {
    let mut locked = Vec::with_capacity(rows.len());
    for piece in rows.pieces() {
        let (condition, ids) = piece.condition();
        let statement = Statement::new(format!(
            "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
             WHERE topic_id = ? AND priority = ? AND {condition} AND worker_id = 0 \
             ORDER BY topic_id, priority, id FOR UPDATE SKIP LOCKED"
        ))
        .number(topic.0)
        .number(priority.stored())
        .numbers(ids);
        let rows: Vec<MessageRow> = load(conn, "claim: lock rows", statement).await?;
        locked.extend(rows.into_iter().map(|row| row.into_delivery(topic, claim_no, 1)));
    }
    Ok(locked)
}

/// PRIMARY, forced: locks the lowest ready suspect that no other session has locked, if there is
/// one.
pub async fn lock_suspect(
    conn: &mut impl Connection,
    topic: TopicId,
    claim_no: ClaimNo,
) -> Result<Vec<Delivery>> {
    let statement = Statement::new(format!(
        "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority >= ? AND worker_id = 0 \
         ORDER BY topic_id, priority, id LIMIT 1 FOR UPDATE SKIP LOCKED"
    ))
    .number(topic.0)
    .number(Priority::FIRST.suspect().stored());
    let rows: Vec<MessageRow> = load(conn, "claim: lock a suspect", statement).await?;
    Ok(rows.into_iter().map(|row| row.into_delivery(topic, claim_no, 1)).collect())
}

/// PRIMARY, forced: marks rows that this transaction has locked as the worker's own.
pub async fn own(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    priority: Priority,
    rows: &RowSet,
) -> Result<usize> {
    tracing::trace!(step = "own");
    let mut owned = 0;
    for piece in rows.pieces() {
        let (condition, ids) = piece.condition();
        let statement = Statement::new(format!(
            "UPDATE queue_message FORCE INDEX (PRIMARY) SET conn_id = CONNECTION_ID(), \
             worker_id = ?, claim_no = ?, delivery_no = delivery_no + 1 \
             WHERE topic_id = ? AND priority = ? AND {condition} AND worker_id = 0"
        ))
        .number(fence.worker.0)
        .number(fence.claim_no.0)
        .number(topic.0)
        .number(priority.stored())
        .numbers(ids);
        owned += execute_surely(conn, "claim: own the rows", statement).await?;
    }
    Ok(owned)
}

/// PRIMARY (`worker_id`, `claim_no`): records a claim, in the transaction that makes it.
pub async fn record(
    conn: &mut impl Connection,
    fence: Fence,
    topic: TopicId,
    priority: Priority,
    rows: &RowSet,
) -> Result<()> {
    tracing::trace!(step = "record");
    let Some((lo, hi)) = rows.bounds() else { return Ok(()) };
    let statement = Statement::new(
        "INSERT INTO queue_claim \
         (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at) \
         VALUES (?, ?, ?, ?, ?, ?, ?, CONNECTION_ID(), UTC_TIMESTAMP(6))",
    )
    .number(fence.worker.0)
    .number(fence.claim_no.0)
    .number(topic.0)
    .number(priority.stored())
    .number(lo.0)
    .number(hi.0)
    .number(rows.len() as u64);
    execute(conn, "claim: record it", statement).await?;
    Ok(())
}

/// PRIMARY (`worker_id`, `claim_no`), forced: forgets claims that have no rows left. Their numbers
/// are joined from a list, however few: a killed DELETE of one table may say that it found nothing.
pub async fn forget(
    conn: &mut impl Connection,
    worker: WorkerId,
    claims: &[ClaimNo],
) -> Result<usize> {
    tracing::trace!(step = "forget");
    let numbers = claims.iter().map(|claim| RowId(claim.0)).collect::<RowSet>();
    let statement = Statement::new(format!(
        "DELETE c FROM {KEYS} STRAIGHT_JOIN queue_claim c FORCE INDEX (PRIMARY) \
         ON c.worker_id = ? AND c.claim_no = k.id"
    ))
    .bytes(numbers.json())
    .number(worker.0);
    execute(conn, "settle: forget empty claims", statement).await
}

/// KEY (`topic_id`, priority, hi), forced, plain, one dive: finds the highest row that any claim
/// has.
pub async fn frontier(
    conn: &mut impl Connection,
    topic: TopicId,
    priority: Priority,
) -> Result<Option<RowId>> {
    let statement = Statement::new(
        "SELECT hi FROM queue_claim FORCE INDEX (queue_claim_frontier) \
         WHERE topic_id = ? AND priority = ? \
         ORDER BY topic_id DESC, priority DESC, hi DESC LIMIT 1",
    )
    .number(topic.0)
    .number(priority.stored());
    let rows: Vec<RowId> = load(conn, "see how far claims have come", statement).await?;
    Ok(rows.first().copied())
}

/// PRIMARY (`worker_id`, `claim_no`): reads the worker's claims from `from` on. A worker that has
/// made many claims knows how far back to look; reading the dead entries of earlier ones would only
/// cost time.
pub async fn of_worker(
    conn: &mut impl Connection,
    worker: WorkerId,
    from: ClaimNo,
) -> Result<Vec<Claim>> {
    let statement = Statement::new(
        "SELECT worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id FROM queue_claim \
         WHERE worker_id = ? AND claim_no >= ? ORDER BY claim_no",
    )
    .number(worker.0)
    .number(from.0);
    load_surely(conn, "read the worker's claims", statement).await
}

/// KEY (`topic_id`, priority, hi), forced, plain: reads every claim of the topic.
pub async fn of_topic(conn: &mut impl Connection, topic: TopicId) -> Result<Vec<Claim>> {
    let statement = Statement::new(
        "SELECT worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id \
         FROM queue_claim FORCE INDEX (queue_claim_frontier) WHERE topic_id = ?",
    )
    .number(topic.0);
    load_surely(conn, "read the topic's claims", statement).await
}
