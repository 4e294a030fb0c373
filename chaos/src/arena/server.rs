//! The server under test as a process: it is killed, frozen and restarted.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use tokio::process::Command;
use tokio::sync::{Mutex, OwnedMutexGuard};

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
    /// The folder of `dev-server`.
    pub(crate) ops: PathBuf,
    pub(crate) kind: ServerKind,
    pub(crate) name: String,
    one_at_a_time: Arc<Mutex<()>>,
}

impl Server {
    /// Returns the server that `ops/dev-server` in the folder `ops` calls `name`.
    pub(crate) fn new(ops: PathBuf, kind: ServerKind, name: String) -> Self {
        Self { ops, kind, name, one_at_a_time: Arc::default() }
    }

    /// Waits until no other fault has the server down, and keeps other faults away from it.
    pub(crate) async fn alone(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.one_at_a_time).lock_owned().await
    }

    /// Runs `kill -9`; its data stays.
    pub(crate) async fn crash(&self) -> anyhow::Result<()> {
        self.control("crash").await
    }

    /// Starts it again on the same data and port; stops it in order first if it still runs.
    pub(crate) async fn restart(&self) -> anyhow::Result<()> {
        self.control("restart").await
    }

    /// Freezes it, even in the middle of its work.
    pub(crate) async fn freeze(&self) -> anyhow::Result<()> {
        self.control("freeze").await
    }

    /// Lets it go on.
    pub(crate) async fn thaw(&self) -> anyhow::Result<()> {
        self.control("thaw").await
    }

    /// Starts it if it has ended.
    pub(crate) async fn start(&self) -> anyhow::Result<()> {
        self.control("start").await
    }

    /// Fills the disk of its data.
    pub(crate) async fn fill_disk(&self) -> anyhow::Result<()> {
        self.control("fill").await
    }

    /// Frees the disk again.
    pub(crate) async fn free_disk(&self) -> anyhow::Result<()> {
        self.control("free").await
    }

    /// Sets its clock this many seconds, `+N` or `-N`, off the true time.
    pub(crate) async fn step_clock(&self, seconds: &str) -> anyhow::Result<()> {
        self.control_with("clock", &["--", seconds]).await
    }

    async fn control(&self, verb: &str) -> anyhow::Result<()> {
        self.control_with(verb, &[]).await
    }

    async fn control_with(&self, verb: &str, more: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(self.ops.join("dev-server"))
            .args([verb, "--server", self.kind.word(), "--name", &self.name])
            .args(more)
            .stdin(Stdio::null())
            .output()
            .await
            .context("Cannot run ops/dev-server")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "dev-server {verb} failed: {said}");
        Ok(())
    }
}
