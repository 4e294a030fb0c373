//! The processes of a load: consumers, and the references' claimers. Each process is this program,
//! started again with a task. It writes its counts to standard output, and ends when its standard
//! input ends.

mod bare;
mod call;
mod client;
mod company;
mod consume;
mod ems;
mod seeds;
mod tally;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rowmq_core::connection::ServerUrl;
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_service::signals::Shutdown;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;

use crate::claimer::{Claimer, WakeUp};

pub(crate) use self::company::Company;
pub(crate) use self::tally::{Count, Tally, now};

/// How often a process reports its counts.
const REPORT: Duration = Duration::from_millis(20);

/// The task of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Claim and settle until stopped.
    Drain(DrainTask),
    /// Measure the time from the enqueue to the start of the handler.
    Pickup(PickupTask),
    /// Hold messages until the process is killed.
    Hold(HoldTask),
    /// Perform the janitor's duties.
    Sweep,
}

/// Claim and settle until stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DrainTask {
    /// How messages are claimed and settled.
    pub(crate) by: Claimer,
    /// The topic.
    pub(crate) topic: String,
    /// Handlers at once.
    pub(crate) concurrency: usize,
    /// The most messages of one claim.
    pub(crate) batch: usize,
    /// The first of the rows that a reader of ranges reads, counted from the first of the table.
    pub(crate) first: u64,
    /// How many it reads.
    pub(crate) share: u64,
}

/// Measure the time from the enqueue to the start of the handler.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PickupTask {
    /// The topics.
    pub(crate) topics: Vec<String>,
    /// How it learns of messages.
    pub(crate) wake_up: WakeUp,
}

/// Hold messages until the process is killed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HoldTask {
    /// The topic.
    pub(crate) topic: String,
    /// The number in the bodies of the messages that it holds; it acks the others at once.
    pub(crate) holds: u64,
    /// Whether it is the named member of a broadcast group.
    pub(crate) member: bool,
}

/// Does the task until standard input ends.
pub(crate) async fn run(task: Task, url: ServerUrl) -> anyhow::Result<()> {
    let shutdown = Shutdown::default();
    let tally = Arc::new(Tally::default());
    let reporter = tokio::spawn(report(Arc::clone(&tally)));
    let ending = shutdown.clone();
    tokio::spawn(async move {
        let mut nothing = [0];
        // Nothing is ever sent: the input ends when the process that started this one closes it, or
        // dies.
        while matches!(tokio::io::stdin().read(&mut nothing).await, Ok(n) if n > 0) {}
        ending.drain.cancel();
    });
    match task {
        Task::Drain(task) => match task.by {
            Claimer::Consumer
            | Claimer::Transactional
            | Claimer::Exec
            | Claimer::Pool
            | Claimer::UpdateThenSelect
            | Claimer::UpdateLimit => {
                consume::drain(&task, url, &tally, shutdown).await?;
            }
            Claimer::Bare | Claimer::SelectDelete | Claimer::RangeRead => {
                bare::drain(&task, &url, &tally, &shutdown.drain).await?;
            }
            Claimer::Call | Claimer::CallAll | Claimer::CallTransaction | Claimer::CallTogether => {
                call::drain(&task, &url, &tally, &shutdown.drain).await?;
            }
            Claimer::Python => {
                client::drain("python", &task, &url, &tally, &shutdown.drain).await?
            }
            Claimer::Php => client::drain("php", &task, &url, &tally, &shutdown.drain).await?,
            Claimer::Node => client::drain("node", &task, &url, &tally, &shutdown.drain).await?,
            Claimer::Seed001 | Claimer::Seed003 | Claimer::Seed004 | Claimer::Seed004ForUpdate => {
                seeds::drain(&task, &url, &tally, &shutdown.drain).await?;
            }
        },
        Task::Sweep => {
            let driver = Driver::new(DriverOptions::new(url, "bench"));
            driver.run(shutdown.drain, |_| {}).await;
        }
        Task::Hold(task) => consume::hold(&task, url, &tally, shutdown).await?,
        Task::Pickup(task) if task.wake_up == WakeUp::Call => {
            call::pick_up(&task, &url, &tally, &shutdown.drain).await?;
        }
        Task::Pickup(task) => consume::pick_up(&task, url, &tally, shutdown).await?,
    }
    reporter.abort();
    say(&tally.count_with_cpu())
}

/// Returns whether a statement of a reference met a deadlock (1213) or a lock wait that took too
/// long (1205). Our own claimers handle these themselves.
fn is_conflict(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(mysql_async::Error::Server(error)) => matches!(error.code, 1213 | 1205),
        _ => false,
    }
}

async fn report(tally: Arc<Tally>) {
    let mut said = Count::default();
    loop {
        tokio::time::sleep(REPORT).await;
        let count = tally.count();
        if count != said {
            if say(&tally.count_with_cpu()).is_err() {
                return;
            }
            said = count;
        }
    }
}

fn say(count: &Count) -> anyhow::Result<()> {
    let line = serde_json::to_string(count)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").context("Cannot write to standard output")?;
    out.flush().context("Cannot write to standard output")
}
