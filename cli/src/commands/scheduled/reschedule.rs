use anyhow::bail;
use rowmq_core::connection::Link;
use rowmq_core::model::Action;
use rowmq_core::{Moment, MsgId, TopicName, reschedule};
use serde::Serialize;

use super::refuse_past;
use crate::author::change;
use crate::invocation::Invocation;

/// Reschedule a message that waits for its time, or to be tried again.
#[derive(Debug, clap::Args)]
pub(crate) struct Reschedule {
    topic: TopicName,
    /// The message id.
    id: MsgId,
    /// When it becomes ready: a time from now (48h; 0s: at once), or a moment
    /// (2026-12-24T18:00:00Z).
    #[arg(long, value_name = "WHEN")]
    deliver: Moment,
}

#[derive(Debug, Serialize)]
struct Rescheduled {
    msg_id: MsgId,
}

impl Reschedule {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        refuse_past(&mut session, "--deliver", Some(self.deliver)).await?;
        let Self { topic, id, deliver } = &self;
        let detail = format!("{id}, due {deliver}");
        let by = change(&mut session, Action::Reschedule, topic, detail).await?;
        let work =
            async |conn: &mut Link| reschedule(conn, topic, *id, *deliver).await.map(usize::from);
        if by.make_counted(&mut session, "reschedule", work).await? == 0 {
            bail!(
                "The message {id} does not wait in '{topic}': it is ready, being handled or done, or there never was one; `rowmq scheduled list {topic}` shows those that wait"
            );
        }
        let sentence = format!("The message {} has its new time.", self.id);
        invocation.output.report(&Rescheduled { msg_id: self.id }, &sentence)
    }
}
