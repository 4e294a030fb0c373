use anyhow::bail;
use rowmq_core::connection::Link;
use rowmq_core::model::Action;
use rowmq_core::{MsgId, TopicName, cancel};
use serde::Serialize;

use super::waits_no_more;
use crate::author::change;
use crate::invocation::Invocation;

/// Cancel a message whose time has not come, or that waits to be tried again.
#[derive(Debug, clap::Args)]
pub(crate) struct Cancel {
    topic: TopicName,
    /// Its message id.
    id: MsgId,
}

#[derive(Debug, Serialize)]
struct Cancelled {
    msg_id: MsgId,
}

impl Cancel {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let by = change(&mut session, Action::Cancel, &self.topic, self.id.to_string()).await?;
        let work =
            async |conn: &mut Link| cancel(conn, &self.topic, self.id).await.map(usize::from);
        if by.make_counted(&mut session, "cancel", work).await? == 0 {
            bail!(waits_no_more(&self.topic, self.id));
        }
        let sentence = format!("The message {} is cancelled.", self.id);
        invocation.output.report(&Cancelled { msg_id: self.id }, &sentence)
    }
}
