use rowmq_core::connection::Session;
use rowmq_core::model::{Access as Rule, Action};
use rowmq_core::topic::change_access;
use rowmq_core::{Topic, TopicName};

use super::{find, noun};
use crate::author;
use crate::invocation::Invocation;

/// Set what may be done with a topic.
#[derive(Debug, clap::Args)]
pub(crate) struct Access {
    name: TopicName,
    /// read-write, write-only (consumers claim nothing), read-only (producers are refused) or
    /// denied (both).
    rule: Rule,
}

/// Stop the flow of a topic: without a flag, what consumers claim.
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    name: TopicName,
    /// Refuse producers.
    #[arg(long)]
    enqueue: bool,
    /// Let consumers claim nothing; messages wait.
    #[arg(long)]
    claim: bool,
}

/// Let a topic flow again: without a flag, in and out.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    name: TopicName,
    /// Take messages from producers again.
    #[arg(long)]
    enqueue: bool,
    /// Let consumers claim again.
    #[arg(long)]
    claim: bool,
}

impl Access {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        change(invocation, &self.name, |_| self.rule).await
    }
}

impl Pause {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let none = !self.enqueue && !self.claim;
        let left = Rule::new(!self.enqueue, !self.claim && !none);
        change(invocation, &self.name, |access| access.and(left)).await
    }
}

impl Resume {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let both = !self.enqueue && !self.claim;
        change(invocation, &self.name, |access| {
            let enqueue = access.may_enqueue() || self.enqueue || both;
            Rule::new(enqueue, access.may_claim() || self.claim || both)
        })
        .await
    }
}

/// Changes what may be done with a topic.
pub(super) async fn set(
    session: &mut Session,
    name: &TopicName,
    wanted: impl Fn(Rule) -> Rule,
) -> rowmq_core::Result<()> {
    let by = author::change(session, Action::SetAccess, name, None).await?;
    change_access(session, name, &by, wanted).await
}

/// Changes what may be done with a topic or a group, and says what that means.
pub(crate) async fn change(
    invocation: &Invocation,
    name: &TopicName,
    wanted: impl Fn(Rule) -> Rule,
) -> anyhow::Result<()> {
    let mut session = invocation.session().await?;
    set(&mut session, name, wanted).await?;
    let topic = find(&mut session, name).await?;
    invocation.output.report(&topic, &sentence(&topic))
}

fn sentence(topic: &Topic) -> String {
    let (noun, name, access) = (noun(topic), &topic.name, topic.effective_access);
    let what = match access {
        Rule::ReadWrite => "messages flow",
        Rule::ReadOnly => "it takes no messages; consumers go on",
        Rule::WriteOnly => "it takes messages; consumers claim none",
        Rule::Denied => "it takes no messages, and consumers claim none",
    };
    match topic.access {
        own if own == access => format!("The {noun} '{name}' is {own}: {what}."),
        own => format!(
            "The {noun} '{name}' is {own} itself, but {access} now, by a rule above it: {what}."
        ),
    }
}
