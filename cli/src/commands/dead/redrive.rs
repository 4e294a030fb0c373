use rowmq_core::model::Action;
use rowmq_core::{TopicName, dead};

use super::filter::{self, FilterArgs, some_or_all};
use super::{Bar, Dealt};
use crate::author::change;
use crate::commands::topic::find;
use crate::invocation::Invocation;

/// Make dead letters ready again.
///
/// Each keeps its message id and its body, goes behind what is ready now, and has all its attempts
/// again. Messages that die while the command runs are left alone.
#[derive(Debug, clap::Args)]
#[command(group(some_or_all()))]
pub(crate) struct Redrive {
    topic: TopicName,
    /// All of the topic's dead letters. Without any filter, this flag is required.
    #[arg(long, conflicts_with_all = filter::NAMES)]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
}

impl Redrive {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.topic).await?;
        let which = self.filter.words();
        let filter = self.filter.filter(&mut session).await?;
        let by = change(&mut session, Action::Redrive, &topic.name, which).await?;
        let bar = Bar::new("redriven");
        let tell = |progress| bar.show(progress);
        let messages = dead::redrive(&mut session, &topic, &filter, Some(&by), tell).await;
        bar.end();
        let dealt = Dealt { topic: topic.name, messages: messages? };
        invocation.output.report(&dealt, &format!("{} ready again.", dealt.subject()))
    }
}
