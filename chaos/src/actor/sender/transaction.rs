//! A sender's transaction, as a user writes it.

use std::time::Duration;

use diesel::sql_types::{Binary, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rand::Rng;
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, enqueue_all};
use tokio::time::sleep;

use crate::record::Enqueued;

/// How many of a hundred transactions are rolled back.
const ROLLBACKS: u32 = 15;

/// How many of a hundred transactions by SQL read the database first and enqueue late.
const LATE: u32 = 25;

/// What enqueues the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The library.
    Library,
    /// `CALL queue_send` and `queue_send_all`, as a program in any language uses them.
    Sql,
}

/// How the transaction goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    by: By,
    think: Duration,
    /// It thinks before it enqueues instead of after, so its snapshot is old by then.
    late: bool,
    /// By SQL: all messages in one call.
    at_once: bool,
    commits: bool,
}

impl Transaction {
    pub(super) fn random(by: By, longest_think_ms: u64, rng: &mut impl Rng) -> Self {
        Self {
            by,
            think: Duration::from_millis(rng.random_range(0..=longest_think_ms)),
            late: by == By::Sql && rng.random_ratio(LATE, 100),
            at_once: rng.random(),
            commits: !rng.random_ratio(ROLLBACKS, 100),
        }
    }

    /// Runs the transaction; calls `inserted` when its messages are written and not yet committed.
    pub(super) async fn run(
        self,
        conn: &mut AsyncMysqlConnection,
        topic: &TopicName,
        messages: &[NewMessage],
        inserted: impl FnOnce() -> std::io::Result<()>,
    ) -> Enqueued {
        let wrote = self.write(conn, topic, messages, inserted).await;
        let (end, outcome) = match wrote {
            Ok(()) if self.commits => ("COMMIT", Enqueued::Stored),
            // The server rolls back what was not committed when the connection goes.
            _ => ("ROLLBACK", Enqueued::NotStored),
        };
        match conn.batch_execute(end).await {
            Ok(()) => outcome,
            Err(_) => Enqueued::InDoubt,
        }
    }

    async fn write(
        self,
        conn: &mut AsyncMysqlConnection,
        topic: &TopicName,
        messages: &[NewMessage],
        inserted: impl FnOnce() -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        if self.late {
            // The account can read no table, and a snapshot needs none.
            let snapshot = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                            START TRANSACTION WITH CONSISTENT SNAPSHOT";
            conn.batch_execute(snapshot).await?;
            sleep(self.think).await;
        } else {
            conn.batch_execute("BEGIN").await?;
        }
        match self.by {
            // The limit applies to the topic's depth now, not to its depth when the connection was
            // opened.
            By::Library => drop(enqueue_all(conn, topic, messages).await?),
            By::Sql if self.at_once => call_at_once(conn, topic, messages).await?,
            By::Sql => call(conn, topic, messages).await?,
        }
        inserted()?;
        if !self.late {
            sleep(self.think).await;
        }
        Ok(())
    }
}

async fn call(
    conn: &mut AsyncMysqlConnection,
    topic: &TopicName,
    messages: &[NewMessage],
) -> anyhow::Result<()> {
    for message in messages {
        let options = serde_json::json!({ "id": message.msg_id.to_string() });
        diesel::sql_query("CALL queue_send(?, ?, ?)")
            .bind::<Text, _>(topic.as_str())
            .bind::<Binary, _>(message.body.as_slice())
            .bind::<Text, _>(options.to_string())
            .execute(conn)
            .await?;
    }
    Ok(())
}

async fn call_at_once(
    conn: &mut AsyncMysqlConnection,
    topic: &TopicName,
    messages: &[NewMessage],
) -> anyhow::Result<()> {
    let given = |message: &NewMessage| {
        let body = std::str::from_utf8(&message.body)?;
        anyhow::Ok(serde_json::json!({ "body": body, "id": message.msg_id.to_string() }))
    };
    let given: Vec<_> = messages.iter().map(given).collect::<anyhow::Result<_>>()?;
    diesel::sql_query("CALL queue_send_all(?, ?)")
        .bind::<Text, _>(topic.as_str())
        .bind::<Text, _>(serde_json::to_string(&given)?)
        .execute(conn)
        .await?;
    Ok(())
}
