//! The command `peer-fang`: runs the loads on fang, background jobs on sqlx, to compare it with the
//! queue.

mod job;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use fang::{AsyncQueue, AsyncQueueable as _, AsyncWorkerPool, SleepParams};
use peer_program::{Case, Database, Messages, Peer, Tally};
use sqlx::{MySqlPool, QueryBuilder};
use uuid::Uuid;

use crate::job::{Job, TASK_TYPE};

/// Workers in the pool of one consumer, each with its own connection. With 1, 4 and 16 workers,
/// 10,000 jobs drained at 83, 92 and 91 a second: each claim sorts the whole backlog.
const WORKERS: u32 = 4;

/// How long a worker sleeps after it found nothing. The default is 5 s, which grows to 15 s. A
/// worker that lost its job to another worker sleeps too.
const SLEEP: Duration = Duration::from_millis(10);

/// How a statement that claims jobs begins, as the server's process list shows it.
const CLAIM: &str = "SELECT * FROM fang_tasks";

const SCHEMA: &str = include_str!("schema.sql");

#[derive(Clone)]
struct Fang {
    database: Database,
    queue: AsyncQueue,
    pool: MySqlPool,
}

impl Peer for Fang {
    const NAME: &'static str = "fang";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn open(url: &str, case: &Case) -> anyhow::Result<Self> {
        let database = Database::new(url)?;
        let (producers, fillers) = match *case {
            Case::Enqueue { producers, .. } => (producers, 1),
            Case::Fill { .. } => (1, Case::FILLERS),
            Case::Drain { .. } => (1, 1),
        };
        let pool = database.pool(fillers).await?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await.context("Cannot create the table of fang")?;
        let queue = connect(&database, producers).await?;
        open_all(&queue, producers).await;
        Ok(Self { database, queue, pool })
    }

    fn settings(&self, case: &Case) -> String {
        match case {
            Case::Enqueue { producers, .. } => {
                format!(
                    "{producers} × producer on a connection of its own, insert_task (there is no bulk)"
                )
            }
            Case::Fill { .. } => "multi-row INSERT of fang's rows, not by fang".to_owned(),
            Case::Drain { consumers, .. } => format!(
                "{consumers} × AsyncWorkerPool of {WORKERS} workers on {WORKERS} connections, sleep \
                 10 ms (5 s by default), retention RemoveAll"
            ),
        }
    }

    async fn enqueue(&self, _producer: usize, batch: Messages) -> anyhow::Result<()> {
        let body = batch.body();
        for number in batch.numbers() {
            let job = Job { number, body: body.clone() };
            self.queue.insert_task(&job).await.context("fang did not take a job")?;
        }
        Ok(())
    }

    async fn insert(&self, _filler: usize, batch: Messages) -> anyhow::Result<()> {
        let jobs = job::stored(&batch)?;
        let mut statement = QueryBuilder::new("INSERT INTO fang_tasks (id, metadata, task_type) ");
        statement.push_values(jobs, |mut row, job| {
            row.push_bind(Uuid::new_v4()).push_bind(job).push_bind(TASK_TYPE);
        });
        statement.build().execute(&self.pool).await.context("Cannot fill the table of fang")?;
        Ok(())
    }

    async fn consume(&self, tally: Arc<Tally>) -> anyhow::Result<()> {
        job::count_in(tally);
        let sleep = SleepParams::builder()
            .sleep_period(SLEEP)
            .min_sleep_period(SLEEP)
            .max_sleep_period(SLEEP)
            .sleep_step(Duration::ZERO)
            .build();
        AsyncWorkerPool::<AsyncQueue>::builder()
            .queue(connect(&self.database, WORKERS).await?)
            .number_of_workers(WORKERS)
            .sleep_params(sleep)
            .task_type(TASK_TYPE)
            .build()
            .start()
            .await;
        // The pool does not watch its workers, and a worker reports nothing when it ends.
        std::future::pending().await
    }

    async fn end(url: &str) -> anyhow::Result<()> {
        Database::new(url)?.end_statements(CLAIM).await
    }
}

async fn connect(database: &Database, connections: u32) -> anyhow::Result<AsyncQueue> {
    let mut queue = AsyncQueue::builder().uri(database.url()).max_pool_size(connections).build();
    queue.connect().await.context("fang cannot connect to the server of --url")?;
    Ok(queue)
}

/// Opens all connections of the queue before the clock starts: its pool opens only one by itself.
async fn open_all(queue: &AsyncQueue, connections: u32) {
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let queue = queue.clone();
        // No job has this id, which fang reports as an error.
        running.spawn(async move { drop(queue.find_task_by_id(&Uuid::nil()).await) });
    }
    running.join_all().await;
}

fn main() -> ExitCode {
    peer_program::run::<Fang>()
}
