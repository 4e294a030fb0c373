//! The statements of our claim and settle, and those of simpler protocols, run by the bare driver:
//! one connection in a loop, with nothing around them.

use anyhow::ensure;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Statement, Value};
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::{DrainTask, Tally, is_conflict};
use crate::arena::raw;
use crate::claimer::Claimer;

const COLUMNS: &str = "priority, id, msg_id, delivery_no, failures, crashes, enqueued_at, \
     ordering_key, biz_id, headers, body";

/// The wait after a claim that found nothing.
const IDLE: std::time::Duration = std::time::Duration::from_millis(5);

/// A connection and its position in the topic.
struct Bare {
    conn: Conn,
    topic: u32,
    batch: usize,
    mark: u64,
    worker: u64,
    claim_no: u64,
    claimed: Vec<u64>,
    lock: Statement,
    record: Statement,
    forget: Statement,
}

pub(super) async fn drain(
    task: &DrainTask,
    url: &ServerUrl,
    tally: &Tally,
    drained: &CancellationToken,
) -> anyhow::Result<()> {
    if task.by == Claimer::RangeRead {
        return read_ranges(task, url, tally).await;
    }
    let mut bare = Bare::open(task, url).await?;
    while !drained.is_cancelled() {
        let settled = match bare.round(task.by, tally).await {
            // Connections may lock neighbouring rows in different orders: the transaction is rolled
            // back and retried.
            Err(error) if is_conflict(&error) => {
                bare.conn.query_drop("ROLLBACK").await?;
                continue;
            }
            settled => settled?,
        };
        tally.settle(settled);
        if settled == 0 {
            // Rows that other connections had locked may be free by now.
            bare.mark = 0;
            tokio::time::sleep(IDLE).await;
        }
    }
    Ok(())
}

impl Bare {
    async fn open(task: &DrainTask, url: &ServerUrl) -> anyhow::Result<Self> {
        let mut conn = raw(url).await?;
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        let topic = topic(&mut conn, &task.topic).await?;
        let lock = format!(
            "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
             WHERE topic_id = ? AND priority = 5 AND id >= ? AND worker_id = 0 \
             ORDER BY topic_id, priority, id LIMIT ? FOR UPDATE SKIP LOCKED"
        );
        let record = "INSERT INTO queue_claim \
             (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at) \
             VALUES (?, ?, ?, 5, ?, ?, ?, CONNECTION_ID(), UTC_TIMESTAMP(6))";
        let forget = "DELETE FROM queue_claim WHERE worker_id = ? AND claim_no = ?";
        Ok(Self {
            lock: conn.prep(lock).await?,
            record: conn.prep(record).await?,
            forget: conn.prep(forget).await?,
            topic,
            batch: task.batch,
            mark: 0,
            worker: u64::from(conn.id()),
            claim_no: 0,
            claimed: Vec::new(),
            conn,
        })
    }

    /// Runs one batch, from its claim to its settle.
    async fn round(&mut self, by: Claimer, tally: &Tally) -> anyhow::Result<u64> {
        if by == Claimer::SelectDelete {
            return self.select_and_delete(tally).await;
        }
        // After a settle that met a conflict, this round only repeats the settle.
        if self.claimed.is_empty() {
            self.claim(tally).await?;
        }
        self.settle().await
    }

    /// Claims as our work session does: a claim is one transaction, and its settle another.
    async fn claim(&mut self, tally: &Tally) -> anyhow::Result<()> {
        self.conn.query_drop("BEGIN").await?;
        let ids = self.lock_rows().await?;
        if let (Some(lo), Some(hi)) = (ids.first(), ids.last()) {
            tally.begin();
            self.claim_no += 1;
            let (condition, values) = condition(&ids);
            let mut own: Vec<Value> =
                vec![self.worker.into(), self.claim_no.into(), self.topic.into()];
            own.extend(values);
            let update = format!(
                "UPDATE queue_message FORCE INDEX (PRIMARY) SET conn_id = CONNECTION_ID(), \
                 worker_id = ?, claim_no = ?, delivery_no = delivery_no + 1 \
                 WHERE topic_id = ? AND priority = 5 AND {condition} AND worker_id = 0"
            );
            self.conn.exec_drop(update, own).await?;
            ensure!(self.conn.affected_rows() == ids.len() as u64, "Locked rows were not claimed");
            let record = (self.worker, self.claim_no, self.topic, lo, hi, ids.len() as u64);
            self.conn.exec_drop(&self.record, record).await?;
        }
        self.conn.query_drop("COMMIT").await?;
        self.claimed = ids;
        Ok(())
    }

