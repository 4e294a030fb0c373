use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rowmq_core::handler::{Context, HandlerError};
use thiserror::Error;

use super::output::Output;
use super::pool::ReplyError;
use super::process::{Ended, Stopped};

/// `EX_DATAERR` of `sysexits.h`: the input is wrong, and will be wrong again the next time.
const DATA_ERROR: i32 = 65;
/// The first number behind those of `sysexits.h`.
const DISCARD: i32 = 79;

/// "Not now": the message sleeps for the time on the last line of standard error.
const SNOOZE: i32 = 80;
/// A failure that says when to try again, on the last line of standard error.
const RETRY_AT: i32 = 81;

/// Why a run failed.
#[derive(Debug, Error)]
pub(super) enum RunError {
    #[error("the program {program} could not be started")]
    NotStarted { program: String, source: io::Error },
    #[error("it is unknown how the program {program} ended")]
    Lost { program: String, source: io::Error },
    #[error("the program ended with exit code {code}{}{}", as_signal(*code), after_colon(said))]
    Code { code: i32, said: String },
    #[error(
        "the program ended with exit code {code}, but its last line on standard error is no {wanted}{}",
        after_colon(said)
    )]
    NoTime { code: i32, wanted: &'static str, said: String },
    #[error("the program ended ({status}) before it answered{}", after_colon(said))]
    NoVerdict { status: ExitStatus, said: String },
    #[error("the program's answer cannot be used: {source}{}", after_colon(said))]
    NotUnderstood { source: ReplyError, said: String },
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

/// Applies the table of the module's documentation. `EX_TEMPFAIL` (75) needs no line of its own.
pub(super) fn verdict(
    ended: Ended,
    output: &Output,
    context: &Context,
) -> Result<(), HandlerError> {
    let said = said(output);
    match ended {
        Ended::Exited(status) => of_status(status, said, output),
        Ended::Stopped(stopped) => Err(of_stopped(stopped, said, context)),
    }
}

/// Judges a run that was ended before its program had decided.
pub(super) fn of_stopped(stopped: Stopped, said: String, context: &Context) -> HandlerError {
    match stopped {
        Stopped::TimedOut(limit) => RunError::TimedOut { limit, said }.into(),
        // The consumer's own deadline for the run cancels the context too, and is a failure.
        Stopped::Cancelled
            if context.deadline.is_some_and(|deadline| deadline <= Instant::now()) =>
        {
            RunError::DeadlinePassed { said }.into()
        }
        Stopped::Cancelled => HandlerError::Release,
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
        SNOOZE => Err(match time_said(output) {
            Some(RequestedTime::Time(time)) => HandlerError::Snooze(time),
            _ => RunError::NoTime { code, wanted: "time such as 10m", said }.into(),
        }),
        RETRY_AT => Err(match time_said(output) {
            Some(RequestedTime::Time(time)) => {
                HandlerError::RetryAfter(time, RunError::Code { code, said }.into())
            }
            Some(RequestedTime::Moment(at)) => {
                HandlerError::RetryAt(at, RunError::Code { code, said }.into())
            }
            None => {
                let wanted = "time such as 10m or 2026-11-21T10:00:00Z";
                RunError::NoTime { code, wanted, said }.into()
            }
        }),
        _ => Err(RunError::Code { code, said }.into()),
    }
}

/// A time that a program asks for on standard error.
enum RequestedTime {
    /// After this long.
    Time(Duration),
    /// At this time.
    Moment(DateTime<Utc>),
}

/// Reads the time on the last line of standard error.
fn time_said(output: &Output) -> Option<RequestedTime> {
    let text = output.stderr.text();
    let line = text.lines().next_back()?.trim();
    let moment =
        |_| DateTime::parse_from_rfc3339(line).map(|at| RequestedTime::Moment(at.to_utc())).ok();
    humantime::parse_duration(line)
        .map(|time| Some(RequestedTime::Time(time)))
        .unwrap_or_else(moment)
}

fn said(output: &Output) -> String {
    let errors = output.stderr.text();
    if errors.is_empty() { output.stdout.text() } else { errors }
}

/// Names the signal of a code 128 + n: shells and our own supervisor report a death by signal n
/// this way.
fn as_signal(code: i32) -> String {
    match code {
        129..=192 => format!(" (as after signal {})", code - 128),
        _ => String::new(),
    }
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}
