//! Runs programs for messages, for users who write no Rust.
//!
//! [`PoolHandler`] keeps programs that take one message after another. [`ExecHandler`] starts a
//! program for each message: the body is its standard input, the message's facts are in its
//! environment, and its exit code decides.
//!
//! | exit code | what becomes of the message |
//! |---|---|
//! | 0 | acked |
//! | 65 (`EX_DATAERR`) | dead-lettered at once: trying again cannot help |
//! | 75 (`EX_TEMPFAIL`) | retried after the topic's backoff |
//! | 79 | discarded: acked without being handled; the reason is the last line on standard error |
//! | 80 | snoozed for the time on the last line on standard error, `10m`; nothing is charged |
//! | 81 | retried at the time on that line: `2026-11-21T10:00:00Z`, or `10m` from now |
//! | any other, or a signal | retried after the topic's backoff |
//!
//! 65 and 75 are those of `sysexits.h`; 79 is the first number behind its range. 80 and 81 without
//! a readable time are failures like any other. The error kept with the message contains the end of
//! the program's standard error, or of its standard output if it wrote no errors.
//!
//! | environment variable | what it holds |
//! |---|---|
//! | `ROWMQ_TOPIC` | the topic's name |
//! | `ROWMQ_MSG_ID` | the message id, the same for every delivery |
//! | `ROWMQ_DELIVERY_NO` | rises with every delivery; with the message id, the token to pass on |
//! | `ROWMQ_FAILURES` | failed handlings so far |
//! | `ROWMQ_KEY` | the ordering key, if there is one and it has no zero byte |
//! | `ROWMQ_BIZ_ID` | the business idempotency key, if there is one and it has no zero byte |
//! | `ROWMQ_HEADERS` | the headers as a JSON object of strings |
//!
//! Besides these, the program sees only what [`Environment`] passes on: never the consumer's own
//! `ROWMQ_URL` with its password, unless its name is listed there. No shell is involved, and no
//! part of a message ever becomes an argument. The working directory is the consumer's.
//!
//! # How a run ends
//!
//! The program leads its own process group. When it ends, the rest of its group is killed: once a
//! message is settled, no process of its run is left. When its time is up or the consumer stops at
//! once, the whole group gets TERM and, after a grace, KILL; the exit code is then ignored, because
//! many programs exit with 0 on TERM. A program that moves its children into other groups or
//! sessions must end them itself.
//!
//! # When the consumer is killed
//!
//! A consumer killed with `kill -9` ends nothing, and a child that outlives it would overlap the
//! next run of its message. With [`ExecOptions::supervisor`] a small process stands between them:
//! the kernel notifies it of its parent's death (Linux only), and it kills the group. The
//! `rowmq-consumer` binary is its own supervisor; see [`supervise()`] for other binaries.

mod body;
mod environment;
mod hidden;
mod output;
mod pool;
mod process;
mod program;
mod supervise;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use futures_util::future::{Either, select};
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use thiserror::Error;

pub use self::environment::Environment;
use self::output::{Output, listen};
pub use self::pool::PoolHandler;
use self::process::{Ended, Process, Stopped};
use self::program::Program;
pub use self::supervise::{SUBCOMMAND, supervise};
use self::verdict::{RunError, verdict};

/// How long output is still read after the program has ended. By then everything it wrote is in the
/// pipe. Only a process that left the group can hold the pipe open; the consumer does not wait for
/// it.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// How a program is run.
#[derive(Debug, Clone)]
pub struct ExecOptions {
    /// The program and its arguments. A name without a slash is looked up once, on the consumer's
    /// `PATH`; a relative path is taken from the consumer's working directory.
    pub argv: Vec<OsString>,
    /// The longest run of one message. Default 60 s.
    pub timeout: Duration,
    /// What the program sees of the consumer's environment. Default: `PATH`, `LANG` and `HOME`.
    pub environment: Environment,
    /// How many bytes of the end of each output are kept for the error text. Default 2 KiB: a stack
    /// trace's last lines, well below what the error column holds.
    pub output_limit: usize,
    /// Time between TERM and KILL. Default 2 s.
    pub kill_grace: Duration,
    /// The binary that calls [`supervise()`] first thing in its `main`, so that no child outlives a
    /// killed consumer. `/proc/self/exe` is the running binary. Default none: the program is run
    /// directly.
    pub supervisor: Option<PathBuf>,
    /// Files and directories that this process may read but the program and its children may not,
    /// such as the file with the server's password. Default none. Needs Landlock (Linux 5.13);
    /// without it a warning is logged. The program then cannot gain privileges through set-user-id
    /// files. Nor can it read files that are created after its start next to a hidden one or in a
    /// directory above it.
    pub hidden: Vec<PathBuf>,
}

