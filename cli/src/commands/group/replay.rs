use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::model::{Action, OffsetSpec};
use rowmq_core::stream::group::replay;
use serde::Serialize;

use super::find_group;
use crate::author::change;
use crate::invocation::Invocation;

/// Have a group handle a range of its stream once more, without moving it.
#[derive(Debug, clap::Args)]
pub(crate) struct Replay {
    /// STREAM@GROUP.
    name: TopicName,
    /// The first message: earliest, an offset (in every partition), or a time.
    #[arg(long, value_name = "PLACE")]
    from: OffsetSpec,
    /// The one after the last: latest, an offset, or a time.
    #[arg(long, default_value = "latest", value_name = "PLACE")]
    to: OffsetSpec,
}

const REFUSED: &str = "no stretch of it can be handled once more; put its named members back with \
     `rowmq group reset`, or let a group without --broadcast read it";

#[derive(Debug, Serialize)]
struct Done {
    group: TopicName,
    messages: usize,
}

impl Replay {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let (topic, _) = find_group(&mut session, &self.name, REFUSED).await?;
        let (from, to) = (self.from, self.to);
        let detail = format!("from {from} to {to}");
        let by = change(&mut session, Action::Replay, &topic.name, detail).await?;
        let again = async |conn: &mut Link| {
            let messages = replay(conn, &topic, from, to).await?;
            Ok(usize::try_from(messages).unwrap_or(usize::MAX))
        };
        let messages = by.make_counted(&mut session, "replay", again).await?;
        let sentence = format!("The group '{}' handles {messages} messages again.", topic.name);
        invocation.output.report(&Done { group: topic.name, messages }, &sentence)
    }
}
