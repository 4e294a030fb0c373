//! The admin command line of the queue: one file for each command under `commands/`. Each is thin;
//! the work is done in `queue-core`.

mod author;
mod body;
mod commands;
mod confirmation;
mod export_position;
mod invocation;
mod output;
mod packet;
mod progress;
mod record;
mod units;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser;
use rowmq_service::args::ServerArgs;

use crate::commands::Command;
use crate::invocation::Invocation;
use crate::output::Output;

/// The message queue inside MySQL and MariaDB: its schema, its topics, and what is in them.
#[derive(Debug, Parser)]
#[command(
    name = "rowmq",
    version,
    after_help = "The server is named by ROWMQ_URL=mysql://user:password@host:3306/database or by --url-file."
)]
pub struct Arguments {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON, for scripts.
    #[arg(long, global = true, help_heading = "Output")]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

/// Runs one command.
///
/// # Errors
/// One sentence for the user.
pub async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let output = Output::new(arguments.json);
    let invocation = Invocation::new(arguments.server, output);
    match arguments.command.run(&invocation).await {
        Err(error) if reader_is_gone(&error) => Ok(ExitCode::SUCCESS),
        ended => ended,
    }
}

/// `rowmq … | head` has read enough; that is no failure.
fn reader_is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}
