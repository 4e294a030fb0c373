//! All processes of a load together.

use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use rowmq_core::connection::ServerUrl;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::{Count, Task, now};
use crate::figure;

/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the counts are checked.
const LOOK: Duration = Duration::from_millis(10);

/// Seconds between the points of a curve.
const POINT: f64 = 0.1;

/// The processes of a load.
#[derive(Debug)]
pub(crate) struct Company {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    child: Child,
    stdin: ChildStdin,
    count: Arc<Mutex<Count>>,
    reader: tokio::task::JoinHandle<()>,
}

impl Company {
    /// Starts a process for each task.
    pub(crate) async fn muster(
        url: &ServerUrl,
        tasks: impl Iterator<Item = Task>,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("Cannot find this program again")?;
        let mut members = Vec::new();
        for task in tasks {
            let mut child = Command::new(&program)
                .arg("actor")
                .arg(serde_json::to_string(&task)?)
                .env("ROWMQ_URL", url.expose())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .context("Cannot start a process")?;
            let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
                bail!("A process has no pipes");
            };
            let count = Arc::new(Mutex::new(Count::default()));
            let reader = tokio::spawn(read(stdout, Arc::clone(&count)));
            members.push(Member { child, stdin, count, reader });
        }
        Ok(Self { members })
    }

    /// Returns the sum of all counts so far.
    pub(crate) fn count(&self) -> Count {
        self.members.iter().fold(Count::default(), |sum, member| {
            sum.add(&member.count.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }

    /// Waits until `messages` are settled, or for `limit`; returns the curve of messages settled
    /// over seconds.
    pub(crate) async fn until(
        &self,
        messages: u64,
        limit: Duration,
    ) -> anyhow::Result<(Count, Vec<(f64, f64)>)> {
        let start = Instant::now();
        let end = start + limit;
        let mut curve = vec![(0.0, 0.0)];
        loop {
            let count = self.count();
            let seconds = start.elapsed().as_secs_f64();
            if curve
                .last()
                .is_none_or(|last| seconds - last.0 >= POINT || count.settled == messages)
            {
                curve.push((seconds, figure::count(count.settled)));
            }
            if count.settled > messages {
                bail!("{} messages were settled, of {messages}", count.settled);
            }
            if count.settled == messages || Instant::now() >= end {
                return Ok((count, curve));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Returns the processes' ids.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.members.iter().filter_map(|member| member.child.id()).collect()
    }

    /// Kills all processes; returns when.
    pub(crate) async fn kill(mut self) -> anyhow::Result<u64> {
        let at = now();
        for member in &mut self.members {
            member.child.kill().await.context("Cannot kill a process")?;
        }
        Ok(at)
    }

    /// Stops all processes, waits until they have ended, and returns their counts.
    pub(crate) async fn dismiss(self) -> anyhow::Result<Count> {
        let mut sum = Count::default();
        for member in self.members {
            let Member { mut child, stdin, count, reader } = member;
            drop(stdin);
            let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
            let status = ended.context("A process did not end in time")??;
            if !status.success() {
                bail!("A process of the load failed: {status}");
            }
            reader.await?;
            sum = sum.add(&count.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(sum)
    }
}

async fn read(stdout: ChildStdout, count: Arc<Mutex<Count>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(said) = serde_json::from_str(&line) {
            *count.lock().unwrap_or_else(PoisonError::into_inner) = said;
        }
    }
}
