//! The command `peer-redis`: runs the loads on a stream of Redis, to compare it with the queue.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use peer_program::{Case, Messages, Peer, Tally};
use redis::aio::MultiplexedConnection;
use redis::{Client, Pipeline, Value};

/// The stream, and the consumer group that reads it.
const STREAM: &str = "bench";
const GROUP: &str = "bench";

/// The field of an entry that holds its body.
const FIELD: &str = "body";

/// Entries that one XREADGROUP takes.
const COUNT: usize = 1000;

/// How long a consumer waits on the server for entries, in milliseconds: less than the client waits
/// for an answer.
const BLOCK: u64 = 100;

/// How an entry comes: its id, its field, its body.
type Entry = (String, (String, Vec<u8>));

#[derive(Clone)]
struct Redis {
    client: Client,
    producers: Vec<MultiplexedConnection>,
    consumers: Arc<AtomicU64>,
    delete: bool,
    /// The server's version and how it writes to its disk.
    server: String,
}

impl Peer for Redis {
    const NAME: &'static str = "redis";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let client = Client::open(url).context("--url is no URL like redis://host:port")?;
        let mut connection = connect(&client).await?;
        let delete = match *case {
            Case::Drain { delete, .. } => delete,
            Case::Enqueue { .. } | Case::Fill { .. } => {
                recreate(&mut connection).await.context("Cannot recreate the stream")?;
                false
            }
        };
        let mut producers = Vec::new();
        for _ in 0..case.producers() {
            producers.push(connect(&client).await?);
        }
        let server = describe(&mut connection).await.context("Redis does not say what it is")?;
        Ok(Self { client, producers, consumers: Arc::default(), delete, server })
    }

    fn settings(&self, case: &Case) -> String {
        let server = &self.server;
        match case {
            Case::Enqueue { producers, batch, .. } => format!(
                "{server}; {producers} × producer on a connection of its own, pipelines of {batch} \
                 XADD"
            ),
            Case::Fill { .. } => format!("{server}; pipelines of XADD"),
            Case::Drain { consumers, .. } => {
                let settle = if self.delete { "XACK and XDEL" } else { "XACK" };
                format!(
                    "{server}; {consumers} × consumer of one group, XREADGROUP COUNT {COUNT}, \
                     {settle} of all of them"
                )
            }
        }
    }

    async fn enqueue(&self, producer: usize, batch: Messages) -> anyhow::Result<()> {
        let mut connection = self.producers.get(producer).context("No such producer")?.clone();
        let mut pipeline = Pipeline::new();
        for payload in batch.payloads() {
            pipeline.cmd("XADD").arg(STREAM).arg("*").arg(FIELD).arg(payload).ignore();
        }
        pipeline.exec_async(&mut connection).await.context("Redis did not take the messages")
    }

    async fn consume(&self, tally: Arc<Tally>) -> anyhow::Result<()> {
        let mut connection = connect(&self.client).await?;
        let name = format!("consumer-{}", self.consumers.fetch_add(1, Ordering::Relaxed));
        loop {
            let entries = read(&name, &mut connection).await.context("Redis gave no messages")?;
            let numbers: anyhow::Result<Vec<u64>> =
                entries.iter().map(|(_, (_, body))| Messages::number_in(body)).collect();
            tally.all_started(numbers?);
            let ids: Vec<&str> = entries.iter().map(|(id, _)| id.as_str()).collect();
            if !ids.is_empty() {
                self.settle(&ids, &mut connection).await.context("Redis took no XACK")?;
            }
        }
    }
}

impl Redis {
    async fn settle(
        &self,
        ids: &[&str],
        connection: &mut MultiplexedConnection,
    ) -> redis::RedisResult<()> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("XACK").arg(STREAM).arg(GROUP).arg(ids).ignore();
        if self.delete {
            pipeline.cmd("XDEL").arg(STREAM).arg(ids).ignore();
        }
        pipeline.exec_async(connection).await
    }
}

async fn connect(client: &Client) -> anyhow::Result<MultiplexedConnection> {
    let connection = client.get_multiplexed_async_connection().await;
    connection.context("Cannot connect to the server of --url")
}

/// An empty stream, with a group that has read nothing.
async fn recreate(connection: &mut MultiplexedConnection) -> redis::RedisResult<()> {
    let mut pipeline = Pipeline::new();
    pipeline.cmd("DEL").arg(STREAM).ignore();
    pipeline.cmd("XGROUP").arg("CREATE").arg(STREAM).arg(GROUP).arg("0").arg("MKSTREAM").ignore();
    pipeline.exec_async(connection).await
}

/// Takes entries that no consumer of the group has got; none if there are none for a while.
async fn read(
    name: &str,
    connection: &mut MultiplexedConnection,
) -> redis::RedisResult<Vec<Entry>> {
    let streams: Option<Vec<(Value, Vec<Entry>)>> = redis::cmd("XREADGROUP")
        .arg("GROUP")
        .arg(GROUP)
        .arg(name)
        .arg("COUNT")
        .arg(COUNT)
        .arg("BLOCK")
        .arg(BLOCK)
        .arg("STREAMS")
        .arg(STREAM)
        .arg(">")
        .query_async(connection)
        .await?;
    Ok(streams.into_iter().flatten().flat_map(|(_, entries)| entries).collect())
}

/// The version of the server, and when it writes what it has answered to its disk.
async fn describe(connection: &mut MultiplexedConnection) -> redis::RedisResult<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let mut settings = Vec::new();
    for name in ["appendonly", "appendfsync", "auto-aof-rewrite-percentage", "save"] {
        let (name, value): (String, String) =
            redis::cmd("CONFIG").arg("GET").arg(name).query_async(connection).await?;
        let value = if value.is_empty() { "none".to_owned() } else { value };
        settings.push(format!("{name} {value}"));
    }
    Ok(format!("Redis {}, {}", version.unwrap_or("?"), settings.join(", ")))
}

fn main() -> ExitCode {
    peer_program::run::<Redis>()
}
