use std::time::Duration;

use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::store::stream::holding::{self, GroupClaim, Held};
use serde::Serialize;

use super::find_group;
use crate::invocation::Invocation;
use crate::output::Row;
use crate::units;

/// Show what the members of a group have claimed, the oldest claim first.
///
/// A member that has claimed nothing at the moment is not shown: members of a group are not written
/// down anywhere but in what they hold.
#[derive(Debug, clap::Args)]
pub(crate) struct Members {
    /// STREAM@GROUP.
    name: TopicName,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Shown(GroupClaim);

const REFUSED: &str = "its members claim nothing; `rowmq group show` has each that has a name";

const HEADER: [&str; 8] =
    ["worker", "client", "state", "partition", "mark", "end", "messages", "held for"];

impl Row for Shown {
    fn cells(&self) -> Vec<String> {
        let Self(claim) = self;
        let [partition, mark, end] = match claim.held {
            Held::Log { partition, mark, hi } => {
                [partition.to_string(), mark.to_string(), hi.to_string()]
            }
            Held::Retries => ["retries", "-", "-"].map(str::to_owned),
        };
        vec![
            claim.worker.to_string(),
            claim.client_id.clone().unwrap_or_else(|| "-".to_owned()),
            claim.state.clone().unwrap_or_else(|| "-".to_owned()),
            partition,
            mark,
            end,
            claim.messages.to_string(),
            units::age(Duration::from_millis(claim.age_ms)),
        ]
    }
}

impl Members {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let (_, group) = find_group(&mut session, &self.name, REFUSED).await?;
        let read = async |conn: &mut Link| holding::claims_of_group(conn, group).await;
        let claims = session.call("read what the members hold", read).await?;
        let shown: Vec<_> = claims.into_iter().map(Shown).collect();
        invocation.output.rows(&HEADER, &shown, "No member of the group has claimed anything.")
    }
}
