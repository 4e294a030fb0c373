//! The web console as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    rowmq_console::main()
}