impl ExecOptions {
    /// Runs `argv`, with default options.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            timeout: Duration::from_secs(60),
            environment: Environment::default(),
            output_limit: 2048,
            kill_grace: Duration::from_secs(2),
            supervisor: None,
            hidden: Vec::new(),
        }
    }
}

/// Why a program cannot be a handler.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExecError {
    /// No program was named.
    #[error("no program is named; give the program and its arguments")]
    NoProgram,
    /// There is no such file.
    #[error(
        "the program {} does not exist; check its name and the PATH of the consumer",
        program.display()
    )]
    NotFound {
        /// The name as it was given.
        program: PathBuf,
    },
    /// The file is a directory, or lacks the permission.
    #[error(
        "the program {} is no executable file; check its permissions (chmod +x)",
        program.display()
    )]
    NotExecutable {
        /// The file.
        program: PathBuf,
    },
    /// An argument or variable that cannot be passed to a process.
    #[error(
        "{what} {} cannot be passed to a program; remove its zero byte or equals sign",
        text.display()
    )]
    Unsayable {
        /// Whether it is an argument or a variable.
        what: &'static str,
        /// The argument, or the variable's name.
        text: OsString,
    },
}

/// Runs a program for each message; see the [module](self) for the exit codes.
#[derive(Debug)]
pub struct ExecHandler {
    program: Program,
}

impl ExecHandler {
    /// Finds the program, and reads from this process's environment what is passed on.
    ///
    /// # Errors
    /// [`ExecError`] if the program cannot be run.
    pub fn new(options: ExecOptions) -> Result<Self, ExecError> {
        Ok(Self { program: Program::new(options)? })
    }

    fn command(&self, context: &Context) -> std::io::Result<Command> {
        let mut command = self.program.command();
        command
            .envs(environment::message_variables(context))
            .stdin(body::standard_input(&context.delivery.body)?);
        Ok(command)
    }

    /// Waits for the program to end, and ends it when it times out or is cancelled.
    async fn wait(&self, process: &mut Process, context: &Context) -> std::io::Result<Ended> {
        let limit = self.program.timeout;
        let stopped = tokio::select! {
            biased;
            status = process.exit() => return Ok(Ended::Exited(status?)),
            () = context.cancelled.cancelled() => Stopped::Cancelled,
            () = tokio::time::sleep(limit) => Stopped::TimedOut(limit),
        };
        process.end(self.program.kill_grace).await?;
        Ok(Ended::Stopped(stopped))
    }
}

impl RawHandler for ExecHandler {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let program = || self.program.name();
        let not_started = |source| RunError::NotStarted { program: program(), source };
        let command = self.command(context).map_err(not_started)?;
        let (mut process, pipes) =
            process::start(command, self.program.hidden.clone()).await.map_err(not_started)?;
        let mut output = Output::new(self.program.output_limit);
        let ended = {
            let waiting = std::pin::pin!(self.wait(&mut process, context));
            let listening = std::pin::pin!(listen(pipes, &mut output));
            match select(waiting, listening).await {
                Either::Right(((), waiting)) => waiting.await,
                Either::Left((ended, listening)) => {
                    // Past the grace the pipes are dropped; there is nothing else to do.
                    drop(tokio::time::timeout(OUTPUT_GRACE, listening).await);
                    ended
                }
            }
        };
        let ended = ended.map_err(|source| RunError::Lost { program: program(), source })?;
        verdict(ended, &output, context)
    }
}
