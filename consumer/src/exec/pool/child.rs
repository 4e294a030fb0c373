use std::io;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use rowmq_core::handler::{Context, HandlerError};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use super::super::OUTPUT_GRACE;
use super::super::output::Tail;
use super::super::process::{self, Process, Stopped};
use super::super::program::Program;
use super::super::verdict::{RunError, of_stopped};
use super::reply::{LONGEST, Reply, ReplyError, ready};
use crate::line::{Line, lines};

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;

/// A message as the program gets it.
#[derive(Serialize)]
struct Frame<'a> {
    frame: u64,
    failures: u32,
    #[serde(flatten)]
    message: Line<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

/// A running program that takes one message after another. Dropping it kills its process group.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    said: Said,
    /// How many messages it has been given.
    frames: u64,
}

impl Child {
    /// Starts the program and waits until it is ready.
    pub(super) async fn start(program: &Program) -> Result<Self, RunError> {
        let mut command = program.command();
        command.stdin(Stdio::piped()).env("ROWMQ_POOL", VERSION.to_string());
        let not_started = |source| RunError::NotStarted { program: program.name(), source };
        let (process, pipes) =
            process::start(command, program.hidden.clone()).await.map_err(not_started)?;
        let stdin = pipes.stdin.ok_or_else(|| not_started(io::ErrorKind::BrokenPipe.into()))?;
        let said = Said::listen(pipes.stderr, program.output_limit);
        let stdout = BufReader::new(pipes.stdout);
        let mut child = Self { process, stdin, stdout, said, frames: 0 };
        match tokio::time::timeout(program.timeout, child.answer(&[])).await {
            Ok(Ok(line)) => match ready(&line, VERSION) {
                Ok(()) => Ok(child),
                Err(error) => Err(child.failed(error, program).await),
            },
            Ok(Err(error)) => Err(child.failed(error, program).await),
            Err(_) => Err(child.failed(ReplyError::Late(program.timeout), program).await),
        }
    }

    /// Passes the message to the program and returns its answer. After an error the program has
    /// ended.
    pub(super) async fn handle(
        &mut self,
        context: &Context,
        program: &Program,
    ) -> Result<Reply, HandlerError> {
        self.frames += 1;
        let number = self.frames;
        self.said.tail().clear();
        let frame = lines([Frame {
            frame: number,
            failures: context.delivery.failures,
            message: Line::of(context),
            traceparent: context.traceparent().map(|here| here.to_string()),
        }])?;
        let answer = tokio::select! {
            biased;
            line = self.answer(&frame) => Ok(line),
            () = context.cancelled.cancelled() => Err(Stopped::Cancelled),
            () = tokio::time::sleep(program.timeout) => Err(Stopped::TimedOut(program.timeout)),
        };
        match answer {
            Ok(line) => match line.and_then(|line| Reply::read(&line, number)) {
                Ok(reply) => Ok(reply),
                Err(error) => Err(self.failed(error, program).await.into()),
            },
            Err(stopped) => {
                self.process.end(program.kill_grace).await?;
                Err(of_stopped(stopped, self.said.last().await, context))
            }
        }
    }

    /// Whether it has ended while it was idle.
    pub(super) fn has_ended(&mut self) -> bool {
        self.process.exit().now_or_never().is_some()
    }

    /// Lets the program end by itself, and kills what is left after the grace.
    pub(super) async fn retire(self, grace: Duration) {
        let Self { mut process, stdin, .. } = self;
        drop(stdin);
        // Dropping the process kills it.
        tokio::time::timeout(grace, process.exit()).await.ok();
    }

    /// Writes a frame while it reads the next line, so that neither side waits for the other.
    async fn answer(&mut self, frame: &[u8]) -> Result<Vec<u8>, ReplyError> {
        let write = async {
            // A failed write needs no error: the read shows whether the program has ended.
            self.stdin.write_all(frame).await.unwrap_or_default();
            Ok(())
        };
        let read = async {
            let mut line = Vec::new();
            (&mut self.stdout).take(LONGEST).read_until(b'\n', &mut line).await.unwrap_or_default();
            match line.pop() {
                Some(b'\n') => Ok(line),
                Some(_) if u64::try_from(line.len() + 1) == Ok(LONGEST) => Err(ReplyError::TooLong),
                _ => Err(ReplyError::Ended),
            }
        };
        let (line, ()) = tokio::try_join!(read, write)?;
        Ok(line)
    }

    /// Ends a program that has not answered as it should.
    async fn failed(&mut self, error: ReplyError, program: &Program) -> RunError {
        let mut ended = None;
        if matches!(error, ReplyError::Ended) {
            ended = tokio::time::timeout(program.kill_grace, self.process.exit()).await.ok();
        }
        let status = match ended {
            Some(status) => status,
            None => self.process.end(program.kill_grace).await,
        };
        let said = self.said.last().await;
        match (error, status) {
            (_, Err(source)) => RunError::Lost { program: program.name(), source },
            (ReplyError::Ended, Ok(status)) => RunError::NoVerdict { status, said },
            (source, Ok(_)) => RunError::NotUnderstood { source, said },
        }
    }
}

/// What was read of the program's standard error since its message came.
#[derive(Debug)]
struct Said {
    tail: Arc<Mutex<Tail>>,
    listener: JoinHandle<()>,
}

impl Said {
    /// Passes each line on to the log.
    fn listen(stderr: impl AsyncRead + Unpin + Send + 'static, limit: usize) -> Self {
        let tail = Arc::new(Mutex::new(Tail::new(limit)));
        let kept = Arc::clone(&tail);
        let listener = tokio::spawn(async move {
            let mut stderr = BufReader::new(stderr);
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = (&mut stderr).take(LONGEST).read_until(b'\n', &mut line).await;
                if !matches!(read, Ok(1..)) {
                    return;
                }
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(&line);
                tracing::info!("{}", String::from_utf8_lossy(&line).trim_end());
            }
        });
        Self { tail, listener }
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end of it, once the program has ended.
    async fn last(&mut self) -> String {
        // Past the grace a process that left the group holds the pipe; nothing waits for it.
        drop(tokio::time::timeout(OUTPUT_GRACE, &mut self.listener).await);
        self.tail().text()
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        // A process that left the group may hold the pipe open.
        self.listener.abort();
    }
}
