use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

/// The outcome of the messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Stored or in the spill journal, each once, or there already.
    pub(crate) sent: u64,
    /// Of the sent, those that were there already, or that replaced an existing message.
    pub(crate) duplicates: u64,
    /// Messages that were handed to the server once more, after a lost or refused reply.
    pub(crate) resent: u64,
    /// Not stored, or not known to be stored.
    pub(crate) failed: u64,
    /// Of the failed, those that may be stored all the same.
    pub(crate) unknown: u64,
    /// Messages that went into the spill journal.
    pub(crate) spilled: u64,
    /// Messages of the spill journal that were stored, including those found in it at the start.
    pub(crate) drained: u64,
    /// Messages of the spill journal that were put into a file, for an operator to decide on.
    pub(crate) set_aside: u64,
    /// Messages in the spill journal at the end.
    pub(crate) in_journal: u64,
    /// Whether input was left when the sending ended.
    #[serde(skip)]
    pub(crate) left: bool,
    /// How long it took.
    pub(crate) seconds: f64,
}

impl Summary {
    pub(crate) fn took(mut self, time: Duration) -> Self {
        self.seconds = (time.as_secs_f64() * 1000.0).round() / 1000.0;
        self
    }

    /// Whether all of the input is stored, or in the spill journal if that is enough.
    pub(crate) fn is_whole(&self, spilled_is_enough: bool) -> bool {
        let drained = self.set_aside == 0 && (self.in_journal == 0 || spilled_is_enough);
        !self.left && self.failed == 0 && drained
    }

    /// A sentence on the spill journal, if it was used.
    fn spill(&self) -> Option<String> {
        let Self { spilled, drained, set_aside, in_journal, .. } = self;
        let aside = match set_aside {
            0 => String::new(),
            messages => format!("  set aside {messages}"),
        };
        (spilled + drained + set_aside + in_journal > 0).then(|| {
            format!("  spilled {spilled}  drained {drained}{aside}  in journal {in_journal}")
        })
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json {
            serde_json::to_string(self).context("Cannot write the summary")?
        } else {
            let Self { sent, duplicates, resent, failed, seconds, .. } = self;
            let there = match duplicates {
                0 => String::new(),
                n => format!(" ({n} of them duplicates)"),
            };
            let spill = self.spill().unwrap_or_default();
            format!(
                "sent {sent}{there}  resent {resent}  failed {failed}{spill}  seconds {seconds:.1}"
            )
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{text}").and_then(|()| out.flush()).context("Cannot write the summary")
    }
}
