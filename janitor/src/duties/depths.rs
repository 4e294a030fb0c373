use std::time::Duration;

use queue_core::store::stream::{member, standing};
use queue_core::{Result, store, telemetry};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// Measures the topics' depths for the metrics endpoint, so that scrapes ask nothing of the server.
#[derive(Debug, Default)]
pub struct Depths;

/// What a run of [`Depths`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct DepthsReport {
    /// Topics measured.
    pub topics: usize,
}

impl Duty for Depths {
    const NAME: &'static str = "depths";
    type Report = DepthsReport;

    fn interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn is_notable(_: &DepthsReport) -> bool {
        false
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<DepthsReport> {
        let all = async |conn: &mut _| store::topic::all(conn).await;
        let topics = sweep.session.call("list the topics", all).await?;
        for topic in &topics {
            let depth = sweep
                .session
                .call("measure a topic", async |conn| store::inspect::depth(conn, topic.id).await)
                .await?;
            telemetry::depth(topic.name.as_str(), &depth);
            if let Some(group) = topic.group() {
                let read = async |conn: &mut _| standing::of_group(conn, group).await;
                let standings = sweep.session.call("read how far a group has come", read).await?;
                telemetry::lag(topic.name.as_str(), &standings);
            }
            if let Some(group) = topic.broadcast() {
                let read = async |conn: &mut _| member::standings(conn, group).await;
                let members = sweep.session.call("read how far the members have come", read);
                telemetry::lag_of_members(topic.name.as_str(), &members.await?);
            }
        }
        Ok(DepthsReport { topics: topics.len() })
    }
}
