//! Reads the server's tables.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::DateTime;
use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Binary};
use diesel_async::RunQueryDsl;
use rowmq_core::connection::{Link, Session, SessionKind, Wanted};
use rowmq_core::find::{Query, find};
use rowmq_core::model::OnDone;
use rowmq_core::model::found::{Filter, StateWord};
use rowmq_core::store::find::Bodies;
use rowmq_core::store::topic::existing;
use rowmq_core::{MsgId, TopicName};

use super::{Arena, Queue, SEARCHABLE, SERVER_PATIENCE};
use crate::check::{Leftovers, Trace};
use crate::stream::{Group, STREAM, Share};
use crate::tag::Tag;
use crate::task::Task;

#[derive(QueryableByName)]
struct Row {
    #[diesel(sql_type = Binary)]
    msg_id: Vec<u8>,
    #[diesel(sql_type = Binary)]
    body: Vec<u8>,
    /// The name of its topic, where it matters.
    #[diesel(sql_type = Binary)]
    topic: Vec<u8>,
}

impl Row {
    fn tag(&self) -> anyhow::Result<Tag> {
        Ok(MsgId::from_bytes(&self.msg_id).context("a message id has 16 bytes")?.into())
    }

    /// Returns the shares of the message: one for each group if it is in the stream's inbox.
    fn shares(&self) -> anyhow::Result<Vec<Share>> {
        let (tag, topic) = (self.tag()?, String::from_utf8_lossy(&self.topic));
        if topic == STREAM {
            return Ok(Group::ALL.map(|group| Share { tag, group: Some(group) }).into());
        }
        Ok(vec![Share::of(tag, &topic)])
    }
}

/// The prefix of topic names that the janitor makes for messages without a topic.
const RESTORED: &str = "restored-";

/// Selects what groups have not finished, and what they lost: a number, and what it counts.
const BEHIND: &str = "SELECT what, n FROM ( \
     SELECT CONCAT(t.name, ' has not claimed of partition ', c.partition_no) AS what, \
     CAST(p.next_offset AS SIGNED) - CAST(c.next_offset AS SIGNED) AS n \
     FROM queue_cursor c JOIN queue_topic t ON t.id = c.group_id \
     JOIN queue_partition p ON p.topic_id = t.stream_id AND p.partition_no = c.partition_no \
     UNION ALL SELECT CONCAT('range ', id, ' is left of group ', group_id, ', partition ', \
     partition_no, ', worker ', worker_id), CAST(hi - mark AS SIGNED) FROM queue_range \
     UNION ALL SELECT CONCAT('acked and kept of range ', range_id), COUNT(*) \
     FROM queue_passed GROUP BY range_id \
     UNION ALL SELECT CONCAT('lost to retention by group ', group_id, ', partition ', \
     partition_no), CAST(lost AS SIGNED) FROM queue_cursor \
     UNION ALL SELECT CONCAT('lost to retention by ', name, ', partition ', partition_no), \
     CAST(lost AS SIGNED) FROM queue_member \
     UNION ALL SELECT CONCAT(m.name, ' is not through with partition ', m.partition_no), \
     CAST(p.next_offset AS SIGNED) - CAST(m.next_offset AS SIGNED) \
     FROM queue_member m JOIN queue_topic t ON t.id = m.group_id \
     JOIN queue_partition p ON p.topic_id = t.stream_id AND p.partition_no = m.partition_no \
     ) b WHERE n <> 0";

impl Arena {
    /// Reads one number as root.
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

    /// Returns what is in the tables now.
    pub(crate) async fn leftovers(&self) -> anyhow::Result<Leftovers> {
        let mut leftovers = self.unfinished().await?;
        if self.queue == Queue::Product {
            leftovers.traces = self.traces().await?;
            leftovers.found = self.found().await?;
        }
        Ok(leftovers)
    }

    /// Returns the same without traces and without what can be looked up, which may be kept for a
    /// short time only.
    pub(crate) async fn unfinished(&self) -> anyhow::Result<Leftovers> {
        let unsettled = match self.queue {
            Queue::Product => {
                "SELECT m.msg_id, m.body, t.name AS topic FROM queue_message m \
                 JOIN queue_topic t ON t.id = m.topic_id UNION ALL \
                 SELECT s.msg_id, s.body, t.name FROM queue_scheduled s \
                 JOIN queue_topic t ON t.id = s.topic_id"
            }
            Queue::Naive => "SELECT msg_id, body, body AS topic FROM naive_queue",
        };
        let mut leftovers = Leftovers::default();
        for row in self.rows(unsettled).await? {
            if row.topic.starts_with(RESTORED.as_bytes()) {
                leftovers.restored.extend(row.shares()?);
                continue;
            }
            for share in row.shares()? {
                *leftovers.unsettled.entry(share).or_default() += 1;
            }
        }
        let dead = "SELECT d.msg_id, d.body, t.name AS topic FROM queue_dead d \
             JOIN queue_topic t ON t.id = d.topic_id";
        for row in self.rows(dead).await? {
            let task: Task = serde_json::from_slice(&row.body)?;
            for share in row.shares()? {
                leftovers.dead.insert(share, task.ending);
            }
        }
        if self.queue == Queue::Product {
            let holders = "SELECT u.msg_id, u.unique_key AS body, u.unique_key AS topic \
                 FROM queue_unique u \
                 WHERE NOT EXISTS (SELECT 1 FROM queue_message m \
                 WHERE m.topic_id = u.topic_id AND m.msg_id = u.msg_id) \
                 AND NOT EXISTS (SELECT 1 FROM queue_scheduled s \
                 WHERE s.topic_id = u.topic_id AND s.msg_id = u.msg_id)";
            for row in self.rows(holders).await? {
                leftovers.holders.insert(row.tag()?);
            }
            let effects = "SELECT msg_id, msg_id AS body, msg_id AS topic FROM chaos_effect";
            for row in self.rows(effects).await? {
                *leftovers.effects.entry(row.tag()?).or_default() += 1;
            }
            leftovers.behind = self.behind().await?;
        }
        Ok(leftovers)
    }

