use anyhow::bail;
use queue_core::connection::Link;
use queue_core::{MsgId, TopicName, cancel};
use serde::Serialize;

use super::waits_no_more;
use crate::invocation::Invocation;

/// Take back a message whose time has not come, or that waits to be tried again.
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
        let work = async |conn: &mut Link| cancel(conn, &self.topic, self.id).await;
        if !session.transaction("cancel", work).await? {
            bail!(waits_no_more(&self.topic, self.id));
        }
        let sentence = format!("The message {} is cancelled.", self.id);
        invocation.output.told(&Cancelled { msg_id: self.id }, &sentence)
    }
}
