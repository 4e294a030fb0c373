//! A cluster under test: its writer is killed, another takes over, and the dead one comes back.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tokio::process::Command;

/// The records' name for the death of the writer. This fault counts as healed once the process is
/// gone: the failover is timed from then on.
pub(crate) const KILL_WRITER: &str = "kill-writer";

/// The records' name for the wait for another writer. It counts as healed once a node takes writes;
/// the harness asks every node in turn, a few times a second.
pub(crate) const PROMOTE: &str = "promote";

/// The kind of cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterKind {
    /// A MariaDB primary and a semi-synchronous replica; the harness promotes it.
    Semisync,
    /// MySQL Group Replication with one primary; the group elects the next.
    Group,
    /// Three nodes of Galera; the next in the URL takes over.
    Galera,
}

impl ClusterKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Semisync => "semisync",
            Self::Group => "group",
            Self::Galera => "galera",
        }
    }
}

/// A cluster built by `ops/cluster`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Cluster {
    /// The folder with `cluster`.
    #[arg(long)]
    ops: PathBuf,
    /// The kind of cluster.
    #[arg(long)]
    pub(crate) kind: ClusterKind,
    /// Semisync: commits do not wait for the replica.
    #[arg(long = "async")]
    pub(crate) asynchronous: bool,
}

impl Cluster {
    /// Runs `kill -9` on the node that takes the writes.
    pub(crate) async fn kill_writer(&self) -> anyhow::Result<()> {
        self.control("kill").await
    }

    /// Makes the replica the writer, or waits until the cluster has found one by itself.
    pub(crate) async fn promote(&self) -> anyhow::Result<()> {
        self.control("promote").await
    }

    /// Brings the dead node back.
    pub(crate) async fn rejoin(&self) -> anyhow::Result<()> {
        self.control("rejoin").await
    }

    /// Cuts the replica off from everything that the writer commits from now on.
    pub(crate) async fn cut(&self) -> anyhow::Result<()> {
        self.control("cut").await
    }

    async fn control(&self, verb: &str) -> anyhow::Result<()> {
        let mut command = Command::new(self.ops.join("cluster"));
        command.args([verb, "--kind", self.kind.word()]);
        if self.asynchronous {
            command.arg("--async");
        }
        let output = command.stdin(Stdio::null()).output().await;
        let output = output.context("Cannot run ops/cluster")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cluster {verb} failed: {said}");
        Ok(())
    }
}
