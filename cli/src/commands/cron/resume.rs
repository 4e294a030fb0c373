use rowmq_core::connection::Link;
use rowmq_core::model::{Action, ScheduleName};
use rowmq_core::schedule;

use super::Dealt;
use crate::author::change;
use crate::invocation::Invocation;

/// Let a paused schedule tick again, from now on.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    name: ScheduleName,
}

impl Resume {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let work = async |conn: &mut Link| schedule::resume(conn, &self.name).await;
        let by = change(&mut session, Action::ResumeSchedule, &self.name, None).await?;
        by.make(&mut session, "resume the schedule", work).await?;
        let sentence = format!("The schedule '{}' ticks again.", self.name);
        invocation.output.report(&Dealt { schedule: self.name }, &sentence)
    }
}
