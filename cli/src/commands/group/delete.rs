use rowmq_core::TopicName;

use super::check_is_group;
use crate::commands::topic::delete;
use crate::invocation::Invocation;

/// Delete a group.
///
/// The stream keeps its messages. A group whose own messages wait for a retry, or are dead letters,
/// is deleted only with --purge.
#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    /// STREAM@GROUP.
    name: TopicName,
    #[command(flatten)]
    content: delete::Content,
}

impl Delete {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        check_is_group(invocation, &self.name).await?;
        delete::Delete { name: self.name, content: self.content }.run(invocation).await
    }
}
