use queue_core::TopicName;
use queue_core::connection::Link;
use queue_core::store::stream::standing::{self, Standing};
use serde::Serialize;

use super::find_group;
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show how far a group has come in each partition.
#[derive(Debug, clap::Args)]
pub(crate) struct Show {
    /// STREAM@GROUP.
    name: TopicName,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Shown(Standing);

const HEADER: [&str; 9] =
    ["partition", "first", "end", "cursor", "mark", "lag", "oldest", "claimed", "lost"];

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
            standing.lost.to_string(),
        ]
    }
}

impl Show {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let (_, group) = find_group(&mut session, &self.name).await?;
        let read = async |conn: &mut Link| standing::of_group(conn, group).await;
        let standings = session.call("read how far the group has come", read).await?;
        let shown: Vec<_> = standings.into_iter().map(Shown).collect();
        invocation.output.rows(&HEADER, &shown, "The group has no partitions.")
    }
}
