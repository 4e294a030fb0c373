use std::time::Duration;

use queue_core::store::inspect::{DEPTH_CAP, Depth};
use queue_core::topic::TopicState;
use queue_core::{Topic, TopicName, store};
use serde::Serialize;

use super::topic::{find, state_word};
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show how much the topics hold, and since when.
///
/// Counts stop at 10000, so that asking costs a busy server nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// These topics; all of them unless named.
    #[arg(value_name = "TOPIC")]
    topics: Vec<TopicName>,
}

#[derive(Debug, Serialize)]
struct Stat {
    topic: TopicName,
    #[serde(flatten)]
    state: TopicState,
    #[serde(flatten)]
    depth: Depth,
    counted_up_to: u64,
}

const HEADER: [&str; 7] = ["topic", "state", "unsettled", "claimed", "scheduled", "dead", "oldest"];

impl Row for Stat {
    fn cells(&self) -> Vec<String> {
        let count = |n: u64| {
            if n < self.counted_up_to { n.to_string() } else { format!("{DEPTH_CAP}+") }
        };
        let depth = &self.depth;
        let oldest = depth.oldest_age_ms.map(Duration::from_millis).map(units::age);
        vec![
            self.topic.to_string(),
            state_word(self.state).to_owned(),
            count(depth.unsettled),
            depth.claimed.to_string(),
            count(depth.scheduled),
            count(depth.dead),
            oldest.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

impl Stats {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let mut topics: Vec<Topic> = Vec::new();
        if self.topics.is_empty() {
            topics =
                session.call("list the topics", async |conn| store::topic::all(conn).await).await?;
        }
        for name in &self.topics {
            topics.push(find(&mut session, name).await?);
        }
        let mut stats = Vec::new();
        for topic in topics {
            let depth = session
                .call("read the topic's depth", async |conn| {
                    store::inspect::depth(conn, topic.id).await
                })
                .await?;
            let (topic, state) = (topic.name, topic.state);
            stats.push(Stat { topic, state, depth, counted_up_to: DEPTH_CAP });
        }
        invocation.output.rows(&HEADER, &stats, super::topic::NO_TOPICS)
    }
}
