//! The consumer as a process: passes every message to one of a pool of programs (`rowmq-consumer
//! pool`), to a program of its own (`exec`) or to a URL (`webhook`).

mod command;

use std::process::ExitCode;

use rowmq_service::{config, process};

fn main() -> ExitCode {
    // First of all, before any thread: this process may only be the supervisor of a program.
    if let Some(code) = rowmq_consumer::exec::supervise(std::env::args_os()) {
        return code;
    }
    let configured = config::parse(command::PROCESS);
    process::run(|| command::run(configured))
}
