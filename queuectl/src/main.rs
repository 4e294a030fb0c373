//! The admin command line as a process.

use std::process::ExitCode;

use queue_service::{args, process};

fn main() -> ExitCode {
    let arguments: queuectl::Arguments = args::parse();
    process::run(|| queuectl::run(arguments))
}
