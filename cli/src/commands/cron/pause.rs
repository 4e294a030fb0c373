use rowmq_core::connection::Link;
use rowmq_core::model::{Action, ScheduleName};
use rowmq_core::store;

use super::Dealt;
use crate::author::change;
use crate::invocation::Invocation;

/// Stop a schedule; what it has enqueued stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    name: ScheduleName,
}

impl Pause {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let work = async |conn: &mut Link| store::schedule::pause(conn, &self.name).await;
        let by = change(&mut session, Action::PauseSchedule, &self.name, None).await?;
        by.make(&mut session, "pause the schedule", work).await?;
        let sentence = format!("The schedule '{}' is paused.", self.name);
        invocation.output.report(&Dealt { schedule: self.name }, &sentence)
    }
}
