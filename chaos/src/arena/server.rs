//! The server under test as a process: it is killed, frozen and started again.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tokio::process::Command;

/// The product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServerKind {
    /// MariaDB.
    Mariadb,
    /// MySQL.
    Mysql,
}

impl ServerKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
        }
    }
}

/// A server started by `ops/dev-server`.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// Where `dev-server` is.
    pub(crate) ops: PathBuf,
    pub(crate) kind: ServerKind,
    pub(crate) name: String,
}

impl Server {
    /// `kill -9`; its data stay.
    pub(crate) async fn crash(&self) -> anyhow::Result<()> {
        self.control("crash").await
    }

    /// Starts it again on the same data and port, in order if it still runs.
    pub(crate) async fn restart(&self) -> anyhow::Result<()> {
        self.control("restart").await
    }

    /// Stops it in the middle of whatever it does.
    pub(crate) async fn freeze(&self) -> anyhow::Result<()> {
        self.control("freeze").await
    }

    /// Lets it go on.
    pub(crate) async fn thaw(&self) -> anyhow::Result<()> {
        self.control("thaw").await
    }

    async fn control(&self, verb: &str) -> anyhow::Result<()> {
        let output = Command::new(self.ops.join("dev-server"))
            .args([verb, "--server", self.kind.word(), "--name", &self.name])
            .stdin(Stdio::null())
            .output()
            .await
            .context("Cannot run ops/dev-server")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "dev-server {verb} failed: {said}");
        Ok(())
    }
}
