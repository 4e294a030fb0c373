//! The command `producer`: sends bodies, lines or NDJSON into a topic, or what comes by HTTP.

mod relay;
mod send;
mod spill_args;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sends messages into the queue inside MySQL or MariaDB, and sends them again until each is
/// stored, exactly once.
#[derive(Debug, Parser)]
#[command(name = "producer", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Send(Box<send::Arguments>),
    Relay(Box<relay::Arguments>),
}

fn main() -> ExitCode {
    let arguments: Arguments = queue_service::args::parse();
    match arguments.command {
        Command::Send(arguments) => queue_service::process::run(|| send::run(*arguments)),
        Command::Relay(arguments) => queue_service::process::run(|| relay::run(*arguments)),
    }
}
