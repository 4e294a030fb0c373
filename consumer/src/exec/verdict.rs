use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use queue_core::handler::{Context, HandlerError};
use thiserror::Error;

use super::output::Output;
use super::process::Ended;

/// `EX_DATAERR` of `sysexits.h`: the input is wrong, and will be the next time.
const DATA_ERROR: i32 = 65;
/// The first number behind those of `sysexits.h`.
const DISCARD: i32 = 79;

/// Why a run failed.
#[derive(Debug, Error)]
pub(super) enum RunError {
    #[error("the program {program} could not be started")]
    NotStarted { program: String, source: io::Error },
    #[error("nobody can say how the program {program} ended")]
    Lost { program: String, source: io::Error },
    #[error("the program ended with exit code {code}{}{}", as_signal(*code), after_colon(said))]
    Code { code: i32, said: String },
    #[error("the program was ended by signal {signal}{}", after_colon(said))]
    Signal { signal: i32, said: String },
    #[error("the program ran longer than {} ms and was ended{}", limit.as_millis(), after_colon(said))]
    TimedOut { limit: Duration, said: String },
    #[error(
        "the program was still running when the message's time was up, and was ended{}",
        after_colon(said)
    )]
    DeadlinePassed { said: String },
}

/// The table of the module's documentation. `EX_TEMPFAIL` (75) needs no line of its own.
pub(super) fn verdict(
    ended: Ended,
    output: &Output,
    context: &Context,
) -> Result<(), HandlerError> {
    let said = said(output);
    match ended {
        Ended::Exited(status) => of_status(status, said, output),
        Ended::TimedOut(limit) => Err(RunError::TimedOut { limit, said }.into()),
        // The consumer's own deadline for the run cancels the context too, and is a failure.
        Ended::Cancelled if context.deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
            Err(RunError::DeadlinePassed { said }.into())
        }
        Ended::Cancelled => Err(HandlerError::Release),
    }
}

fn of_status(status: ExitStatus, said: String, output: &Output) -> Result<(), HandlerError> {
    let Some(code) = status.code() else {
        let signal = status.signal().unwrap_or_default();
        return Err(RunError::Signal { signal, said }.into());
    };
    match code {
        0 => Ok(()),
        DATA_ERROR => Err(HandlerError::dead(RunError::Code { code, said })),
        DISCARD => {
            let text = output.stderr.text();
            let reason = text.lines().next_back().unwrap_or("the program gave no reason");
            Err(HandlerError::discard(reason.trim()))
        }
        _ => Err(RunError::Code { code, said }.into()),
    }
}

fn said(output: &Output) -> String {
    let errors = output.stderr.text();
    if errors.is_empty() { output.stdout.text() } else { errors }
}

/// Shells and our own supervisor report a death by signal n as code 128 + n.
fn as_signal(code: i32) -> String {
    match code {
        129..=192 => format!(" (as after signal {})", code - 128),
        _ => String::new(),
    }
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}
