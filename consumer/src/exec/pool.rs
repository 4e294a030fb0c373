//! Programs that take one message after another, by a protocol of lines.

mod child;
mod reply;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rowmq_core::handler::{Context, HandlerError, RawHandler};
use tokio_util::task::TaskTracker;

use self::child::Child;
pub(super) use self::reply::ReplyError;
use super::program::Program;
use super::{ExecError, ExecOptions};

/// How long a message waits, and then is given back, when no program could be started for it: long
/// enough that a program that never starts does not keep a core busy.
const PAUSE: Duration = Duration::from_secs(5);

/// Passes messages to a pool of programs, each of which takes one after another; there are as many
/// as messages are handled at once. A program is started when a message finds none idle. A clone
/// is the same pool, so that several topics can share it.
///
/// # Protocol, version 1
///
/// A frame is a line of JSON, in UTF-8, with a newline at its end and none within it. The program
/// finds the version in its environment as `ROWMQ_POOL`, and confirms it on its standard output as
/// soon as it is ready:
///
/// ```json
/// {"rowmq_pool":1}
/// ```
///
/// Then it reads a message from its standard input, handles it and answers, and reads the next:
///
/// ```json
/// {"frame":1,"msg_id":"019…","topic":"mail","delivery_no":1,"failures":0,…,"body":"{\"to\":1}"}
/// {"frame":1,"verdict":"ack"}
/// ```
///
/// | field of a message | what it holds |
/// |---|---|
/// | `frame` | the number of this frame, to be repeated in the answer |
/// | `topic`, `msg_id`, `delivery_no`, `failures`, `enqueued_at` | the message |
/// | `body`; `key` and `biz_id`, if any | text; bytes that are not are in `body_base64` and so on |
/// | `headers` | an object of strings, if there are any |
/// | `traceparent` | this run in the trace of its message, if it is part of one |
///
/// | field of an answer | what it says |
/// |---|---|
/// | `frame` | the number of the message |
/// | `verdict` | `ack`, `retry`, `snooze`, `dead-letter`, `discard` or `release` |
/// | `reason` | why, for all but `ack`; optional |
/// | `delay` | for `snooze`, and optional for `retry`: a number of seconds, or text, `"10m"` |
/// | `at` | for `retry`, in place of a delay: the moment, `"2026-12-24T18:00:00Z"` |
/// | `last` | `true`: the program takes no other message and ends |
///
/// An answer has no other fields, and at most 64 KiB. Fields may be added to messages; ignore those
/// that you do not know.
///
/// # How a program ends
///
/// At the end of its standard input it should end by itself; what is left of its process group
/// after [`ExecOptions::kill_grace`] is killed. So is the group of a program that has answered
/// something else than a verdict on its message, or that handles a message when its time is up: the
/// next message gets a new program. A program that ends without an answer has failed its message,
/// whatever its exit code. One that cannot be started, or is not ready within
/// [`ExecOptions::timeout`], is the fault of no message: the message is given back after 5 s, or
/// half of the time that it has.
///
/// What it writes on standard error goes to the consumer's log line by line; the end of what was
/// read of it during a message is part of the error text.
#[derive(Debug, Clone)]
pub struct PoolHandler {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    program: Program,
    /// The last one that became idle comes first: its memory is warm.
    idle: Mutex<Vec<Child>>,
    /// Those that have said that they take no other message.
    retiring: TaskTracker,
}

impl PoolHandler {
    /// Finds the program, and reads from this process's environment what is passed on. Starts no
    /// program yet.
    ///
    /// # Errors
    /// [`ExecError`] if the program cannot be run.
    pub fn new(options: ExecOptions) -> Result<Self, ExecError> {
        let program = Program::new(options)?;
        let pool = Pool { program, idle: Mutex::default(), retiring: TaskTracker::new() };
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Lets the idle programs end by themselves, and kills what is left after the grace. Call it
    /// when the consumer has ended; a pool that is dropped kills them at once.
    pub async fn close(&self) {
        for child in std::mem::take(&mut *self.pool.idle()) {
            self.pool.retiring.spawn(child.retire(self.pool.program.kill_grace));
        }
        self.pool.retiring.close();
        self.pool.retiring.wait().await;
    }
}

impl RawHandler for PoolHandler {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let program = &self.pool.program;
        // A message that no program has seen has not failed, so its time must not end here.
        let patience = context.deadline.map(|end| (end - Instant::now()) / 2);
        let mut child = tokio::select! {
            biased;
            () = context.cancelled.cancelled() => return Err(HandlerError::Release),
            child = self.pool.child() => child.ok_or(HandlerError::Release)?,
            () = sleep(patience) => return Err(HandlerError::Release),
        };
        let reply = child.handle(context, program).await?;
        if reply.is_last {
            self.pool.retiring.spawn(child.retire(program.kill_grace));
        } else {
            self.pool.idle().push(child);
        }
        reply.verdict
    }
}

/// Sleeps, or never ends.
async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

impl Pool {
    /// Returns an idle program or a new one; `None`, after a pause, if there is none to be had.
    async fn child(&self) -> Option<Child> {
        while let Some(mut child) = self.take() {
            if !child.has_ended() {
                return Some(child);
            }
        }
        match Child::start(&self.program).await {
            Ok(child) => Some(child),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "No program of the pool is ready; its message is given back."
                );
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    fn take(&self) -> Option<Child> {
        self.idle().pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Child>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
