pub(super) mod delete;
mod list;
mod next;
mod pause;
mod resume;
pub(super) mod set;

use clap::Subcommand;
use rowmq_core::model::ScheduleName;
use serde::Serialize;

use crate::invocation::Invocation;

/// Manage schedules: recurring messages by a cron pattern.
#[derive(Debug, Subcommand)]
pub(crate) enum Cron {
    Set(set::Set),
    List(list::List),
    Next(next::Next),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Delete(delete::Delete),
}

impl Cron {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::Set(command) => command.run(invocation).await,
            Self::List(command) => command.run(invocation).await,
            Self::Next(command) => command.run(invocation),
            Self::Pause(command) => command.run(invocation).await,
            Self::Resume(command) => command.run(invocation).await,
            Self::Delete(command) => command.run(invocation).await,
        }
    }
}

/// A schedule that was changed.
#[derive(Debug, Serialize)]
struct Dealt {
    schedule: ScheduleName,
}
