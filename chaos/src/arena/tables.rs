//! What is in the server's tables.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::DateTime;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary};
use diesel_async::RunQueryDsl;
use queue_core::connection::{Link, Session, SessionKind, Wanted};
use queue_core::find::{Filter, Query, StateWord, find};
use queue_core::store::find::Bodies;
use queue_core::store::topic::existing;
use queue_core::topic::OnDone;
use queue_core::{MsgId, TopicName};

use super::{Arena, Queue, SEARCHABLE, SERVER_PATIENCE};
use crate::check::Leftovers;
use crate::tag::Tag;
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
            leftovers.found = self.found().await?;
        }
        Ok(leftovers)
    }

    /// What a search says of every message of the topics that are searchable.
    async fn found(&self) -> anyhow::Result<HashMap<Tag, (StateWord, bool)>> {
        let mut all = HashMap::new();
        let mut session =
            Session::open_to(&self.root, SessionKind::Plain, Wanted::Any, SERVER_PATIENCE).await?;
        for name in SEARCHABLE {
            let name = TopicName::new(name)?;
            let read = async |conn: &mut Link| existing(conn, &name).await;
            let topic = session.call("read the topic", read).await?;
            let kept = topic.settings.on_done != OnDone::Delete;
            let filter = Filter { since: Some(DateTime::UNIX_EPOCH), ..Filter::default() };
            let (bodies, limit) = (Bodies::Leave, 10_000);
            let mut query = Query { filter, after: None, limit, bodies };
            loop {
                let answer = find(&mut session, &topic, &query).await?;
                let found = answer.found.into_iter();
                all.extend(found.map(|one| (one.msg_id.into(), (one.state.word(), kept))));
                query.after = answer.next;
                if query.after.is_none() {
                    break;
                }
            }
        }
        ensure!(!all.is_empty(), "a search finds none of the messages that were sent");
        Ok(all)
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
