use anyhow::bail;
use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::model::{Action, OffsetSpec};
use rowmq_core::stream::broadcast::reset_members;
use rowmq_core::stream::group::reset_group;
use serde::Serialize;

use crate::author::change;
use crate::commands::topic::find;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;

/// Have a group continue elsewhere in its stream.
///
/// What its members hold is fenced: they lose it, and what they have done of it may be done again.
/// Messages that wait for another try, and dead letters, stay. In a broadcast group, the members
/// with a name continue elsewhere, without their pending retries; the others are not affected.
#[derive(Debug, clap::Args)]
pub(crate) struct Reset {
    /// STREAM@GROUP.
    name: TopicName,
    /// Where to: earliest, latest, an offset, or a time.
    #[arg(long, value_name = "PLACE")]
    to: OffsetSpec,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Done {
    group: TopicName,
}

impl Reset {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.name).await?;
        let question = format!("Have the group '{}' go on elsewhere?", topic.name);
        if !self.yes && !is_confirmed("how far the group has come", &question)? {
            bail!("Nothing was changed.");
        }
        let reset = async |conn: &mut Link| match topic.broadcast() {
            Some(_) => reset_members(conn, &topic, self.to).await.map(|_| ()),
            None => reset_group(conn, &topic, self.to).await,
        };
        let detail = format!("to {}", self.to);
        let by = change(&mut session, Action::ResetGroup, &topic.name, detail).await?;
        by.make(&mut session, "reset the group", reset).await?;
        let sentence = format!("The group '{}' goes on there.", topic.name);
        invocation.output.report(&Done { group: topic.name }, &sentence)
    }
}
