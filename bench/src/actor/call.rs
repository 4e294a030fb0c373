//! A consumer by the SQL contract, as in any language: one session in a loop that claims by
//! `CALL queue_claim` and settles its deliveries by `CALL queue_settle`.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row, Statement};
use rowmq_core::connection::ServerUrl;
use tokio_util::sync::CancellationToken;

use super::consume::stop_watch;
use super::{DrainTask, PickupTask, Tally, is_conflict};
use crate::arena::raw;
use crate::claimer::Claimer;

/// The wait after a claim that found nothing.
const IDLE: std::time::Duration = std::time::Duration::from_millis(5);

/// How long a call waits for a message, in seconds.
const WAIT: u32 = 5;

/// A session and its calls.
struct Session<'t> {
    conn: Conn,
    task: &'t DrainTask,
    tally: &'t Tally,
    claim: Statement,
    settle: Statement,
}

pub(super) async fn drain(
    task: &DrainTask,
    url: &ServerUrl,
    tally: &Tally,
    drained: &CancellationToken,
) -> anyhow::Result<()> {
    let mut session = Session::open(task, url, tally).await?;
    while !drained.is_cancelled() {
        let deliveries = session.claim().await?;
        if deliveries.is_empty() {
            tokio::time::sleep(IDLE).await;
            continue;
        }
        tally.begin();
        // How many deliveries one transaction settles.
        let share = match task.by {
            Claimer::CallTogether | Claimer::CallAll => deliveries.len(),
            _ => 1,
        };
        for deliveries in deliveries.chunks(share) {
            session.settle(deliveries).await?;
        }
    }
    session.conn.query_drop("CALL queue_leave()").await?;
    Ok(())
}

/// Claims one message at a time by a call that waits, and records how long ago it was made.
pub(super) async fn pick_up(
    task: &PickupTask,
    url: &ServerUrl,
    tally: &Tally,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let [topic] = &task.topics[..] else { anyhow::bail!("A session claims from one topic") };
    let mut conn = raw(url).await?;
    let claim = conn.prep("CALL queue_claim(?, 1, ?)").await?;
    let settle = conn.prep("CALL queue_settle(?, 'ack', NULL, NULL)").await?;
    while !stop.is_cancelled() {
        let rows: Vec<Row> = conn.exec(&claim, (topic, WAIT)).await?;
        for row in rows {
            let (body, delivery): (Option<Vec<u8>>, Option<String>) =
                (row.get("body"), row.get("delivery"));
            stop_watch(tally, &body.unwrap_or_default());
            conn.exec_drop(&settle, (delivery,)).await?;
            tally.settle(1);
        }
    }
    conn.query_drop("CALL queue_leave()").await?;
    Ok(())
}

impl<'t> Session<'t> {
    async fn open(task: &'t DrainTask, url: &ServerUrl, tally: &'t Tally) -> anyhow::Result<Self> {
        let mut conn = raw(url).await?;
        conn.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
        let claim = conn.prep("CALL queue_claim(?, ?, NULL)").await?;
        let settle = conn.prep("CALL queue_settle(?, 'ack', NULL, NULL)").await?;
        Ok(Self { conn, task, tally, claim, settle })
    }

    /// Claims a batch and returns its deliveries, each of which comes with its body and the rest.
    async fn claim(&mut self) -> anyhow::Result<Vec<String>> {
        let values = (&self.task.topic, self.task.batch as u64);
        let rows: Vec<Row> = self.conn.exec(&self.claim, values).await?;
        rows.iter()
            .map(|row| row.get("delivery"))
            .collect::<Option<_>>()
            .ok_or_else(|| anyhow::anyhow!("queue_claim returned a row without its delivery"))
    }

    /// Settles these in one transaction, which is repeated after a conflict.
    async fn settle(&mut self, deliveries: &[String]) -> anyhow::Result<()> {
        loop {
            match self.settle_once(deliveries).await {
                Err(error) if is_conflict(&error) => self.conn.query_drop("ROLLBACK").await?,
                settled => break settled?,
            }
        }
        self.tally.settle(deliveries.len() as u64);
        Ok(())
    }

    async fn settle_once(&mut self, deliveries: &[String]) -> anyhow::Result<()> {
        let own = matches!(self.task.by, Claimer::CallTransaction | Claimer::CallTogether);
        if own {
            self.conn.query_drop("START TRANSACTION").await?;
        }
        // How many deliveries one call settles.
        let share = if self.task.by == Claimer::CallAll { deliveries.len() } else { 1 };
        for deliveries in deliveries.chunks(share) {
            self.conn.exec_drop(&self.settle, (deliveries.join(","),)).await?;
        }
        if own {
            self.conn.query_drop("COMMIT").await?;
        }
        Ok(())
    }
}
