use std::collections::BTreeMap;

use serde::Serialize;

use crate::connection::{Link, Session};
use crate::model::{Result, Topic, TopicId};
use crate::store;
use crate::store::stream::member::{self, MemberProgress};
use crate::store::stream::progress::{self, GroupProgress};

/// A group's progress, over all partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct GroupStatus {
    /// Its own topic.
    #[serde(flatten)]
    pub topic: Topic,
    /// Messages that it has not finished; for a broadcast group, those of its slowest named member.
    pub lag: u64,
    /// How long the oldest of those has been in the log, in milliseconds; `None` if there is none.
    pub lag_ms: Option<u64>,
    /// How many of those its members have claimed.
    pub claimed: u64,
    /// How long the oldest claim has been held, in milliseconds; `None` if there is none.
    pub held_ms: Option<u64>,
    /// Messages that retention removed before they were read.
    pub lost: u64,
}

impl GroupStatus {
    fn group(topic: Topic, progress: &[GroupProgress]) -> Self {
        Self {
            topic,
            lag: progress.iter().map(|one| one.lag).sum(),
            lag_ms: progress.iter().filter_map(|one| one.lag_ms).max(),
            claimed: progress.iter().map(|one| one.claimed).sum(),
            held_ms: progress.iter().filter_map(|one| one.held_ms).max(),
            lost: progress.iter().map(|one| one.lost).sum(),
        }
    }

    /// The progress of the slowest named member.
    fn broadcast(topic: Topic, members: &[MemberProgress]) -> Self {
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

/// Returns the progress of the groups of a stream, or of all groups.
pub async fn groups(session: &mut Session, of: Option<TopicId>) -> Result<Vec<GroupStatus>> {
    let read = async |conn: &mut Link| match of {
        Some(stream) => store::topic::groups_of(conn, stream).await,
        None => store::topic::all(conn).await,
    };
    let mut groups = Vec::new();
    for topic in session.call("list the groups", read).await? {
        if let Some(group) = topic.group() {
            let read = async |conn: &mut Link| progress::of_group(conn, group).await;
            let progress = session.call("read how far the group has come", read).await?;
            groups.push(GroupStatus::group(topic, &progress));
        } else if let Some(group) = topic.broadcast() {
            let read = async |conn: &mut Link| member::progress(conn, group).await;
            let members = session.call("read how far the members have come", read).await?;
            groups.push(GroupStatus::broadcast(topic, &members));
        }
    }
    Ok(groups)
}
