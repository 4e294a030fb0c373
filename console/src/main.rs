//! The web console as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    queue_console::main()
}
