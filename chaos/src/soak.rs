//! The soak: the fleet works for an hour, restarts every minute, and nothing grows.
//!
//! No fault strikes. What is looked for is what only time shows: memory, descriptors, threads,
//! sessions and rows that are never given back.

mod ageing;
mod plot;
mod process;
mod restart;
mod sample;
mod series;
mod show;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use rowmq_core::connection::ServerUrl;
use rowmq_service::args::ServiceArgs;
use tokio::time::{Instant, sleep};

use self::sample::Sampler;
use self::series::{Book, Key, Series};
use self::verdict::{Judgement, SHORTEST, judge, warm_up};
use crate::arena::{Arena, Load, Member, Queue, Role, ServerKind};
use crate::check::{self, Findings};
use crate::run;

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SoakArgs {
    /// How long the load runs, in minutes; a run of less than ten is not judged.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// The random seed. Drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Messages a second through the producer's lanes; the other senders together send some sixty.
    #[arg(long, default_value_t = 30.0, value_name = "PER-SECOND")]
    rate: f64,
    /// The folder for the samples and the plots.
    #[arg(long, default_value = "target/soak")]
    out: PathBuf,
    /// The product of the server.
    #[arg(long, env = "ROWMQ_SERVER_KIND")]
    server: ServerKind,
    /// The server's URL, as root.
    #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
    url: ServerUrl,
    /// The folder that keeps the records after the run; without it only the records of a failed run
    /// are kept.
    #[arg(long)]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// The roles of which one process, the first, lives as long as the run: a leak shows only in a
/// process that lives. The rest of the fleet restarts. The first janitor is the one that sweeps,
/// and the caller is one session at the server for the whole time.
const LASTING: [Role; 4] = [Role::Janitor, Role::Recorder, Role::Caller, Role::Sender];

/// How long the server may take to forget the sessions of processes that have ended.
const GONE: Duration = Duration::from_secs(15);

/// What came out of a run, beside the proof.
struct Outcome {
    seed: u64,
    time: Duration,
    restarts: usize,
    judged: Vec<(Key, Judgement)>,
    /// What else went wrong, in sentences.
    failures: Vec<String>,
}

/// Runs a soak in `folder`, and returns its seed and whether all was flat and nothing was lost.
pub(crate) async fn run(args: &SoakArgs, folder: &Path) -> (u64, anyhow::Result<bool>) {
    let seed = args.seed.unwrap_or_else(rand::random);
    (seed, soak(args, seed, folder).await)
}

async fn soak(args: &SoakArgs, seed: u64, folder: &Path) -> anyhow::Result<bool> {
    let time = Duration::try_from_secs_f64(args.minutes * 60.0).context("--minutes is a time")?;
    ensure!(time >= Duration::from_secs(10), "--minutes is a time of at least ten seconds");
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("Cannot create {}", args.out.display()))?;
    let arena = Arena::prepare(Queue::Product, None, args.url.clone(), None, folder).await?;
    ageing::shorten(&arena).await?;
    let bar = run::progress(time);
    // A quiet phase has no restarts. A member that ends before a retry is due gives back what it
    // had handled behind it, so groups may get that twice; queues may not: that is judged below.
    run::phase(&arena, &bar, "faults")?;
    let load = Load { rate: args.rate, work_ms: 40, consumers: 4, concurrency: 16 };
    arena.fleet.muster(load, Duration::ZERO, seed).await?;
    let fleet = arena.fleet.everybody();
    let (restarts, series) = load_and_watch(&arena, args, seed, time, &bar).await?;
    bar.set_message("draining");
    let drained = run::settle_down(&arena).await?;
    bar.finish_and_clear();

    let mut failures = failures(&arena, &fleet, drained).await?;
    let findings = findings(&arena).await?;
    if findings.duplicates > 0 {
        let twice = findings.duplicates;
        failures.push(format!("{twice} deliveries of queues that no handler had asked for"));
    }
    // Two samples are the least that show a series; half of the planned ones, that they kept pace.
    let taken = series.first().map_or(0, |series| series.points.len());
    let planned = time.as_secs() / sample::EVERY.as_secs();
    if u64::try_from(taken)? * 2 < planned || taken < 2 {
        failures.push(format!("only {taken} of {planned} samples were taken"));
    }
    plot::draw(&args.out, &series, (time >= SHORTEST).then(|| warm_up(time)))?;
    let judged = series.iter().map(|series| (series.key.clone(), judge(series, time))).collect();
    let outcome = Outcome { seed, time, restarts, judged, failures };
    show::show(&outcome, args.server, &findings, &args.out)
}

/// Lets the fleet work and restart for this long, and returns how many restarts that were, and the
/// samples.
async fn load_and_watch(
    arena: &Arena,
    args: &SoakArgs,
    seed: u64,
    time: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<(usize, Vec<Series>)> {
    let (lasting, restarting) = shared_out(arena.fleet.everybody());
    let mut sampler = Sampler::start(arena, args.server, &lasting).await?;
    let mut book = Book::begin(&args.out, sampler.keys())?;
    let begun = Instant::now();
    let end = begun + time;
    bar.set_message("soaking");
    let ticking = async {
        run::tick(bar, end).await;
        anyhow::Ok(())
    };
    let (restarts, (), (), ()) = tokio::try_join!(
        restart::keep_restarting(&restarting, seed, begun, end),
        ageing::keep_ageing(arena, end),
        sampler.run(&mut book, begun, end),
        ticking,
    )?;
    Ok((restarts, book.series))
}

/// Splits the fleet into those who live as long as the run, and the rest.
fn shared_out(fleet: Vec<Arc<Member>>) -> (Vec<Arc<Member>>, Vec<Arc<Member>>) {
    let mut left = LASTING.to_vec();
    fleet.into_iter().partition(|member| {
        let place = left.iter().position(|role| *role == member.role());
        place.is_some_and(|place| {
            left.swap_remove(place);
            true
        })
    })
}

/// Returns what went wrong beside the messages: no process may fail, and none may leave anything.
async fn failures(
    arena: &Arena,
    fleet: &[Arc<Member>],
    drained: bool,
) -> anyhow::Result<Vec<String>> {
    let mut failures = Vec::new();
    if !drained {
        failures.push("messages or claims are left long after the load has ended".to_owned());
    }
    for member in fleet.iter().filter(|member| member.failures() > 0) {
        let (role, failed) = (member.role().word(), member.failures());
        failures.push(format!("{failed} processes of a {role} ended with a failure"));
    }
    let deadline = Instant::now() + GONE;
    let mut left = arena.sessions().await?.len();
    while left > 0 && Instant::now() < deadline {
        sleep(Duration::from_millis(200)).await;
        left = arena.sessions().await?.len();
    }
    if left > 0 {
        failures.push(format!("{left} sessions are left of processes that have ended"));
    }
    Ok(failures)
}

/// Checks the records. Traces and what can be looked up are not compared: they are kept for a
/// minute here.
async fn findings(arena: &Arena) -> anyhow::Result<Findings> {
    let leftovers = arena.unfinished().await?;
    check::check(&arena.folder().join("records"), &leftovers)
}
