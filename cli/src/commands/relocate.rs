use anyhow::bail;
use rowmq_core::model::Action;
use rowmq_core::{TopicName, ready};
use serde::Serialize;

use super::purge::find_queue;
use crate::author::change;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;
use crate::progress::Bar;

/// Move the ready messages of a topic to another.
///
/// They go behind what is ready there, in their order, with their ids, keys, bodies and history.
/// Unique keys do not go with them. Messages that come while the command runs stay.
#[derive(Debug, clap::Args)]
pub(crate) struct Move {
    from: TopicName,
    to: TopicName,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Moved {
    from: TopicName,
    to: TopicName,
    messages: usize,
}

impl Move {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let from = find_queue(&mut session, &self.from).await?;
        let to = find_queue(&mut session, &self.to).await?;
        if from.id == to.id {
            bail!("The messages of '{}' are there already: name another topic.", from.name);
        }
        if !self.yes {
            let question = format!("Move the ready messages of '{}' to '{}'?", from.name, to.name);
            if !is_confirmed("order of the messages", &question)? {
                bail!("Nothing was moved.");
            }
        }
        let detail = format!("to {}", to.name);
        let by = change(&mut session, Action::Move, &from.name, detail).await?;
        let bar = Bar::new("messages moved");
        let tell = |done| bar.show(done);
        let messages = ready::relocate(&mut session, (&from, &to), Some(&by), tell).await;
        bar.end();
        let moved = Moved { from: from.name, to: to.name, messages: messages? };
        let sentence = format!(
            "{} ready messages of '{}' are messages of '{}' now.",
            moved.messages, moved.from, moved.to
        );
        invocation.output.report(&moved, &sentence)
    }
}
