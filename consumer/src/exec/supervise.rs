use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, kill_process_group};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

/// The first argument that makes a binary a supervisor.
pub const SUBCOMMAND: &str = "exec-child";

/// The exit code when the supervisor could not do its work; shells use it for a program that they
/// cannot run.
const CANNOT_RUN: u8 = 127;

/// Runs one program for a consumer, and kills its whole process group as soon as the consumer is
/// gone, for whatever reason. The binary that
/// [`ExecOptions::supervisor`](super::ExecOptions::supervisor) names must call it first thing in
/// `main`, with `std::env::args_os()`:
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     if let Some(code) = rowmq_consumer::exec::supervise(std::env::args_os()) {
///         return code;
///     }
///     // everything else
///     ExitCode::SUCCESS
/// }
/// ```
///
/// Returns `None` unless the arguments are those of a supervisor. Do not name a binary that does
/// not call this as a supervisor: it would start itself again for every message.
///
/// Passes the program's exit code through; death by signal n becomes 128 + n.
pub fn supervise(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    Some(run(args).unwrap_or_else(|error| {
        // If standard error is gone too, the error has nowhere to go.
        drop(writeln!(io::stderr(), "{error}"));
        ExitCode::from(CANNOT_RUN)
    }))
}

fn run(mut args: impl Iterator<Item = OsString>) -> io::Result<ExitCode> {
    let usage = || {
        let text = format!("{SUBCOMMAND} is run by a consumer with an exec handler, never by hand");
        io::Error::other(text)
    };
    let parent = args.next().and_then(|text| text.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let (Some(parent), Some(program)) = (parent, args.next()) else { return Err(usage()) };
    // Otherwise killing the group would kill every process that shares it.
    if getpgrp() != getpid() {
        return Err(usage());
    }
    let mut signals = Signals::new([SIGTERM])?;
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let is_orphan = move || getppid() != Some(parent);
    std::thread::spawn(move || {
        for _ in &mut signals {
            // The consumer's own TERM is meant for the program, which has a grace to end by itself.
            // The kernel changes the parent before it sends its signal; if only the thread that
            // started us has ended, the parent is still the same.
            if is_orphan() {
                // This process included: there is no consumer left to report to.
                kill_process_group(getpid(), Signal::KILL).unwrap_or_default();
            }
        }
    });
    if is_orphan() {
        return Err(io::Error::other("the consumer has ended before the program was started"));
    }
    let mut child = Command::new(&program).args(args).spawn().map_err(|error| {
        let program = program.display();
        io::Error::other(format!("the program {program} could not be started: {error}"))
    })?;
    Ok(ExitCode::from(code_of(child.wait()?)))
}

fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_subcommand_makes_a_supervisor() {
        let is_supervisor =
            |args: &[&str]| supervise(args.iter().map(|arg| OsString::from(*arg))).is_some();
        assert!(!is_supervisor(&[]));
        assert!(!is_supervisor(&["consumer"]));
        assert!(!is_supervisor(&["consumer", "run", SUBCOMMAND]));
    }

    #[test]
    fn a_death_by_signal_is_128_and_its_number() {
        assert_eq!(code_of(ExitStatus::from_raw(9)), 137);
        assert_eq!(code_of(ExitStatus::from_raw(75 << 8)), 75);
    }
}
