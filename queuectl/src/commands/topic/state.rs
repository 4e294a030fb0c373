use queue_core::connection::Session;
use queue_core::topic::TopicState;
use queue_core::{TopicName, store};

use super::find;
use crate::invocation::Invocation;

/// Stop what flows through a topic: without a flag, what consumers claim.
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

impl Pause {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let none = !self.enqueue && !self.claim;
        change(invocation, &self.name, |state| TopicState {
            enqueue_paused: state.enqueue_paused || self.enqueue,
            claim_paused: state.claim_paused || self.claim || none,
        })
        .await
    }
}

impl Resume {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let both = !self.enqueue && !self.claim;
        change(invocation, &self.name, |state| TopicState {
            enqueue_paused: state.enqueue_paused && !self.enqueue && !both,
            claim_paused: state.claim_paused && !self.claim && !both,
        })
        .await
    }
}

/// Sets what flows through a topic.
pub(super) async fn set(
    session: &mut Session,
    name: &TopicName,
    state: TopicState,
) -> queue_core::Result<()> {
    session
        .call("pause or resume the topic", async |conn| {
            store::topic::set_state(conn, name, state).await
        })
        .await
}

async fn change(
    invocation: &Invocation,
    name: &TopicName,
    change: impl FnOnce(TopicState) -> TopicState,
) -> anyhow::Result<()> {
    let mut session = invocation.session().await?;
    let mut topic = find(&mut session, name).await?;
    topic.state = change(topic.state);
    set(&mut session, name, topic.state).await?;
    invocation.output.told(&topic, &sentence(name, topic.state))
}

fn sentence(name: &TopicName, state: TopicState) -> String {
    let what = match (state.enqueue_paused, state.claim_paused) {
        (false, false) => "is open",
        (true, false) => "takes no messages; consumers go on",
        (false, true) => "takes messages; consumers claim none",
        (true, true) => "takes no messages, and consumers claim none",
    };
    format!("The topic '{name}' {what}.")
}
