use std::collections::BTreeMap;
use std::time::Duration;

use queue_core::connection::{Link, Session};
use queue_core::store::stream::member::{self, MemberStanding};
use queue_core::store::stream::standing::{self, Standing};
use queue_core::topic::{TopicId, TopicKind};
use queue_core::{Error, Topic, TopicName, store};
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
pub(crate) struct Listed {
    #[serde(flatten)]
    pub(crate) topic: Topic,
    pub(crate) lag: u64,
    lag_ms: Option<u64>,
    claimed: u64,
    held_ms: Option<u64>,
    lost: u64,
}

pub(crate) const HEADER: [&str; 9] =
    ["group", "access", "order", "filter", "lag", "oldest", "claimed", "held for", "lost"];

impl Row for Listed {
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

impl Listed {
    fn group(topic: Topic, standings: &[Standing]) -> Self {
        Self {
            topic,
            lag: standings.iter().map(|one| one.lag).sum(),
            lag_ms: standings.iter().filter_map(|one| one.lag_ms).max(),
            claimed: standings.iter().map(|one| one.claimed).sum(),
            held_ms: standings.iter().filter_map(|one| one.held_ms).max(),
            lost: standings.iter().map(|one| one.lost).sum(),
        }
    }

    /// Of the named members the slowest.
    fn broadcast(topic: Topic, members: &[MemberStanding]) -> Self {
        let mut lags: BTreeMap<_, u64> = BTreeMap::new();
        for one in members {
            *lags.entry(&one.member).or_default() += one.lag;
        }
        Self {
            topic,
            lag: lags.into_values().max().unwrap_or_default(),
            lag_ms: members.iter().filter_map(|one| one.lag_ms).max(),
            claimed: 0,
            held_ms: None,
            lost: members.iter().map(|one| one.lost).sum(),
        }
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
        let listed = read(&mut session, of).await?;
        let none = "There are no groups: create one with `queuectl group create STREAM@GROUP`.";
        invocation.output.rows(&HEADER, &listed, none)
    }
}

/// How far the groups of a stream have come, or all groups.
pub(crate) async fn read(
    session: &mut Session,
    of: Option<TopicId>,
) -> queue_core::Result<Vec<Listed>> {
    let read = async |conn: &mut Link| match of {
        Some(stream) => store::topic::groups_of(conn, stream).await,
        None => store::topic::all(conn).await,
    };
    let mut listed = Vec::new();
    for topic in session.call("list the groups", read).await? {
        if let Some(group) = topic.group() {
            let read = async |conn: &mut Link| standing::of_group(conn, group).await;
            let standings = session.call("read how far the group has come", read).await?;
            listed.push(Listed::group(topic, &standings));
        } else if let Some(group) = topic.broadcast() {
            let read = async |conn: &mut Link| member::standings(conn, group).await;
            let members = session.call("read how far the members have come", read).await?;
            listed.push(Listed::broadcast(topic, &members));
        }
    }
    Ok(listed)
}
