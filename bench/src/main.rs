//! `bench`: measures the queue beside the raw limit of its server, in the same run. Start it by
//! `ops/bench`, which starts the server.

mod actor;
mod arena;
mod case;
mod cases;
mod claimer;
mod figure;
mod load;
mod measurement;
mod plot;
mod process;
mod report;
mod results;
mod table;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use chrono::Utc;
use clap::{Parser, Subcommand};
use comfy_table::{Table, presets::NOTHING};
use indicatif::{ProgressBar, ProgressStyle};
use rowmq_core::connection::ServerUrl;
use rowmq_service::process as service;

use crate::actor::Task;
use crate::case::{Extent, Member, Scale};
use crate::cases::{CATALOGUE, PEERS};
use crate::load::Peer;
use crate::measurement::Outcome;
use crate::results::{Circumstances, Results};

/// Measures the queue beside the raw limit of its server.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the cases.
    Run(RunArgs),
    /// Show the cases.
    Cases,
    /// Print a Markdown table of the newest results of a case, with a column for each file.
    Table {
        /// The case.
        case: String,
        /// Files of results, such as target/bench/results/mariadb-binlog-off.jsonl.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// A process of a load.
    #[command(hide = true)]
    Actor {
        /// Its task.
        task: String,
        /// The server, and the database of the load.
        #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
        url: ServerUrl,
    },
}

#[derive(clap::Args)]
struct RunArgs {
    /// Take minutes, with one round of each load: for a first look, not to be quoted.
    #[arg(long, conflicts_with = "long")]
    quick: bool,
    /// Include backlogs of ten millions.
    #[arg(long)]
    long: bool,
    /// Only these cases, separated by commas; `bench cases` shows them all.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How often each load is run, instead of the extent's number.
    #[arg(long)]
    rounds: Option<usize>,
    /// The folder for the plots.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// The file to which each case adds a line of JSON with everything about it; by default
    /// results.jsonl in the folder for the plots.
    #[arg(long)]
    results: Option<PathBuf>,
    /// The commit that is measured, for the results.
    #[arg(long)]
    commit: Option<String>,
    /// The program of another queue, as NAME=PATH, or of a broker, as NAME=PATH,URL: it is
    /// measured too.
    #[arg(long = "peer", value_parser = peer)]
    peers: Vec<Peer>,
    /// The server's URL; the account must be allowed to create databases.
    #[arg(long, env = "ROWMQ_URL", hide_env_values = true)]
    url: ServerUrl,
}

fn peer(text: &str) -> Result<Peer, String> {
    const IN_DATABASE: [&str; 2] = ["fang", "apalis"];
    const BROKERS: [&str; 3] = ["redis", "nats", "rabbitmq"];
    let (name, place) = text.split_once('=').ok_or("a peer is NAME=PATH or NAME=PATH,URL")?;
    let (program, url) = match place.split_once(',') {
        Some((program, url)) => (program, Some(url.to_owned())),
        None => (place, None),
    };
    let known = if url.is_some() { BROKERS.as_slice() } else { &IN_DATABASE };
    let name = known.iter().find(|known| **known == name);
    let name =
        name.ok_or("the peers are fang and apalis, and with a URL redis, nats and rabbitmq")?;
    Ok(Peer { name, program: PathBuf::from(program), url })
}

fn main() -> ExitCode {
    // First of all: this process may only be the supervisor of a program.
    if let Some(code) = rowmq_consumer::exec::supervise(std::env::args_os()) {
        return code;
    }
    let arguments = Arguments::parse();
    service::run(|| async move {
        match arguments.command {
            Command::Run(args) => run(args).await,
            Command::Cases => list(),
            Command::Table { case, files } => {
                table::print(&mut std::io::stdout().lock(), &case, &files)
            }
            Command::Actor { task, url } => {
                let task: Task = serde_json::from_str(&task).context("The task is not readable")?;
                actor::run(task, url).await
            }
        }?;
        Ok(ExitCode::SUCCESS)
    })
}

