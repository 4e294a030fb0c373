use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress of a command. On a terminal only.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Shows `{n} {what}`, and the time so far.
    pub(crate) fn new(what: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        let template = format!("{{spinner}} {{pos}} {what} in {{elapsed}}");
        Self(match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    /// Shows how many of `all` `{what}` are done.
    pub(crate) fn of(all: u64, what: &str) -> Self {
        let bar = ProgressBar::new(all);
        let template =
            format!("{{bar:30}} {{pos}} of {{len}} {what} in {{elapsed}}, {{eta}} to go");
        Self(match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    pub(crate) fn show(&self, n: usize) {
        self.0.set_position(n as u64);
    }

    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
