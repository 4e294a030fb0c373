//! Another queue's backlog, drained by its own program: a package beside this one, with a separate
//! lock file.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use super::PeerDrain;
use crate::arena::Arena;
use crate::figure::{Figure, Name, Sample, count};

/// Another queue on MySQL.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its program.
    #[serde(skip)]
    pub(crate) program: PathBuf,
}

/// The final output of its program.
#[derive(Debug, Deserialize)]
struct PeerOutput {
    handled: u64,
    seconds: f64,
}

pub(super) async fn run(arena: &Arena, drain: &PeerDrain) -> anyhow::Result<Sample> {
    let (messages, body) = (drain.backlog.to_string(), drain.body.to_string());
    call(arena, &drain.peer, &["fill", "--messages", &messages, "--body", &body]).await?;
    let (consumers, limit) = (drain.consumers.to_string(), drain.limit.as_secs().to_string());
    let said = call(
        arena,
        &drain.peer,
        &["drain", "--messages", &messages, "--consumers", &consumers, "--seconds", &limit],
    )
    .await?;
    let said: PeerOutput = serde_json::from_str(&said).context("A peer's program said no JSON")?;
    ensure!(said.handled > 0, "{} handled nothing", drain.peer.name);
    Ok(Sample::of([Figure {
        name: Name::Rate,
        value: count(said.handled) / said.seconds.max(1e-9),
    }]))
}

/// Runs the program, and returns its last line of output.
async fn call(arena: &Arena, peer: &Peer, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(&peer.program)
        .args(["--url", arena.url().expose()])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("Cannot start {}", peer.program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {}", peer.name, said.trim_end());
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().last().unwrap_or_default().to_owned())
}
