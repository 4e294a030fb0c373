use rowmq_core::connection::{Link, Session};
use rowmq_core::model::Broadcast;
use rowmq_core::store::stream::member::{self, MemberProgress};
use rowmq_core::store::stream::progress::{self, GroupProgress};
use rowmq_core::{Error, TopicName};
use serde::Serialize;

use crate::commands::topic::find;
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show how far a group has come in each partition; of a broadcast group, how far each member with
/// a name has.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// STREAM@GROUP.
    name: TopicName,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Shown(GroupProgress);

const HEADER: [&str; 10] =
    ["partition", "first", "end", "cursor", "mark", "lag", "oldest", "claimed", "held for", "lost"];

impl Row for Shown {
    fn cells(&self) -> Vec<String> {
        let Self(progress) = self;
        vec![
            progress.partition.to_string(),
            progress.first.to_string(),
            progress.end.to_string(),
            progress.cursor.to_string(),
            progress.mark.to_string(),
            progress.lag.to_string(),
            progress.age().map_or_else(|| "-".to_owned(), units::age),
            progress.claimed.to_string(),
            progress.held().map_or_else(|| "-".to_owned(), units::age),
            progress.lost.to_string(),
        ]
    }
}

impl Show {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let topic = find(&mut session, &self.name).await?;
        let group = match (topic.group(), topic.broadcast()) {
            (Some(group), _) => group,
            (None, Some(group)) => return show_members(invocation, &mut session, group).await,
            (None, None) => return Err(Error::NoGroup { topic: topic.name }.into()),
        };
        let read = async |conn: &mut Link| progress::of_group(conn, group).await;
        let progress = session.call("read how far the group has come", read).await?;
        let shown: Vec<_> = progress.into_iter().map(Shown).collect();
        invocation.output.rows(&HEADER, &shown, "The group has no partitions.")
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct ShownMember(MemberProgress);

const MEMBERS_HEADER: [&str; 10] = [
    "member",
    "partition",
    "first",
    "end",
    "next",
    "lag",
    "oldest",
    "lost",
    "worker",
    "reported (UTC)",
];

impl Row for ShownMember {
    fn cells(&self) -> Vec<String> {
        let Self(progress) = self;
        vec![
            progress.member.to_string(),
            progress.partition.to_string(),
            progress.first.to_string(),
            progress.end.to_string(),
            progress.next.to_string(),
            progress.lag.to_string(),
            progress.age().map_or_else(|| "-".to_owned(), units::age),
            progress.lost.to_string(),
            progress.worker.map_or_else(|| "-".to_owned(), |worker| worker.to_string()),
            progress.told_at.format("%F %T").to_string(),
        ]
    }
}

async fn show_members(
    invocation: &Invocation,
    session: &mut Session,
    group: Broadcast,
) -> anyhow::Result<()> {
    let read = async |conn: &mut Link| member::progress(conn, group).await;
    let members = session.call("read how far the members have come", read).await?;
    let shown: Vec<_> = members.into_iter().map(ShownMember).collect();
    let none = "No member of the group has a name: their positions are in their memory.";
    invocation.output.rows(&MEMBERS_HEADER, &shown, none)
}