fn list() -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["case", "from", "what it answers"]);
    for case in CATALOGUE {
        let from = if case.from == Extent::Quick { "quick" } else { "full" };
        table.add_row([case.name, from, case.about]);
    }
    for case in PEERS {
        table.add_row([case.name, "--peer", case.about]);
    }
    writeln!(std::io::stdout(), "{table}").context("Cannot write to standard output")
}

async fn run(args: RunArgs) -> anyhow::Result<()> {
    let extent = match (args.quick, args.long) {
        (true, _) => Extent::Quick,
        (_, true) => Extent::Long,
        _ => Extent::Full,
    };
    let server = arena::facts(&args.url).await?;
    let mut scale = Scale::of(extent, server.has_binlog());
    scale.rounds = args.rounds.unwrap_or(scale.rounds).max(1);
    let plan = plan(&args, &scale)?;
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("Cannot make the folder {}", args.out.display()))?;

    let cores = std::thread::available_parallelism()?.get();
    let run = Circumstances {
        at: Utc::now(),
        commit: args.commit.clone(),
        server,
        extent,
        rounds: scale.rounds,
        cores,
    };
    report::head(&mut std::io::stdout().lock(), &run)?;
    let path = args.results.clone().unwrap_or_else(|| args.out.join("results.jsonl"));
    let mut results = Results::open(path)?;
    let mut cases = Vec::new();
    let loads: usize = plan.iter().map(|case| case.members.len() * scale.rounds).sum();
    let style = "{bar:30} {pos}/{len} {elapsed_precise} {prefix}: {msg}";
    let bar = ProgressBar::new(loads as u64).with_style(ProgressStyle::with_template(style)?);
    for case in plan {
        bar.set_prefix(case.name);
        let rows = measurement::run(&args.url, case.members, scale.rounds, &bar).await?;
        let outcome = Outcome { case: case.name.to_owned(), about: case.about.to_owned(), rows };
        bar.suspend(|| report::show(&mut std::io::stdout().lock(), &outcome))?;
        results.append(&run, &outcome)?;
        cases.push(outcome);
    }
    bar.finish_and_clear();
    finish(&args.out, &results, &cases)
}

/// A case to run, with its loads.
struct Planned {
    name: &'static str,
    about: &'static str,
    members: Vec<Member>,
}

fn plan(args: &RunArgs, scale: &Scale) -> anyhow::Result<Vec<Planned>> {
    let only = &args.only;
    let known = || CATALOGUE.iter().map(|case| case.name).chain(PEERS.iter().map(|case| case.name));
    if let Some(name) = only.iter().find(|name| known().all(|known| known != **name)) {
        bail!("There is no case '{name}': 'bench cases' shows them all.");
    }
    let wanted = |name: &str, from| match only.as_slice() {
        [] => from <= scale.extent,
        only => only.iter().any(|only| only == name),
    };
    let ours = CATALOGUE.iter().filter(|case| wanted(case.name, case.from)).map(|case| Planned {
        name: case.name,
        about: case.about,
        members: (case.members)(scale),
    });
    let peers = PEERS.iter().filter(|case| wanted(case.name, Extent::Quick)).map(|case| Planned {
        name: case.name,
        about: case.about,
        members: (case.members)(scale, &args.peers),
    });
    Ok(ours.chain(peers).filter(|case| !case.members.is_empty()).collect())
}

fn finish(folder: &Path, results: &Results, cases: &[Outcome]) -> anyhow::Result<()> {
    let plots = plot::draw(folder, cases)?;
    let mut out = std::io::stdout().lock();
    let (bars, met) = report::bars(cases);
    writeln!(out, "\n{met} of {bars} bars met; everything is in {}", results.path().display())?;
    for plot in plots {
        writeln!(out, "plot: {}", plot.display())?;
    }
    Ok(())
}
