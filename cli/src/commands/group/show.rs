use rowmq_core::connection::{Link, Session};
use rowmq_core::model::Broadcast;
use rowmq_core::store::stream::member::{self, MemberStanding};
use rowmq_core::store::stream::standing::{self, Standing};
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
struct Shown(Standing);

const HEADER: [&str; 10] =
    ["partition", "first", "end", "cursor", "mark", "lag", "oldest", "claimed", "held for", "lost"];

impl Row for Shown {
    fn cells(&self) -> Vec<String> {
        let Self(standing) = self;
        vec![
            standing.partition.to_string(),
            standing.first.to_string(),
            standing.end.to_string(),
            standing.cursor.to_string(),
            standing.mark.to_string(),
            standing.lag.to_string(),
            standing.age().map_or_else(|| "-".to_owned(), units::age),
            standing.claimed.to_string(),
            standing.held().map_or_else(|| "-".to_owned(), units::age),
            standing.lost.to_string(),
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
        let read = async |conn: &mut Link| standing::of_group(conn, group).await;
        let standings = session.call("read how far the group has come", read).await?;
        let shown: Vec<_> = standings.into_iter().map(Shown).collect();
        invocation.output.rows(&HEADER, &shown, "The group has no partitions.")
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct ShownMember(MemberStanding);

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
        let Self(standing) = self;
        vec![
            standing.member.to_string(),
            standing.partition.to_string(),
            standing.first.to_string(),
            standing.end.to_string(),
            standing.next.to_string(),
            standing.lag.to_string(),
            standing.age().map_or_else(|| "-".to_owned(), units::age),
            standing.lost.to_string(),
            standing.worker.map_or_else(|| "-".to_owned(), |worker| worker.to_string()),
            standing.told_at.format("%F %T").to_string(),
        ]
    }
}

async fn show_members(
    invocation: &Invocation,
    session: &mut Session,
    group: Broadcast,
) -> anyhow::Result<()> {
    let read = async |conn: &mut Link| member::standings(conn, group).await;
    let members = session.call("read how far the members have come", read).await?;
    let shown: Vec<_> = members.into_iter().map(ShownMember).collect();
    let none = "No member of the group has a name: their positions are in their memory.";
    invocation.output.rows(&MEMBERS_HEADER, &shown, none)
}
