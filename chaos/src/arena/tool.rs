//! What an operator does while the fleet works: the real `rowmq`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use rowmq_core::account::Account;
use tokio::process::Command;

use super::{Arena, accounts};

/// The longest a command may take, whatever happens to its server: the sum of its few statements'
/// deadlines, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

impl Arena {
    /// Runs `rowmq` with the account of an operator, or of the migrator, and returns whether it
    /// succeeded. It may fail, because its server may be away, but it must end and say why.
    pub(crate) async fn rowmq(&self, arguments: &[&str]) -> anyhow::Result<bool> {
        let line = arguments.join(" ");
        let account = match arguments.first() {
            Some(&"migrate") => Account::Migrator,
            _ => Account::Operator,
        };
        let running = Command::new(self.fleet.path_of("rowmq"))
            .args(arguments)
            .env("ROWMQ_URL", accounts::url_of(&self.root, account)?.expose())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ended = tokio::time::timeout(PATIENCE, running).await;
        let output = ended.with_context(|| format!("rowmq {line} does not end"))??;
        // A failed check of `doctor` is in its table, not a separate error.
        let failed = !output.status.success();
        let said = if failed && output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        let said = String::from_utf8_lossy(said);
        tracing::info!(command = line, status = %output.status, "An operator's command: {said}");
        ensure!(output.status.code().is_some(), "rowmq {line} died: {said}");
        ensure!(!failed || !said.is_empty(), "rowmq {line} fails in silence");
        Ok(!failed)
    }
}