    async fn settle(&mut self) -> anyhow::Result<u64> {
        let n = self.claimed.len() as u64;
        if n == 0 {
            return Ok(0);
        }
        self.conn.query_drop("BEGIN").await?;
        let (condition, values) = condition(&self.claimed);
        let mut fenced: Vec<Value> = vec![self.topic.into()];
        fenced.extend(values);
        fenced.extend([self.worker.into(), self.claim_no.into()]);
        let delete = format!(
            "DELETE m FROM queue_message m FORCE INDEX (PRIMARY) \
             WHERE topic_id = ? AND priority = 5 AND {condition} AND worker_id = ? AND claim_no = ?"
        );
        self.conn.exec_drop(delete, fenced).await?;
        ensure!(self.conn.affected_rows() == n, "Claimed rows were not settled");
        self.conn.exec_drop(&self.forget, (self.worker, self.claim_no)).await?;
        self.conn.query_drop("COMMIT").await?;
        self.claimed.clear();
        Ok(n)
    }

    /// Runs one transaction from the claim to the settle: locks instead of claims.
    async fn select_and_delete(&mut self, tally: &Tally) -> anyhow::Result<u64> {
        self.conn.query_drop("BEGIN").await?;
        let ids = self.lock_rows().await?;
        if !ids.is_empty() {
            tally.begin();
            let (condition, values) = condition(&ids);
            let mut keys: Vec<Value> = vec![self.topic.into()];
            keys.extend(values);
            let delete = format!(
                "DELETE m FROM queue_message m FORCE INDEX (PRIMARY) \
                 WHERE topic_id = ? AND priority = 5 AND {condition}"
            );
            self.conn.exec_drop(delete, keys).await?;
        }
        self.conn.query_drop("COMMIT").await?;
        Ok(ids.len() as u64)
    }

    async fn lock_rows(&mut self) -> anyhow::Result<Vec<u64>> {
        let batch = self.batch as u64;
        let rows: Vec<Row> = self.conn.exec(&self.lock, (self.topic, self.mark, batch)).await?;
        let ids: Vec<u64> = rows.iter().filter_map(|row| row.get("id")).collect();
        if let Some(last) = ids.last() {
            self.mark = last + 1;
        }
        Ok(ids)
    }
}

/// Reads its share of the rows by key, `batch` at a time: the cost of a claim that writes nothing.
async fn read_ranges(task: &DrainTask, url: &ServerUrl, tally: &Tally) -> anyhow::Result<()> {
    let mut conn = raw(url).await?;
    let topic = topic(&mut conn, &task.topic).await?;
    let sql = format!(
        "SELECT {COLUMNS} FROM queue_message FORCE INDEX (PRIMARY) \
         WHERE topic_id = ? AND priority = 5 AND id >= ? ORDER BY topic_id, priority, id LIMIT ?"
    );
    let read = conn.prep(sql).await?;
    let start: Option<u64> = conn
        .exec_first(
            "SELECT id FROM queue_message WHERE topic_id = ? AND priority = 5 \
             ORDER BY topic_id, priority, id LIMIT 1 OFFSET ?",
            (topic, task.first),
        )
        .await?;
    let (mut from, mut left) = (start.unwrap_or_default(), task.share);
    tally.begin();
    while left > 0 {
        let batch = left.min(task.batch as u64);
        let rows: Vec<Row> = conn.exec(&read, (topic, from, batch)).await?;
        let Some(last) = rows.last().and_then(|row| row.get::<u64, _>("id")) else { break };
        from = last + 1;
        left -= (rows.len() as u64).min(left);
        tally.settle(rows.len() as u64);
    }
    Ok(())
}

async fn topic(conn: &mut Conn, name: &str) -> anyhow::Result<u32> {
    let sql = "SELECT id FROM queue_topic WHERE name = ?";
    let topic: Option<u32> = conn.exec_first(sql, (name.as_bytes(),)).await?;
    topic.ok_or_else(|| anyhow::anyhow!("There is no topic '{name}'"))
}

/// Builds the condition as the store does: a range where ids are consecutive, otherwise a padded
/// list.
fn condition(ids: &[u64]) -> (String, Vec<Value>) {
    match (ids.first(), ids.last()) {
        (Some(lo), Some(hi)) if hi - lo == ids.len() as u64 - 1 => {
            ("id BETWEEN ? AND ?".to_owned(), vec![(*lo).into(), (*hi).into()])
        }
        (_, Some(hi)) => {
            let mut values = ids.to_vec();
            values.resize(ids.len().next_power_of_two(), *hi);
            let list = vec!["?"; values.len()].join(", ");
            (format!("id IN ({list})"), values.into_iter().map(Value::from).collect())
        }
        _ => ("FALSE".to_owned(), Vec::new()),
    }
}
