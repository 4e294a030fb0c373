//! The arguments about the spill journal, which both commands share.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::Args;
use rowmq_core::account::Account;
use rowmq_core::connection::ServerUrl;
use rowmq_core::{Result, doctor};
use rowmq_producer::SpillOptions;

/// The spill journal.
#[derive(Debug, Args)]
pub(crate) struct SpillArgs {
    /// Keep messages that the server does not accept in a journal in DIR, and send them from there,
    /// in order and once, when it accepts messages again. What an earlier process left in DIR is
    /// sent too. One process at a time.
    #[arg(long, value_name = "DIR")]
    pub(crate) spill_dir: Option<PathBuf>,
    /// With --spill-dir, the most bytes of the journal; messages that come while it is full wait,
    /// and then fail [default: 1073741824].
    #[arg(long, value_name = "BYTES")]
    pub(crate) spill_limit: Option<NonZeroU64>,
}

impl SpillArgs {
    pub(crate) fn options(&self) -> Option<SpillOptions> {
        let mut options = SpillOptions::new(self.spill_dir.as_ref()?);
        options.limit_bytes = self.spill_limit.unwrap_or(options.limit_bytes);
        Some(options)
    }

    /// Checks the server at the start. With a journal, a server that is down does not prevent the
    /// start.
    ///
    /// # Errors
    /// What is wrong with the server.
    pub(crate) async fn require(&self, url: &ServerUrl) -> Result<()> {
        match doctor::require_as(url, Some(Account::Producer)).await {
            Err(error) if self.spill_dir.is_some() && error.is_transient() => {
                tracing::warn!(%error, "The server is away; messages go into the spill journal.");
                Ok(())
            }
            checked => checked.map(drop),
        }
    }
}
