use anyhow::bail;
use rowmq_core::connection::Session;
use rowmq_core::model::{Action, TopicKind};
use rowmq_core::{Topic, TopicName, ready};
use serde::Serialize;

use super::topic::find;
use crate::author::change;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;
use crate::progress::Bar;

/// Delete the ready messages of a topic, for ever.
///
/// Messages that are claimed, wait for their time or are dead stay, and so do those that come while
/// the command runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Purge {
    topic: TopicName,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Serialize)]
struct Purged {
    topic: TopicName,
    messages: usize,
}

impl Purge {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find_queue(&mut session, &self.topic).await?;
        if !self.yes {
            let what = format!("ready messages of '{}'", topic.name);
            if !is_confirmed(&what, &format!("Delete the {what} for ever?"))? {
                bail!("Nothing was deleted.");
            }
        }
        let by = change(&mut session, Action::Purge, &topic.name, None).await?;
        let bar = Bar::new("messages deleted");
        let messages = ready::purge(&mut session, &topic, Some(&by), |done| bar.show(done)).await;
        bar.end();
        let purged = Purged { topic: topic.name, messages: messages? };
        let sentence =
            format!("{} ready messages of '{}' are deleted.", purged.messages, purged.topic);
        invocation.output.report(&purged, &sentence)
    }
}

/// Finds the topic, if its messages are its own; the error says what to do instead.
pub(super) async fn find_queue(session: &mut Session, name: &TopicName) -> anyhow::Result<Topic> {
    let topic = find(session, name).await?;
    match topic.kind {
        TopicKind::Queue => Ok(topic),
        TopicKind::Stream { .. } => bail!(
            "'{name}' is a stream, whose messages are its groups' too: shorten it with `rowmq topic set {name} --retention TIME`, or have a group pass over them with `rowmq group reset {name}@GROUP`."
        ),
        _ => bail!(
            "'{name}' is a group, which has no messages of its own: `rowmq group reset {name}` has it go on elsewhere."
        ),
    }
}
