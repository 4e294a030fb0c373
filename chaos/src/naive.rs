//! The naive queue that most people write first, as described in the articles that led to this
//! product: claimed by `UPDATE … SET owner = CONNECTION_ID() … LIMIT`, read back by owner, acked by
//! owner, and taken back by a janitor that reads the process list. The harness runs it to show that
//! the checks detect broken promises.
//!
//! Where the articles leave no choice, it does what they print: nothing ever writes `ts`, which
//! stays NULL with today's `explicit_defaults_for_timestamp`, so no claim ever counts as abandoned.
//! In all else it gets a fair chance: ids are wide enough, an index serves the claim, and a claim
//! would count as abandoned after three seconds instead of ten minutes.

mod consumer;
mod janitor;
mod sender;

use std::process::ExitCode;
use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncMysqlConnection, SimpleAsyncConnection};
use rowmq_core::connection::ServerUrl;
use rowmq_service::args::ServerArgs;
use rowmq_service::signals;
use tokio_util::sync::CancellationToken;

use crate::actor::Identity;
use crate::arena::{Fleet, Load, Role};
use crate::record::Record;

/// How long after TERM a process has to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// The wait before a lost connection is opened again.
const RECONNECT: Duration = Duration::from_millis(200);

/// A process of the naive queue, which runs until TERM.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NaiveArgs {
    /// Its role.
    #[arg(long, value_enum)]
    role: NaiveRole,
    #[command(flatten)]
    identity: Identity,
    /// Messages a second that a sender sends.
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// The longest work of a handler, in milliseconds.
    #[arg(long, default_value_t = 100)]
    work_ms: u64,
    /// Messages that a consumer claims and handles at once.
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// The random seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    server: ServerArgs,
}

/// The processes of the naive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NaiveRole {
    /// Inserts.
    Sender,
    /// Claims, handles, deletes.
    Consumer,
    /// Takes back.
    Janitor,
}

/// Starts the processes of a run.
pub(crate) async fn muster(fleet: &Fleet, load: Load, seed: u64) -> anyhow::Result<()> {
    let arguments = |role: &str| {
        vec![
            "naive".to_owned(),
            format!("--role={role}"),
            format!("--rate={}", load.rate),
            format!("--work-ms={}", load.work_ms),
            format!("--concurrency={}", load.concurrency),
            format!("--seed={seed}"),
        ]
    };
    fleet.add_actor(Role::Janitor, arguments("janitor")).await?;
    for _ in 0..load.consumers {
        fleet.add_actor(Role::Recorder, arguments("consumer")).await?;
    }
    fleet.add_actor(Role::Sender, arguments("sender")).await?;
    Ok(())
}

pub(crate) async fn run(args: NaiveArgs) -> anyhow::Result<ExitCode> {
    let record = Record::open(&args.identity.record)?;
    let url = args.server.url()?;
    let drain = signals::shutdown_on_signals()?.drain;
    let ending = drain.clone();
    tokio::spawn(async move {
        ending.cancelled().await;
        // It may wait for ever for an answer that the network has swallowed.
        tokio::time::sleep(PATIENCE).await;
        std::process::exit(0);
    });
    match args.role {
        NaiveRole::Sender => sender::run(&args, &url, &record, &drain).await?,
        NaiveRole::Consumer => consumer::run(&args, &url, &record, &drain).await?,
        NaiveRole::Janitor => janitor::run(&url, &drain).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Connects as any driver does; returns `None` once the process is to end.
async fn connect(url: &ServerUrl, drain: &CancellationToken) -> Option<AsyncMysqlConnection> {
    while !drain.is_cancelled() {
        if let Ok(mut conn) = AsyncMysqlConnection::establish(url.expose()).await
            && conn.batch_execute("SET autocommit = 1").await.is_ok()
        {
            return Some(conn);
        }
        tokio::time::sleep(RECONNECT).await;
    }
    None
}
