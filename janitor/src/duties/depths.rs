use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::model::TopicId;
use rowmq_core::store::stream::{member, progress};
use rowmq_core::{Result, store};
use serde::Serialize;

use crate::duty::{Duty, Sweep};
use crate::gauges::Gauges;

/// Measures the topics' depths for the metrics endpoint, so that scrapes query nothing from the
/// server.
#[derive(Debug, Default)]
pub struct Depths {
    gauges: Gauges,
}

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

    fn rest(&mut self) {
        self.gauges.forget();
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<DepthsReport> {
        let all = async |conn: &mut _| store::topic::all(conn).await;
        let topics = sweep.session.call("list the topics", all).await?;
        let kept_for: HashMap<TopicId, Duration> = topics
            .iter()
            .filter_map(|topic| Some((topic.id, topic.settings.retention.time?)))
            .collect();
        for topic in &topics {
            let depth = sweep
                .session
                .call("measure a topic", async |conn| store::inspect::depth(conn, topic.id).await)
                .await?;
            self.gauges.depth(topic.name.as_str(), &depth);
            if let Some(group) = topic.group() {
                let read = async |conn: &mut _| progress::of_group(conn, group).await;
                let progress = sweep.session.call("read how far a group has come", read).await?;
                let kept_for = kept_for.get(&group.stream).copied();
                self.gauges.lag(topic.name.as_str(), &progress, kept_for);
            }
            if let Some(group) = topic.broadcast() {
                let read = async |conn: &mut _| member::progress(conn, group).await;
                let members = sweep.session.call("read how far the members have come", read);
                let kept_for = kept_for.get(&group.stream).copied();
                self.gauges.lag_of_members(topic.name.as_str(), &members.await?, kept_for);
            }
        }
        self.gauges.look_ended();
        Ok(DepthsReport { topics: topics.len() })
    }
}
