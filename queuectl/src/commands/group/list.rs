use std::time::Duration;

use queue_core::connection::Link;
use queue_core::store::stream::standing;
use queue_core::{Error, TopicName, store};
use serde::Serialize;

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

#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    topic: queue_core::Topic,
    lag: u64,
    lag_ms: Option<u64>,
    claimed: u64,
    lost: u64,
}

const HEADER: [&str; 8] =
    ["group", "access", "order", "filter", "lag", "oldest", "claimed", "lost"];

impl Row for Listed {
    fn cells(&self) -> Vec<String> {
        let ordered = self.topic.group().is_some_and(|group| group.ordered);
        let oldest = self.lag_ms.map(Duration::from_millis).map(units::age);
        vec![
            self.topic.name.to_string(),
            access_words(&self.topic),
            if ordered { "ordered" } else { "none" }.to_owned(),
            filter(&self.topic.settings),
            self.lag.to_string(),
            oldest.unwrap_or_else(|| "-".to_owned()),
            self.claimed.to_string(),
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
        let read = async |conn: &mut Link| match of {
            Some(stream) => store::topic::groups_of(conn, stream).await,
            None => store::topic::all(conn).await,
        };
        let mut listed = Vec::new();
        for topic in session.call("list the groups", read).await? {
            let Some(group) = topic.group() else { continue };
            let read = async |conn: &mut Link| standing::of_group(conn, group).await;
            let standings = session.call("read how far the group has come", read).await?;
            listed.push(Listed {
                topic,
                lag: standings.iter().map(|one| one.lag).sum(),
                lag_ms: standings.iter().filter_map(|one| one.lag_ms).max(),
                claimed: standings.iter().map(|one| one.claimed).sum(),
                lost: standings.iter().map(|one| one.lost).sum(),
            });
        }
        let none = "There are no groups: create one with `queuectl group create STREAM@GROUP`.";
        invocation.output.rows(&HEADER, &listed, none)
    }
}
