use anyhow::bail;
use rowmq_core::model::Action;
use rowmq_core::{TopicName, dead};

use super::filter::{self, FilterArgs, some_or_all};
use super::{Bar, Dealt};
use crate::author::change;
use crate::commands::topic::find;
use crate::confirmation::is_confirmed;
use crate::invocation::Invocation;

/// Delete dead letters, for ever.
#[derive(Debug, clap::Args)]
#[command(group(some_or_all()))]
pub(crate) struct Purge {
    topic: TopicName,
    /// All of the topic's dead letters. Without any filter, this flag is required.
    #[arg(long, conflicts_with_all = filter::NAMES)]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

impl Purge {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let which = self.filter.words();
        let filter = self.filter.filter(&mut session).await?;
        if !self.yes {
            let what = format!("dead letters of '{}'", topic.name);
            if !is_confirmed(&what, &format!("Delete these {what} for ever?"))? {
                bail!("Nothing was deleted.");
            }
        }
        let by = change(&mut session, Action::PurgeDead, &topic.name, which).await?;
        let bar = Bar::new("deleted");
        let tell = |progress| bar.show(progress);
        let messages = dead::purge(&mut session, topic.id, &filter, Some(&by), tell).await;
        bar.end();
        let dealt = Dealt { topic: topic.name, messages: messages? };
        invocation.output.report(&dealt, &format!("{} deleted.", dealt.subject()))
    }
}
