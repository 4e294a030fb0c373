//! The command `peer-apalis`: runs the loads on apalis with its MySQL storage, to compare it with
//! the queue.

mod schema;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use apalis::layers::WorkerBuilderExt as _;
use apalis::prelude::{
    BoxDynError, Data, IntervalStrategy, StrategyBuilder, TaskSink as _, WorkerBuilder,
};
use apalis_mysql::{Config, MySqlPool, MySqlStorage};
use peer_program::{Case, Database, Messages, Peer, Tally};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

/// Jobs that one worker handles at once: the best of 8, 32 and 100.
const CONCURRENCY: usize = 32;

/// Jobs that one claim takes (10 by default). Each claim sorts the whole backlog, so large claims
/// are faster: with claims of 1000, 5000 and 20,000 jobs, a backlog of 50,000 drained at 1061, 1402
/// and 907 jobs a second on MariaDB, and at 438, 973 and 1194 on MySQL.
const BUFFER: usize = 5000;

/// How long a worker waits after it found nothing. The default is 100 ms, which grows to a minute
/// and stays there.
const POLL: Duration = Duration::from_millis(10);

/// Connections that all workers of a program share. The default of 10 is up to a quarter slower.
const POOL: u32 = 40;

/// How a statement that claims jobs begins, as the server's process list shows it.
const CLAIM: &str = "SELECT\n    *\nFROM\n    jobs";

/// The name of the queue, in the column `job_type`.
const QUEUE: &str = "bench";

/// One message.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    number: u64,
    body: String,
}

#[derive(Clone)]
struct Apalis {
    pool: MySqlPool,
}

impl Apalis {
    fn config() -> Config {
        let strategy = StrategyBuilder::new().apply(IntervalStrategy::new(POLL)).build();
        Config::new(QUEUE).set_buffer_size(BUFFER).with_poll_interval(strategy)
    }
}

/// Does nothing but count.
async fn handle(job: Job, tally: Data<Arc<Tally>>) -> Result<(), BoxDynError> {
    tally.started(job.number);
    Ok(())
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let connections = match *case {
            Case::Enqueue { producers, .. } => producers,
            Case::Fill { .. } => Case::FILLERS,
            Case::Drain { .. } => POOL,
        };
        let pool = Database::new(url)?.pool(connections).await?;
        schema::create(&pool).await.context("Cannot create the tables of apalis")?;
        Ok(Self { pool })
    }

    fn settings(&self, case: &Case) -> String {
        match case {
            Case::Enqueue { producers, batch, .. } => {
                format!("{producers} × producer on a connection of its own, push_bulk of {batch}")
            }
            Case::Fill { .. } => "multi-row INSERT of apalis's rows, not by apalis".to_owned(),
            Case::Drain { consumers, .. } => format!(
                "{consumers} × worker of concurrency {CONCURRENCY}, buffer {BUFFER} (10 by \
                 default), poll 10 ms fixed, {POOL} connections"
            ),
        }
    }

    async fn enqueue(&self, _producer: usize, batch: Messages) -> anyhow::Result<()> {
        let mut storage = MySqlStorage::<Job, (), ()>::new_with_config(&self.pool, &Self::config());
        let body = batch.body();
        let jobs = batch.numbers().map(|number| Job { number, body: body.clone() });
        storage.push_bulk(jobs.collect()).await.context("apalis did not take the jobs")
    }

    async fn insert(&self, _filler: usize, batch: Messages) -> anyhow::Result<()> {
        schema::insert(&self.pool, &batch).await.context("Cannot fill the table of apalis")
    }

    async fn consume(&self, tally: Arc<Tally>) -> anyhow::Result<()> {
        let storage = MySqlStorage::<Job, (), ()>::new_with_config(&self.pool, &Self::config());
        WorkerBuilder::new(Ulid::new().to_string())
            .backend(storage)
            .data(tally)
            .concurrency(CONCURRENCY)
            .build(handle)
            .run()
            .await
            .context("a worker of apalis ended")
    }

    async fn end(url: &str) -> anyhow::Result<()> {
        Database::new(url)?.end_statements(CLAIM).await
    }
}

fn main() -> ExitCode {
    peer_program::run::<Apalis>()
}
