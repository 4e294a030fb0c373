mod filter;
mod list;
mod purge;
mod redrive;
mod show;

use std::time::Duration;

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use rowmq_core::TopicName;
use rowmq_core::dead::Progress;
use serde::Serialize;

use crate::invocation::Invocation;

pub(super) use self::show::HISTORY;

/// List, show, redrive and purge dead letters.
#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    List(list::List),
    Show(show::Show),
    Redrive(redrive::Redrive),
    Purge(purge::Purge),
}

impl Dead {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::List(command) => command.run(invocation).await,
            Self::Show(command) => command.run(invocation).await,
            Self::Redrive(command) => command.run(invocation).await,
            Self::Purge(command) => command.run(invocation).await,
        }
    }
}

/// How many dead letters a command has changed.
#[derive(Debug, Serialize)]
struct Dealt {
    topic: TopicName,
    messages: usize,
}

impl Dealt {
    /// The subject and the verb of a sentence: `1 dead letter of 'mail' is`.
    fn subject(&self) -> String {
        let (letters, are) = if self.messages == 1 { ("letter", "is") } else { ("letters", "are") };
        format!("{} dead {letters} of '{}' {are}", self.messages, self.topic)
    }
}

/// Shows the progress of a command. On a terminal only.
struct Bar(ProgressBar);

impl Bar {
    fn new(done: &str) -> Self {
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        let template =
            format!("{{spinner}} {{pos}} dead letters seen, {{msg}} {done} in {{elapsed}}");
        Self(match ProgressStyle::with_template(&template) {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        })
    }

    fn show(&self, progress: Progress) {
        self.0.set_position(progress.seen as u64);
        self.0.set_message(progress.done.to_string());
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}
