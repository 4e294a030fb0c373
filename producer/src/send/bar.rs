use std::io::Write;
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Progress on standard error, shown only when that is a terminal.
#[derive(Clone)]
pub(crate) struct Bar {
    bar: ProgressBar,
}

impl Bar {
    /// A bar for an input of `size` bytes, or one that has no known end.
    pub(crate) fn new(size: Option<u64>) -> Self {
        let template = match size {
            Some(_) => "{bar:30} {percent:>3}%  {msg}  {elapsed}, {eta} to go",
            None => "{spinner}  {msg}  {elapsed}",
        };
        let bar = ProgressBar::with_draw_target(size, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar }
    }

    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Shows that this many messages are sent, up to this byte of the input.
    pub(crate) fn sent(&self, messages: u64, end: u64) {
        self.bar.set_position(end);
        self.bar.set_message(format!("{} sent", HumanCount(messages)));
    }

    /// Shows how many messages are still in the journal.
    pub(crate) fn draining(&self, messages: u64) {
        if messages > 0 {
            self.bar.set_message(format!("{} in the spill journal", HumanCount(messages)));
        }
    }

    /// Shows why messages are not being sent.
    pub(crate) fn waiting(&self, why: &str) {
        self.bar.set_message(format!("waiting: {why}"));
    }

    /// Prints one line on standard error without breaking the bar.
    pub(crate) fn say(&self, sentence: &str) {
        self.bar.suspend(|| {
            // Standard error may be closed; then there is nowhere to report that.
            drop(writeln!(std::io::stderr(), "rowmq-producer: {sentence}"));
        });
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
