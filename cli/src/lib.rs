//! The admin command line of the queue: one file for each command under `commands/`. The commands
//! are thin: `queue-core` does the work.

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
use rowmq_service::command_group::CommandGroup;

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

/// The commands in groups, as `rowmq --help` lists them.
pub const GROUPS: [CommandGroup; 5] = [
    CommandGroup {
        heading: "Set up",
        commands: &["migrate", "doctor", "grants", "apply", "bench", "completions"],
    },
    CommandGroup { heading: "Topics", commands: &["topic", "group", "cron", "access"] },
    CommandGroup {
        heading: "Messages",
        commands: &[
            "enqueue",
            "peek",
            "tail",
            "find",
            "trace",
            "cancel",
            "erase",
            "scheduled",
            "dead",
        ],
    },
    CommandGroup {
        heading: "Many messages",
        commands: &["drain", "move", "purge", "export", "import"],
    },
    CommandGroup { heading: "Watch", commands: &["stats", "top", "workers", "janitor", "audit"] },
];

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

/// Whether the reader has closed its end, as `head` does in `rowmq … | head`: that is no failure.
fn reader_is_gone(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let program = Arguments::command();
        let mut commands: BTreeSet<_> =
            program.get_subcommands().map(clap::Command::get_name).collect();
        // Every program has this command.
        commands.insert("completions");
        let listed: Vec<_> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        assert_eq!(listed.len(), commands.len(), "{listed:?}");
        assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), commands);
    }
}
