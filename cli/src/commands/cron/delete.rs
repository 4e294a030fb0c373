use rowmq_core::connection::Link;
use rowmq_core::model::{Action, ScheduleName};
use rowmq_core::store;

use super::Dealt;
use crate::author::change;
use crate::invocation::Invocation;

/// Delete a schedule; what it has enqueued stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    name: ScheduleName,
}

impl Delete {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let work = async |conn: &mut Link| store::schedule::delete(conn, &self.name).await;
        let by = change(&mut session, Action::DeleteSchedule, &self.name, None).await?;
        by.make(&mut session, "delete the schedule", work).await?;
        let sentence = format!("The schedule '{}' is deleted.", self.name);
        invocation.output.report(&Dealt { schedule: self.name }, &sentence)
    }
}
