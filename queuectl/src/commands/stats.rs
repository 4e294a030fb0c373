use std::time::Duration;

use queue_core::connection::{Link, Session};
use queue_core::store::inspect::{DEPTH_CAP, Depth};
use queue_core::topic::{Access, Backlog};
use queue_core::{Topic, TopicName, store};
use serde::Serialize;

use super::topic::{access_words, find};
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
pub(super) struct Stat {
    pub(super) topic: TopicName,
    access: Access,
    effective_access: Access,
    #[serde(skip)]
    access_words: String,
    #[serde(flatten)]
    pub(super) depth: Depth,
    counted_up_to: u64,
    backlog: Option<Backlog>,
}

pub(super) const HEADER: [&str; 7] =
    ["topic", "access", "unsettled", "claimed", "scheduled", "dead", "oldest"];

impl Stat {
    fn count(&self, n: u64) -> String {
        if n < self.counted_up_to { n.to_string() } else { format!("{DEPTH_CAP}+") }
    }

    /// Beyond what is counted here a topic that has a limit knows more, about.
    fn unsettled(&self) -> String {
        match self.backlog {
            Some(backlog) if self.depth.unsettled >= self.counted_up_to => {
                format!("~{}", backlog.depth.max(self.counted_up_to))
            }
            _ => self.count(self.depth.unsettled),
        }
    }
}

impl Row for Stat {
    fn cells(&self) -> Vec<String> {
        let depth = &self.depth;
        let oldest = depth.oldest_age_ms.map(Duration::from_millis).map(units::age);
        vec![
            self.topic.to_string(),
            self.access_words.clone(),
            self.unsettled(),
            depth.claimed.to_string(),
            self.count(depth.scheduled),
            self.count(depth.dead),
            oldest.unwrap_or_else(|| "-".to_owned()),
        ]
    }
}

impl Stats {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let stats = read(&mut session, &self.topics).await?;
        invocation.output.rows(&HEADER, &stats, super::topic::NO_TOPICS)
    }
}

/// What these topics hold; all topics if none is named.
pub(super) async fn read(
    session: &mut Session,
    names: &[TopicName],
) -> queue_core::Result<Vec<Stat>> {
    let mut topics: Vec<Topic> = Vec::new();
    if names.is_empty() {
        topics =
            session.call("list the topics", async |conn| store::topic::all(conn).await).await?;
    }
    for name in names {
        topics.push(find(session, name).await?);
    }
    let mut stats = Vec::new();
    for topic in topics {
        let depth = async |conn: &mut Link| store::inspect::depth(conn, topic.id).await;
        stats.push(Stat {
            depth: session.call("read the topic's depth", depth).await?,
            access: topic.access,
            effective_access: topic.effective_access,
            access_words: access_words(&topic),
            counted_up_to: DEPTH_CAP,
            backlog: topic.backlog,
            topic: topic.name,
        });
    }
    Ok(stats)
}
