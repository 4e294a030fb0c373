//! The command `rowmq-producer`: sends bodies, lines, NDJSON, or what comes by HTTP, into a topic.

mod encode;
mod relay;
mod send;
mod spill_args;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rowmq_service::args::{ServerArgs, ServiceArgs};
use rowmq_service::config::{self, Configured, Process};
use rowmq_service::process;
use rowmq_service::reload::{self, Reloadable};

/// Sends messages into the queue inside MySQL or MariaDB, and sends them again until each is
/// stored, exactly once.
#[derive(Debug, Parser)]
#[command(name = "rowmq-producer", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Send(Box<send::Arguments>),
    Relay(Box<relay::Arguments>),
}

/// The process as the configuration names it. What to send is given on each command line.
const PROCESS: Process = Process {
    table: "producer",
    apart: &["lines", "ndjson", "null", "stdin", "json", "skip_bad", "leave_spilled"],
};

impl Reloadable for Arguments {
    fn reloadable(&self) -> Option<(&ServerArgs, &ServiceArgs)> {
        match &self.command {
            Command::Send(_) => None,
            Command::Relay(relay) => Some(relay.reloadable()),
        }
    }
}

fn main() -> ExitCode {
    let Configured { arguments, settings } = config::parse::<Arguments>(PROCESS);
    match arguments.command {
        Command::Send(arguments) => process::run(|| send::run(*arguments, settings)),
        Command::Relay(arguments) => {
            let on_hangup = |url| reload::on_hangup::<Arguments>(PROCESS, url);
            process::run(|| relay::run(*arguments, settings, on_hangup))
        }
    }
}
