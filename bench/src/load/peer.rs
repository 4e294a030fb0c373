//! Another queue, under the load of its own program: a package beside this one, with a separate
//! lock file.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::arena::Arena;
use crate::figure::{Figure, Name, Sample, count};

/// Another queue.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its program.
    #[serde(skip)]
    pub(crate) program: PathBuf,
    /// Where it is, if it is not on the server of the loads.
    #[serde(skip)]
    pub(crate) url: Option<String>,
}

/// Another queue's backlog, drained by its own program.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeerDrain {
    /// The queue.
    pub(crate) peer: Peer,
    /// Messages before the start.
    pub(crate) backlog: u64,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// Worker processes or pools.
    pub(crate) consumers: usize,
    /// Whether handled messages are deleted, where the peer would keep them.
    pub(crate) delete: bool,
    /// Messages still undrained after this time do not count.
    #[serde(serialize_with = "super::seconds")]
    pub(crate) limit: Duration,
}

/// Another queue's producers, in its own program.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PeerEnqueue {
    /// The queue.
    pub(crate) peer: Peer,
    /// How many send at once.
    pub(crate) producers: usize,
    /// Messages that each sends before it waits until they are stored.
    pub(crate) batch: usize,
    /// Bytes of a body.
    pub(crate) body: usize,
    /// How long they send.
    #[serde(serialize_with = "super::seconds")]
    pub(crate) time: Duration,
}

/// The final output of a program.
#[derive(Debug, Deserialize)]
struct Output {
    version: String,
    settings: String,
    messages: u64,
    seconds: f64,
    /// Of a drain.
    #[serde(default)]
    handled: u64,
}

impl Output {
    fn sample(self, peer: &Peer, messages: u64) -> anyhow::Result<Sample> {
        ensure!(messages > 0, "{} handled nothing", peer.name);
        let value = count(messages) / self.seconds.max(1e-9);
        let note = format!("{} {}: {}", peer.name, self.version, self.settings);
        let sample = Sample::of([Figure { name: Name::Rate, value }]);
        Ok(Sample { note: Some(note), ..sample })
    }
}

pub(super) async fn drain(arena: &Arena, load: &PeerDrain) -> anyhow::Result<Sample> {
    let (messages, body) = (load.backlog.to_string(), load.body.to_string());
    call(arena, &load.peer, &["fill", "--messages", &messages, "--body", &body]).await?;
    let (consumers, limit) = (load.consumers.to_string(), load.limit.as_secs().to_string());
    let mut drain =
        vec!["drain", "--messages", &messages, "--consumers", &consumers, "--seconds", &limit];
    if load.delete {
        drain.push("--delete");
    }
    let said = call(arena, &load.peer, &drain).await?;
    let handled = said.handled;
    said.sample(&load.peer, handled)
}

pub(super) async fn enqueue(arena: &Arena, load: &PeerEnqueue) -> anyhow::Result<Sample> {
    // More than any peer sends in that time.
    let messages = (load.time.as_secs().max(1) * 10_000_000).to_string();
    let (batch, body) = (load.batch.to_string(), load.body.to_string());
    let (producers, time) = (load.producers.to_string(), load.time.as_secs_f64().to_string());
    let enqueue = ["enqueue", "--messages", &messages, "--seconds", &time];
    let how = ["--producers", &producers, "--batch", &batch, "--body", &body];
    let said = call(arena, &load.peer, &[enqueue.as_slice(), &how].concat()).await?;
    let sent = said.messages;
    said.sample(&load.peer, sent)
}

/// Runs the program, and returns its last line of output.
async fn call(arena: &Arena, peer: &Peer, arguments: &[&str]) -> anyhow::Result<Output> {
    let url = peer.url.as_deref().unwrap_or_else(|| arena.url().expose());
    let output = Command::new(&peer.program)
        .args(["--url", url])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("Cannot start {}", peer.program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", peer.name, said.trim_end());
    let said = String::from_utf8(output.stdout)?;
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str(last).context("A peer's program said no JSON")
}
