//! What is in the server's tables.

use std::time::Duration;

use anyhow::Context;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary};
use diesel_async::RunQueryDsl;
use queue_core::MsgId;

use super::{Arena, Queue, SERVER_PATIENCE};
use crate::check::Leftovers;
use crate::task::Task;

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Binary)]
    msg_id: Vec<u8>,
    #[diesel(sql_type = Binary)]
    body: Vec<u8>,
}

impl Arena {
    /// One number as root.
    pub(crate) async fn number(&self, query: &str) -> anyhow::Result<u64> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = BigInt)]
            n: i64,
        }
        let query = format!("SELECT CAST(({query}) AS SIGNED) AS n");
        let deadline = tokio::time::Instant::now() + SERVER_PATIENCE;
        loop {
            let mut conn = self.connect().await?;
            match diesel::sql_query(&query).load::<Row>(&mut conn).await {
                Ok(rows) => return Ok(rows.iter().map(|row| row.n.unsigned_abs()).sum()),
                Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// What is in the tables now.
    pub(crate) async fn leftovers(&self) -> anyhow::Result<Leftovers> {
        let unsettled = match self.queue {
            Queue::Product => {
                "SELECT msg_id, body FROM queue_message WHERE topic_id > 0 UNION ALL \
                 SELECT msg_id, body FROM queue_scheduled"
            }
            Queue::Naive => "SELECT msg_id, body FROM naive_queue",
        };
        let mut leftovers = Leftovers::default();
        for row in self.rows(unsettled).await? {
            let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
            *leftovers.unsettled.entry(id.into()).or_default() += 1;
        }
        for row in self.rows("SELECT msg_id, body FROM queue_dead").await? {
            let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
            let task: Task = serde_json::from_slice(&row.body)?;
            leftovers.dead.insert(id.into(), task.ending);
        }
        if self.queue == Queue::Product {
            let holders = "SELECT u.msg_id, u.unique_key AS body FROM queue_unique u \
                 WHERE NOT EXISTS (SELECT 1 FROM queue_message m \
                 WHERE m.topic_id = u.topic_id AND m.msg_id = u.msg_id) \
                 AND NOT EXISTS (SELECT 1 FROM queue_scheduled s \
                 WHERE s.topic_id = u.topic_id AND s.msg_id = u.msg_id)";
            for row in self.rows(holders).await? {
                let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
                leftovers.holders.insert(id.into());
            }
            for row in self.rows("SELECT msg_id, msg_id AS body FROM chaos_effect").await? {
                let id = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?;
                *leftovers.effects.entry(id.into()).or_default() += 1;
            }
        }
        Ok(leftovers)
    }

    async fn rows(&self, query: &str) -> anyhow::Result<Vec<Row>> {
        Ok(diesel::sql_query(query).load(&mut self.connect().await?).await?)
    }

    /// Whether nothing is left to do.
    pub(crate) async fn is_drained(&self) -> anyhow::Result<bool> {
        let left = match self.queue {
            Queue::Product => {
                "(SELECT COUNT(*) FROM queue_message WHERE topic_id > 0) + (SELECT COUNT(*) FROM queue_scheduled) \
                 + (SELECT COUNT(*) FROM queue_claim)"
            }
            Queue::Naive => "(SELECT COUNT(*) FROM naive_queue)",
        };
        Ok(self.number(left).await? == 0)
    }
}
