//! The command `producer`: sends bodies, lines or NDJSON into a topic.

mod send;

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
    Send(send::Arguments),
}

fn main() -> ExitCode {
    let Arguments { command: Command::Send(arguments) } = Arguments::parse();
    queue_service::process::run(|| send::run(arguments))
}
