use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::model::{Action, MemberName};
use rowmq_core::stream::broadcast::forget_member;
use serde::Serialize;

use crate::author::change;
use crate::commands::topic::find;
use crate::invocation::Invocation;

/// Forget the position of a named member of a broadcast group, so that retention waits for it no
/// longer.
///
/// If it runs, or comes back, it begins where the group begins.
#[derive(Debug, clap::Args)]
pub(crate) struct ForgetMember {
    /// STREAM@GROUP.
    name: TopicName,
    /// The member.
    member: MemberName,
}

#[derive(Debug, Serialize)]
struct Done {
    group: TopicName,
    member: MemberName,
}

impl ForgetMember {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.name).await?;
        let member = self.member;
        let forget = async |conn: &mut Link| forget_member(conn, &topic, &member).await;
        let detail = member.to_string();
        let by = change(&mut session, Action::ForgetMember, &topic.name, detail).await?;
        by.make(&mut session, "forget the member", forget).await?;
        let sentence = format!("The member '{member}' of '{}' is forgotten.", topic.name);
        invocation.output.report(&Done { group: topic.name, member }, &sentence)
    }
}
