//! `chaos`: breaks a fleet of real processes on a real server, and proves from what each of them
//! recorded that nothing was lost. Run it by `ops/chaos`, which starts the server.

mod actor;
mod arena;
mod check;
mod cluster;
mod failover;
mod fault;
mod naive;
mod record;
mod report;
mod run;
mod schedule;
mod soak;
mod stream;
mod tag;
mod task;
mod topics;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use clap::{Parser, Subcommand};
use rowmq_core::connection::ServerUrl;
use rowmq_service::args::{self, ServiceArgs};
use rowmq_service::{process, signals};

use crate::actor::{
    caller::CallerArgs, recorder::RecorderArgs, sender::SenderArgs, witness::WitnessArgs,
};
use crate::arena::{Arena, Client, Load, Queue, Server, ServerKind};
use crate::check::Findings;
use crate::failover::FailoverPlan;
use crate::fault::Fault;
use crate::naive::NaiveArgs;
use crate::run::{Plan, QUIET};
use crate::soak::SoakArgs;

/// Breaks a fleet of real processes on a real server and checks that nothing is lost.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One run: a quiet phase, faults, and the proof.
    Run(RunArgs),
    /// A run on a cluster: a quiet phase, its writer killed again and again, and the proof.
    Failover(FailoverArgs),
    /// A run without faults in which the fleet restarts every minute: nothing may grow.
    Soak(SoakArgs),
    /// Show the faults.
    Faults,
    /// A process of a run that sends.
    #[command(hide = true)]
    Send(SenderArgs),
    /// A process of a run that consumes and records.
    #[command(hide = true)]
    Record(RecorderArgs),
    /// A process of a run that consumes by the SQL contract.
    #[command(hide = true)]
    Call(CallerArgs),
    /// The program that a consumer of a run executes.
    #[command(hide = true)]
    Witness(WitnessArgs),
    /// A process of the naive queue.
    #[command(hide = true)]
    Naive(NaiveArgs),
}

#[derive(clap::Args)]
struct RunArgs {
    /// How long the quiet phase (20 s) and the faults take together; the proof comes after that.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed of the schedule; the same seed gives the same schedule. Drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these faults, separated by commas; `chaos faults` shows them all.
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// Run the naive queue that most people write first instead of ours, to see that the harness
    /// can see.
    #[arg(long)]
    naive: bool,
    #[command(flatten)]
    load: Load,
    /// The clients whose workers take part, separated by commas; `ops/client` has installed them.
    #[arg(long, value_delimiter = ',')]
    clients: Vec<Client>,
    /// The folder of `dev-server` and `client`.
    #[arg(long)]
    ops: PathBuf,
    /// The product of the server.
    #[arg(long, env = "ROWMQ_SERVER_KIND")]
    server: ServerKind,
    /// The name of the server in `dev-server`.
    #[arg(long, env = "ROWMQ_SERVER_NAME")]
    server_name: String,
    /// The server's URL, as root.
    #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
    url: ServerUrl,
    /// A library that gives processes a wrong clock (libfaketime); without it only their time zones
    /// are wrong.
    #[arg(long, env = "CHAOS_CLOCK_LIBRARY")]
    clock_library: Option<PathBuf>,
    /// The folder that keeps the records after the run; without it only the records of a failed run
    /// are kept.
    #[arg(long)]
    keep: Option<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(clap::Args)]
struct FailoverArgs {
    #[command(flatten)]
    plan: FailoverPlan,
    /// The cluster's URL, as root.
    #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
    url: ServerUrl,
    /// The folder that keeps the records after the run; without it only the records of a failed run
    /// are kept.
    #[arg(long)]
    keep: Option<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
}