    /// Searches for every message of the searchable topics.
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

    /// Reads the traces of the topics that trace everything.
    async fn traces(&self) -> anyhow::Result<HashMap<Share, Trace>> {
        #[derive(QueryableByName)]
        struct Row {
            #[diesel(sql_type = Binary)]
            msg_id: Vec<u8>,
            #[diesel(sql_type = Binary)]
            topic: Vec<u8>,
            #[diesel(sql_type = BigInt)]
            enqueued: i64,
            #[diesel(sql_type = BigInt)]
            acked: i64,
        }
        let query = "SELECT r.msg_id, t.name AS topic, \
             CAST(SUM(r.event = 'enqueued') AS SIGNED) AS enqueued, \
             CAST(SUM(r.event = 'settled' AND r.outcome = 'ack') AS SIGNED) AS acked \
             FROM queue_trace r JOIN queue_topic t ON t.id = r.topic_id \
             GROUP BY r.msg_id, t.name";
        let rows: Vec<Row> = diesel::sql_query(query).load(&mut self.connect().await?).await?;
        ensure!(!rows.is_empty(), "no message has left a trace");
        let trace = |row: Row| {
            let tag = MsgId::from_bytes(&row.msg_id).context("a message id has 16 bytes")?.into();
            let share = Share::of(tag, &String::from_utf8_lossy(&row.topic));
            let (enqueued, acked) = (row.enqueued.unsigned_abs(), row.acked.unsigned_abs());
            Ok((share, Trace { enqueued, acked }))
        };
        rows.into_iter().map(trace).collect()
    }

    /// Returns what groups have not finished.
    async fn behind(&self) -> anyhow::Result<Vec<String>> {
        #[derive(QueryableByName)]
        struct Behind {
            #[diesel(sql_type = Binary)]
            what: Vec<u8>,
            #[diesel(sql_type = BigInt)]
            n: i64,
        }
        let rows: Vec<Behind> = diesel::sql_query(BEHIND).load(&mut self.connect().await?).await?;
        let sentence = |row: &Behind| format!("{}: {}", String::from_utf8_lossy(&row.what), row.n);
        Ok(rows.iter().map(sentence).collect())
    }

    async fn rows(&self, query: &str) -> anyhow::Result<Vec<Row>> {
        Ok(diesel::sql_query(query).load(&mut self.connect().await?).await?)
    }

    /// Returns the latest message of the topic, which usually waits, or is the only one.
    pub(crate) async fn last_of(&self, topic: &str) -> anyhow::Result<Option<Tag>> {
        let query = format!(
            "SELECT m.msg_id, m.msg_id AS body, t.name AS topic FROM queue_message m \
             JOIN queue_topic t ON t.id = m.topic_id WHERE t.name = '{topic}' \
             ORDER BY m.id DESC LIMIT 1"
        );
        self.rows(&query).await?.into_iter().next().map(|row| row.tag()).transpose()
    }

    /// Returns whether nothing is left to do.
    pub(crate) async fn is_drained(&self) -> anyhow::Result<bool> {
        let left = match self.queue {
            Queue::Product => {
                // Messages that were given to a topic without consumers stay there.
                "(SELECT COUNT(*) FROM queue_message m LEFT JOIN queue_topic t \
                 ON t.id = m.topic_id WHERE m.topic_id > 0 \
                 AND COALESCE(t.name, '') NOT LIKE 'restored-%') \
                 + (SELECT COUNT(*) FROM queue_scheduled) + (SELECT COUNT(*) FROM queue_claim) \
                 + (SELECT COUNT(*) FROM queue_range) + (SELECT COUNT(*) FROM queue_passed) \
                 + (SELECT COUNT(*) FROM queue_cursor c \
                 JOIN queue_topic t ON t.id = c.group_id \
                 JOIN queue_partition p ON p.topic_id = t.stream_id \
                 AND p.partition_no = c.partition_no WHERE p.next_offset > c.next_offset) \
                 + (SELECT COUNT(*) FROM queue_member m \
                 JOIN queue_topic t ON t.id = m.group_id \
                 JOIN queue_partition p ON p.topic_id = t.stream_id \
                 AND p.partition_no = m.partition_no WHERE p.next_offset > m.next_offset)"
            }
            Queue::Naive => "(SELECT COUNT(*) FROM naive_queue)",
        };
        Ok(self.number(left).await? == 0)
    }
}
