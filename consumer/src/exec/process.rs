use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use super::hidden::hide;

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ended {
    /// The program ended by itself.
    Exited(ExitStatus),
    /// The program was ended.
    Stopped(Stopped),
}

/// Why a run was ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stopped {
    /// It took longer than this.
    TimedOut(Duration),
    /// The context was cancelled.
    Cancelled,
}

/// The streams of a program.
#[derive(Debug)]
pub(super) struct Pipes {
    /// What it reads, if that is a pipe.
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running program, the leader of a process group. Dropping it early kills the group.
#[derive(Debug)]
pub(super) struct Process {
    group: Arc<Group>,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

impl Process {
    /// Sends TERM to the whole group.
    fn terminate(&self) {
        self.group.signal(Signal::TERM);
    }

    /// Sends KILL to the whole group.
    fn kill(&self) {
        self.group.signal(Signal::KILL);
    }

    /// Sends TERM to the whole group, and KILL after the grace; returns once it has ended.
    pub(super) async fn end(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.terminate();
        if let Ok(status) = tokio::time::timeout(grace, self.exit()).await {
            return status;
        }
        self.kill();
        self.exit().await
    }

    /// Waits until the leader and the rest of its group have ended. May be dropped and called again
    /// until it has returned.
    pub(super) async fn exit(&mut self) -> io::Result<ExitStatus> {
        let lost = || io::Error::other("the thread that waits for the program has ended");
        (&mut self.exit).await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process group, until its leader is reaped. Until then the kernel cannot give its number to
/// another process, so a signal cannot hit the wrong one.
#[derive(Debug)]
struct Group {
    id: Pid,
    reaped: Mutex<bool>,
}

impl Group {
    fn of(leader: &Child) -> io::Result<Self> {
        let id = i32::try_from(leader.id()).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("the program's process id is none"))?;
        Ok(Self { id, reaped: Mutex::new(false) })
    }

    fn signal(&self, signal: Signal) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            // It fails only when no process is left, which is the goal.
            kill_process_group(self.id, signal).unwrap_or_default();
        }
    }

    /// Kills what the leader left behind, then reaps the leader.
    fn reap(&self, leader: &mut Child) -> io::Result<ExitStatus> {
        let mut reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        kill_process_group(self.id, Signal::KILL).unwrap_or_default();
        *reaped = true;
        leader.wait()
    }
}

/// Starts a program as the leader of its own group. It cannot read `hidden`.
///
/// Each program has its own thread that starts it and waits for it: a parent-death signal comes
/// when the *thread* that started a process ends, and a thread of a runtime's pool may end long
/// before the program does.
pub(super) async fn start(command: Command, hidden: Vec<PathBuf>) -> io::Result<(Process, Pipes)> {
    let (sender, started) = oneshot::channel();
    std::thread::Builder::new()
        .name("rowmq-exec".to_owned())
        .spawn(move || run(command, &hidden, sender))?;
    let lost = |_| io::Error::other("the thread that starts the program has ended");
    let (process, streams) = started.await.map_err(lost)??;
    let (stdin, Some(stdout), Some(stderr)) = streams else {
        return Err(io::Error::other("the program's standard streams are missing"));
    };
    let pipes = Pipes {
        stdin: stdin.map(ChildStdin::from_std).transpose()?,
        stdout: ChildStdout::from_std(stdout)?,
        stderr: ChildStderr::from_std(stderr)?,
    };
    Ok((process, pipes))
}

type Streams = (
    Option<std::process::ChildStdin>,
    Option<std::process::ChildStdout>,
    Option<std::process::ChildStderr>,
);

/// Runs a program to its end, on the thread that is its parent.
fn run(
    mut command: Command,
    hidden: &[PathBuf],
    started: oneshot::Sender<io::Result<(Process, Streams)>>,
) {
    // Restricts this thread, and with it the program.
    let spawned = hide(hidden).and_then(|()| command.spawn());
    // It holds copies of the environment and the arguments.
    drop(command);
    let (sender, exit) = oneshot::channel();
    let spawned = spawned.and_then(|child| Ok((Group::of(&child)?, child)));
    let (group, mut child) = match spawned {
        Ok((group, child)) => (Arc::new(group), child),
        Err(error) => return drop(started.send(Err(error))),
    };
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let process = Process { group: Arc::clone(&group), exit };
    // If the receiver is gone, the process is dropped here, which kills the group.
    drop(started.send(Ok((process, streams))));
    wait_for_end(group.id);
    drop(sender.send(group.reap(&mut child)));
}

/// Waits for the leader's end without reaping it.
fn wait_for_end(leader: Pid) {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    // Every other error means that there is nothing to wait for; reaping will report what is wrong.
    while waitid(WaitId::Pid(leader), options).is_err_and(|error| error == Errno::INTR) {}
}
