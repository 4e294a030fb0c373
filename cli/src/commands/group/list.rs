use std::time::Duration;

use rowmq_core::inspect::{GroupStatus, groups};
use rowmq_core::model::TopicKind;
use rowmq_core::{Error, TopicName};

use crate::commands::topic::{access_words, filter, find};
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// List the groups, and how far each has come.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Those of this stream only.
    stream: Option<TopicName>,
}

pub(crate) const HEADER: [&str; 9] =
    ["group", "access", "order", "filter", "lag", "oldest", "claimed", "held for", "lost"];

impl Row for GroupStatus {
    fn cells(&self) -> Vec<String> {
        let order = match self.topic.kind {
            TopicKind::Group { ordered: true, .. } => "ordered",
            TopicKind::Broadcast { .. } => "broadcast",
            _ => "none",
        };
        let age = |ms: Option<u64>| {
            ms.map(Duration::from_millis).map_or_else(|| "-".to_owned(), units::age)
        };
        vec![
            self.topic.name.to_string(),
            access_words(&self.topic),
            order.to_owned(),
            filter(&self.topic.settings),
            self.lag.to_string(),
            age(self.lag_ms),
            self.claimed.to_string(),
            age(self.held_ms),
            self.lost.to_string(),
        ]
    }
}

impl List {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let of = match &self.stream {
            Some(name) => {
                let stream = find(&mut session, name).await?;
                if !stream.is_stream() {
                    return Err(Error::NoStream { topic: stream.name }.into());
                }
                Some(stream.id)
            }
            None => None,
        };
        let listed = groups(&mut session, of).await?;
        let none = "There are no groups: create one with `rowmq group create STREAM@GROUP`.";
        invocation.output.rows(&HEADER, &listed, none)
    }
}
