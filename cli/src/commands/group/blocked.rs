use chrono::{DateTime, Utc};
use rowmq_core::TopicName;
use rowmq_core::connection::Link;
use rowmq_core::store::stream::range::{self, HeldBack};
use serde::Serialize;

use super::find_group;
use crate::invocation::Invocation;
use crate::output::Row;

/// Show the partitions of an ordered group that wait for a message to be tried again.
#[derive(Debug, clap::Args)]
pub(crate) struct Blocked {
    /// STREAM@GROUP.
    name: TopicName,
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Shown(HeldBack);

const REFUSED: &str = "nothing holds its members up, who go on beside what they are to try again; \
     `rowmq group show` shows how far they are";

const HEADER: [&str; 6] =
    ["partition", "offset", "message id", "failures", "next try (UTC)", "last error"];

fn time(at: DateTime<Utc>) -> String {
    at.format("%F %T").to_string()
}

impl Row for Shown {
    fn cells(&self) -> Vec<String> {
        let Self(held) = self;
        vec![
            held.partition.to_string(),
            held.offset.to_string(),
            held.msg_id.map_or_else(|| "pruned".to_owned(), |id| id.to_string()),
            held.failures.to_string(),
            time(held.ready_at),
            held.last_error.clone().unwrap_or_default(),
        ]
    }
}

impl Blocked {
    pub(crate) async fn run(self, invocation: &Invocation) -> anyhow::Result<()> {
        let mut session = invocation.session().await?;
        let (_, group) = find_group(&mut session, &self.name, REFUSED).await?;
        let read = async |conn: &mut Link| range::held_back(conn, group).await;
        let held = session.call("read what is held back", read).await?;
        let shown: Vec<_> = held.into_iter().map(Shown).collect();
        invocation.output.rows(&HEADER, &shown, "Nothing is held back.")
    }
}
