//! A worker of a client package: a process that says what it has done.

use std::process::Stdio;

use anyhow::{Context, ensure};
use rowmq_core::connection::ServerUrl;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::{DrainTask, Tally};

/// Runs the worker of `client` by `ops/client` until the drain is over.
pub(super) async fn drain(
    client: &str,
    task: &DrainTask,
    url: &ServerUrl,
    tally: &Tally,
    drained: &CancellationToken,
) -> anyhow::Result<()> {
    let program = match client {
        "python" => "clients/python/tests/counter.py",
        "php" => "counter.php",
        _ => "counter.mjs",
    };
    let mut worker = Command::new("ops/client")
        .args([client, program, &task.topic])
        .env("ROWMQ_URL", url.expose())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("Cannot run ops/client")?;
    let output = worker.stdout.take().context("its output is captured")?;
    let mut lines = BufReader::new(output).lines();
    // Dropping a read of a line loses nothing that is counted: the drain is over then.
    while let Some(line) = drained.run_until_cancelled(lines.next_line()).await {
        let line = line?;
        ensure!(
            line.is_some(),
            "The worker in {client} has ended; ops/client {client} --get may say why"
        );
        match line.unwrap_or_default().parse()? {
            0 => tally.begin(),
            messages => tally.settle(messages),
        }
    }
    // One that is killed while its claim waits at the server may still claim there.
    let id = worker.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    kill_process(id.context("the worker runs")?, Signal::TERM).context("Cannot end the worker")?;
    worker.wait().await.context("The worker does not end").map(drop)
}
