//! How a process runs and ends: one runtime, and on failure one line that says what to do.

use std::future::Future;
use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context;
use rowmq_core::{Error, Fault};

/// How long spawned tasks have to be dropped at the end. A thread that reads standard input cannot
/// be stopped, and must not hold the process.
const LEAVE: Duration = Duration::from_secs(1);

/// Runs a process's main future on a multi-thread runtime. An error becomes one line on standard
/// error, `name: sentence`, and exit code 1.
pub fn run<F: Future<Output = anyhow::Result<ExitCode>>>(main: impl FnOnce() -> F) -> ExitCode {
    keep_memory_private();
    crate::tls::choose_provider();
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("Cannot start threads")
        .and_then(|runtime| {
            let ended = runtime.block_on(async { main().await });
            runtime.shutdown_timeout(LEAVE);
            ended
        });
    crate::logging::stop();
    match ended {
        Ok(code) => code,
        Err(error) => {
            complain(&sentence(&error));
            ExitCode::FAILURE
        }
    }
}

/// Keeps other processes of the same user from reading this one's memory and environment, which
/// hold the password, and keeps both out of core dumps.
fn keep_memory_private() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // The kernel refuses only unknown values.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap_or_default();
    }
}

/// Writes one line to standard error: `name: sentence`.
pub(crate) fn complain(sentence: &str) {
    // If standard error is closed, the line has nowhere to go.
    drop(writeln!(std::io::stderr(), "{}: {sentence}", name()));
}

/// Returns the program's name: the one that it was called by, which packages may have changed.
#[must_use]
pub fn name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let path = std::env::args_os().next().unwrap_or_default();
        let name = std::path::Path::new(&path).file_name().unwrap_or(&path);
        name.to_string_lossy().into_owned()
    });
    &NAME
}

/// Returns the error and its causes in one line, and what to do about it if the error itself does
/// not say.
#[must_use]
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Some libraries repeat the cause in their own text.
        if text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(cause.trim_end());
    }
    if let Some(fix) = error.chain().find_map(|cause| cause.downcast_ref::<Error>()).and_then(fix) {
        text = format!("{}; {fix}", text.trim_end_matches('.'));
    }
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns what to do about a failed statement: the server's own text does not say.
fn fix(error: &Error) -> Option<&'static str> {
    let Error::Database { fault, .. } = error else { return None };
    Some(match fault {
        Fault::Schema => "the queue's tables are missing or too old there: run `rowmq migrate`.",
        Fault::ReadOnly => {
            "connect to the writer (is this a replica?) or SET GLOBAL read_only = OFF."
        }
        Fault::Denied => {
            "grant the account what it needs on the database: SELECT, INSERT, UPDATE, DELETE, EXECUTE, and CREATE, ALTER, CREATE ROUTINE to migrate."
        }
        Fault::Gone => "check that the server runs, and run this again.",
        Fault::Busy => "the server has no connection left: raise max_connections.",
        Fault::Full => "the server has no space left: make room on its disk.",
        Fault::TooLarge => "raise max_allowed_packet on the server.",
        Fault::Deadlock | Fault::LockWait | Fault::Interrupted => {
            "others were at the same rows: run this again."
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(fault: Fault, message: &str) -> anyhow::Error {
        Error::Database { operation: "list the topics", fault, message: message.to_owned() }.into()
    }

    #[test]
    fn a_missing_table_says_to_migrate() {
        let error = failed(Fault::Schema, "Table 'q.queue_topic' doesn't exist");
        assert_eq!(
            sentence(&error),
            "list the topics failed: Table 'q.queue_topic' doesn't exist; the queue's tables are \
             missing or too old there: run `rowmq migrate`."
        );
        assert!(sentence(&error.context("Cannot start")).ends_with("run `rowmq migrate`."));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_keeps_its_memory_and_environment_to_itself() {
        use rustix::process::{DumpableBehavior, dumpable_behavior};
        let code = run(|| async {
            assert_eq!(dumpable_behavior()?, DumpableBehavior::NotDumpable);
            Ok(ExitCode::SUCCESS)
        });
        assert_eq!(code, ExitCode::SUCCESS);
    }

    #[test]
    fn an_error_is_one_line_and_says_each_cause_once() {
        let error = anyhow::anyhow!("inner\n  text").context("outer: inner\n  text").context("top");
        assert_eq!(sentence(&error), "top: outer: inner text");
    }

    #[test]
    fn an_error_that_names_its_own_fix_is_left_alone() {
        let error = Error::InvalidPriority { level: 10 };
        assert_eq!(
            sentence(&error.into()),
            "Priority 10 does not exist: use 0 (first) to 9 (last)."
        );
    }
}
