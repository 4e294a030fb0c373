use rowmq_core::TopicName;
use rowmq_core::model::Access;

use super::check_is_group;
use crate::commands::topic::state::change;
use crate::invocation::Invocation;

/// Pause a group: its members claim nothing, and its position stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// STREAM@GROUP.
    name: TopicName,
}

/// Resume a group that was paused.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// STREAM@GROUP.
    name: TopicName,
}

impl Pause {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        check_is_group(invocation, &self.name).await?;
        change(invocation, &self.name, |access| access.and(Access::WriteOnly)).await
    }
}

impl Resume {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        check_is_group(invocation, &self.name).await?;
        change(invocation, &self.name, |access| Access::new(access.may_enqueue(), true)).await
    }
}
