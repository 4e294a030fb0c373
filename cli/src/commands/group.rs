mod blocked;
pub(super) mod create;
mod delete;
mod filter;
mod flow;
mod forget_member;
pub(super) mod list;
mod members;
mod replay;
mod reset;
mod set;
mod show;

use clap::Subcommand;
use rowmq_core::connection::Session;
use rowmq_core::{Error, Topic, TopicName};

use super::topic::find;
use crate::invocation::Invocation;

/// Create, watch, move, pause and delete the groups of streams.
#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    Create(Box<create::Create>),
    Set(Box<set::Set>),
    List(list::List),
    Show(show::Show),
    Members(members::Members),
    Blocked(blocked::Blocked),
    Reset(reset::Reset),
    Replay(replay::Replay),
    ForgetMember(forget_member::ForgetMember),
    Pause(flow::Pause),
    Resume(flow::Resume),
    Delete(delete::Delete),
}

impl Group {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        match self {
            Self::Create(command) => command.run(invocation).await,
            Self::Set(command) => command.run(invocation).await,
            Self::List(command) => command.run(invocation).await,
            Self::Show(command) => command.run(invocation).await,
            Self::Members(command) => command.run(invocation).await,
            Self::Blocked(command) => command.run(invocation).await,
            Self::Reset(command) => command.run(invocation).await,
            Self::Replay(command) => command.run(invocation).await,
            Self::ForgetMember(command) => command.run(invocation).await,
            Self::Pause(command) => command.run(invocation).await,
            Self::Resume(command) => command.run(invocation).await,
            Self::Delete(command) => command.run(invocation).await,
        }
    }
}

/// Refuses a topic that is no group.
async fn check_is_group(invocation: &Invocation, name: &TopicName) -> anyhow::Result<()> {
    let topic = find(&mut invocation.session().await?, name).await?;
    if topic.of_stream().is_none() {
        return Err(Error::NoGroup { topic: topic.name }.into());
    }
    Ok(())
}

/// Finds a group and its own topic. A broadcast group is refused for the reason `unless_broadcast`.
async fn find_group(
    session: &mut Session,
    name: &TopicName,
    unless_broadcast: &'static str,
) -> rowmq_core::Result<(Topic, rowmq_core::model::Group)> {
    let topic = find(session, name).await?;
    match (topic.group(), topic.broadcast()) {
        (Some(group), _) => Ok((topic, group)),
        (None, Some(_)) => Err(Error::OfBroadcast { topic: topic.name, reason: unless_broadcast }),
        (None, None) => Err(Error::NoGroup { topic: topic.name }),
    }
}
