use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// What became of the messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Summary {
    /// Stored, each once, or there already.
    pub(super) sent: u64,
    /// Of the sent, those that were there already, or have replaced one that was.
    pub(super) duplicates: u64,
    /// Messages that were given to the server once more, after a lost or refused reply.
    pub(super) resent: u64,
    /// Not stored, or not known to be.
    pub(super) failed: u64,
    /// Of the failed, those that may be stored all the same.
    pub(super) unknown: u64,
    /// Whether input was left when the sending ended.
    #[serde(skip)]
    pub(super) left: bool,
    /// How long it took.
    pub(super) seconds: f64,
}

impl Summary {
    pub(super) fn took(mut self, time: Duration) -> Self {
        self.seconds = (time.as_secs_f64() * 1000.0).round() / 1000.0;
        self
    }

    /// Whether everything there was has been sent.
    pub(super) fn is_whole(&self) -> bool {
        !self.left && self.failed == 0
    }

    pub(super) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json {
            serde_json::to_string(self).context("Cannot write the summary")?
        } else {
            let Self { sent, duplicates, resent, failed, seconds, .. } = self;
            let there = match duplicates {
                0 => String::new(),
                n => format!(" ({n} of them duplicates)"),
            };
            format!("sent {sent}{there}  resent {resent}  failed {failed}  seconds {seconds:.1}")
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).context("Cannot write the summary")
    }
}