fn main() -> ExitCode {
    let arguments: Arguments = args::parse();
    match arguments.command {
        Command::Run(args) => process::run(|| until_told_to_end(run_once(args))),
        Command::Failover(args) => process::run(|| until_told_to_end(fail_over(args))),
        Command::Soak(args) => process::run(|| until_told_to_end(soak_once(args))),
        Command::Faults => process::run(|| async {
            report::faults()?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Send(args) => process::run(|| actor::sender::run(args)),
        Command::Call(args) => process::run(|| actor::caller::run(args)),
        Command::Record(args) => process::run(|| actor::recorder::run(args)),
        Command::Naive(args) => process::run(|| naive::run(args)),
        Command::Witness(args) => process::run(|| async move { actor::witness::run(&args) }),
    }
}

/// Runs until the end, or until TERM or Ctrl-C, which end a run and all its processes at once.
async fn until_told_to_end(
    run: impl Future<Output = anyhow::Result<ExitCode>>,
) -> anyhow::Result<ExitCode> {
    let told = signals::shutdown_on_signals()?.drain;
    match told.run_until_cancelled(run).await {
        Some(ended) => ended,
        None => anyhow::bail!("The run was told to end before it had proved anything."),
    }
}

async fn run_once(args: RunArgs) -> anyhow::Result<ExitCode> {
    args.service.start_logs();
    let time = Duration::from_secs(args.seconds);
    ensure!(time > QUIET, "--seconds is more than the quiet phase's {}", QUIET.as_secs());
    let plan = Plan {
        seed: args.seed.unwrap_or_else(rand::random),
        time,
        faults: Fault::named(&args.faults)?,
        load: args.load,
        clients: args.clients,
    };
    let server = Server::new(args.ops, args.server, args.server_name);
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
    let queue = if args.naive { Queue::Naive } else { Queue::Product };
    let arena =
        Arena::prepare(queue, Some(server), args.url, args.clock_library, folder.path()).await?;
    let drained = run::run(&arena, &plan).await;
    let sound = findings(&arena, plan.seed, drained).await.and_then(|(findings, drained)| {
        let missed = if plan.is_rated() { findings.rescue.missed_bounds() } else { Vec::new() };
        report::show(&plan, args.server, &findings, &missed)?;
        Ok(findings.is_sound() && drained && missed.is_empty())
    });
    drop(arena);
    end(folder.path(), args.keep, plan.seed, sound)
}

async fn fail_over(args: FailoverArgs) -> anyhow::Result<ExitCode> {
    args.service.start_logs();
    let plan = args.plan;
    let seed = plan.seed.unwrap_or_else(rand::random);
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
    let arena = Arena::prepare(Queue::Product, None, args.url, None, folder.path()).await?;
    let drained = failover::run(&arena, &plan, seed).await;
    let sound = findings(&arena, seed, drained).await.and_then(|(findings, drained)| {
        let missed = check::missed_bound(&findings.failovers);
        report::show_failovers(&plan, seed, &findings, missed.as_deref())?;
        Ok(findings.is_sound_but_for(plan.known()) && drained && missed.is_none())
    });
    drop(arena);
    end(folder.path(), args.keep, seed, sound)
}

async fn soak_once(args: SoakArgs) -> anyhow::Result<ExitCode> {
    args.service.start_logs();
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir()?;
    let (seed, sound) = soak::run(&args, folder.path()).await;
    end(folder.path(), args.keep, seed, sound)
}

/// Keeps the records of a run that failed, or if requested.
fn end(
    folder: &Path,
    keep: Option<PathBuf>,
    seed: u64,
    sound: anyhow::Result<bool>,
) -> anyhow::Result<ExitCode> {
    let is_sound = matches!(sound, Ok(true));
    let kept = keep.or_else(|| (!is_sound).then(|| PathBuf::from(format!("target/chaos-{seed}"))));
    if let Some(kept) = kept {
        report::keep(folder, &kept)?;
    }
    Ok(if sound? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the findings of a run, and whether everything ended in time.
async fn findings(
    arena: &Arena,
    seed: u64,
    drained: anyhow::Result<bool>,
) -> anyhow::Result<(Findings, bool)> {
    match &drained {
        Ok(true) => {}
        Ok(false) => {
            tracing::error!(seed, "Messages or claims are left long after the last fault.")
        }
        Err(error) => tracing::error!(seed, %error, "The run itself failed."),
    }
    let leftovers = arena.leftovers().await?;
    let findings = check::check(&arena.folder().join("records"), &leftovers)?;
    Ok((findings, drained?))
}
