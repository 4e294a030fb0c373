//! The consumer as a process: runs a program (`rowmq-consumer exec`) or calls a URL
//! (`rowmq-consumer webhook`) for every message of a topic.

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
