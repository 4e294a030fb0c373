//! One file for each command.

mod access;
mod apply;
mod audit;
mod bench;
mod cancel;
mod cron;
mod dead;
mod doctor;
mod drain;
mod enqueue;
mod erase;
pub(crate) mod export;
mod find;
mod grants;
mod group;
mod import;
mod janitor;
mod migrate;
mod peek;
mod purge;
mod relocate;
mod scheduled;
mod stats;
mod tail;
mod top;
mod topic;
mod trace;
mod workers;

use std::process::ExitCode;

use clap::Subcommand;

use crate::invocation::Invocation;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Migrate(migrate::Migrate),
    Doctor(doctor::Doctor),
    Grants(grants::Grants),
    Apply(apply::Apply),
    #[command(subcommand)]
    Topic(topic::Topic),
    Access(access::Access),
    #[command(subcommand)]
    Group(group::Group),
    Enqueue(enqueue::Enqueue),
    Peek(peek::Peek),
    Tail(tail::Tail),
    Find(find::Find),
    Trace(trace::Trace),
    Cancel(cancel::Cancel),
    Erase(erase::Erase),
    Export(export::Export),
    Import(import::Import),
    Drain(drain::Drain),
    Move(relocate::Move),
    Purge(purge::Purge),
    #[command(subcommand)]
    Dead(dead::Dead),
    #[command(subcommand)]
    Cron(cron::Cron),
    #[command(subcommand)]
    Scheduled(scheduled::Scheduled),
    Workers(workers::Workers),
    Stats(stats::Stats),
    Top(top::Top),
    Janitor(janitor::Janitor),
    Audit(audit::Audit),
    Bench(bench::Bench),
}

impl Command {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<ExitCode> {
        match self {
            Self::Migrate(command) => command.run(invocation).await?,
            Self::Doctor(command) => return command.run(invocation).await,
            Self::Grants(command) => command.run()?,
            Self::Apply(command) => command.run(invocation).await?,
            Self::Topic(command) => command.run(invocation).await?,
            Self::Access(command) => command.run(invocation).await?,
            Self::Group(command) => command.run(invocation).await?,
            Self::Enqueue(command) => command.run(invocation).await?,
            Self::Peek(command) => command.run(invocation).await?,
            Self::Tail(command) => command.run(invocation).await?,
            Self::Find(command) => command.run(invocation).await?,
            Self::Trace(command) => command.run(invocation).await?,
            Self::Cancel(command) => command.run(invocation).await?,
            Self::Erase(command) => command.run(invocation).await?,
            Self::Export(command) => command.run(invocation).await?,
            Self::Import(command) => command.run(invocation).await?,
            Self::Drain(command) => return command.run(invocation).await,
            Self::Move(command) => command.run(invocation).await?,
            Self::Purge(command) => command.run(invocation).await?,
            Self::Dead(command) => command.run(invocation).await?,
            Self::Cron(command) => command.run(invocation).await?,
            Self::Scheduled(command) => command.run(invocation).await?,
            Self::Workers(command) => command.run(invocation).await?,
            Self::Stats(command) => command.run(invocation).await?,
            Self::Top(command) => command.run(invocation).await?,
            Self::Janitor(command) => command.run(invocation).await?,
            Self::Audit(command) => command.run(invocation).await?,
            Self::Bench(command) => command.run(invocation)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
