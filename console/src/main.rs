//! The web console as a process.

use std::process::ExitCode;

fn main() -> ExitCode {
    console::main()
}
