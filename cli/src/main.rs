//! The admin command line as a process.

use std::process::ExitCode;

use rowmq_service::{args, process};

fn main() -> ExitCode {
    let arguments: rowmq_cli::Arguments = args::parse_in_groups(&rowmq_cli::GROUPS);
    process::run(|| rowmq_cli::run(arguments))
}
