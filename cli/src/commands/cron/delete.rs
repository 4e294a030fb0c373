use rowmq_core::connection::{Link, Session};
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
        delete(&mut session, &self.name).await?;
        let sentence = format!("The schedule '{}' is deleted.", self.name);
        invocation.output.report(&Dealt { schedule: self.name }, &sentence)
    }
}

/// Deletes the schedule, and writes the audit.
pub(crate) async fn delete(session: &mut Session, name: &ScheduleName) -> rowmq_core::Result<()> {
    let work = async |conn: &mut Link| store::schedule::delete(conn, name).await;
    let by = change(session, Action::DeleteSchedule, name, None).await?;
    by.make(session, "delete the schedule", work).await
}
