use std::time::Duration;

use rowmq_core::connection::{Link, Session};
use rowmq_core::model::{Access, Backlog};
use rowmq_core::store::inspect::{DEPTH_CAP, Depth};
use rowmq_core::topic::{Weight, weigh};
use rowmq_core::{Fault, Topic, TopicName, store};
use serde::Serialize;

use super::topic::{access_words, find};
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show how much each topic holds, and how old it is.
///
/// Counts stop at 10000, so that asking costs a busy server nothing. BYTES are those of bodies and
/// headers, estimated from a few of them: of what is unsettled, and of a stream's log. LOG is what
/// the log of a stream keeps, and since when.
#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The topics that hold most bytes first.
    #[arg(long)]
    largest: bool,
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
    /// `None` for an account that may not read bodies.
    #[serde(flatten)]
    weight: Option<Weight>,
}

pub(super) const HEADER: [&str; 9] =
    ["topic", "access", "unsettled", "claimed", "scheduled", "dead", "oldest", "bytes", "log"];

impl Stat {
    fn count(&self, n: u64) -> String {
        if n < self.counted_up_to { n.to_string() } else { format!("{DEPTH_CAP}+") }
    }

    /// Beyond the counted range, a topic with a limit has an approximate count.
    fn unsettled(&self) -> String {
        match self.backlog {
            Some(backlog) if self.depth.unsettled >= self.counted_up_to => {
                format!("~{}", backlog.depth.max(self.counted_up_to))
            }
            _ => self.count(self.depth.unsettled),
        }
    }
}

impl Stat {
    fn bytes(&self) -> String {
        match &self.weight {
            None => "?".to_owned(),
            Some(weight) if weight.bytes == 0 => "0".to_owned(),
            Some(weight) => format!("~{}", units::about(weight.bytes)),
        }
    }

    fn log(&self) -> String {
        let Some(log) = self.weight.as_ref().and_then(|weight| weight.log.as_ref()) else {
            return "-".to_owned();
        };
        let since = log.oldest_age_ms.map(Duration::from_millis).map(units::age);
        since.map_or_else(|| "0".to_owned(), |since| format!("{}, {since}", log.messages))
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
            self.bytes(),
            self.log(),
        ]
    }
}

impl Stats {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let mut stats = read(&mut session, &self.topics).await?;
        if self.largest {
            let bytes = |stat: &Stat| stat.weight.as_ref().map_or(0, |weight| weight.bytes);
            stats.sort_by_key(|stat| std::cmp::Reverse(bytes(stat)));
        }
        invocation.output.rows(&HEADER, &stats, super::topic::NO_TOPICS)
    }
}

/// What these topics hold; all topics if none is named.
pub(super) async fn read(
    session: &mut Session,
    names: &[TopicName],
) -> rowmq_core::Result<Vec<Stat>> {
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
        let depth = session.call("read the topic's depth", depth).await?;
        let weight = weight(session, &topic).await?;
        stats.push(Stat {
            access: topic.access,
            effective_access: topic.effective_access,
            access_words: access_words(&topic),
            depth,
            counted_up_to: DEPTH_CAP,
            backlog: topic.backlog,
            weight,
            topic: topic.name,
        });
    }
    Ok(stats)
}

/// `None` for an account that may read no bodies.
async fn weight(session: &mut Session, topic: &Topic) -> rowmq_core::Result<Option<Weight>> {
    let look = async |conn: &mut Link| weigh(conn, topic).await;
    match session.call("weigh the topic", look).await {
        Err(error) if error.fault() == Fault::Denied => Ok(None),
        weight => weight.map(Some),
    }
}
