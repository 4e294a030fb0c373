use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::topic::weigh;
use rowmq_core::{Result, store};
use serde::Serialize;

use crate::duty::{Duty, Sweep};
use crate::gauges::Gauges;

/// How often the topics are weighed.
const EVERY: Duration = Duration::from_secs(60);

/// Weighing takes at most one part in this many of the sweeper's time, for any number of topics.
const SHARE: u32 = 50;

/// Weighs the topics and the streams' logs for the metrics endpoint.
#[derive(Debug, Default)]
pub struct Weigh {
    gauges: Gauges,
    /// How long the last run took.
    took: Duration,
}

/// What a run of [`Weigh`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct WeighReport {
    /// About how many bytes all topics hold.
    pub bytes: u64,
    /// Messages in the streams' logs.
    pub log_messages: u64,
}

impl Duty for Weigh {
    const NAME: &'static str = "weigh";
    type Report = WeighReport;

    fn interval(&self) -> Duration {
        EVERY.max(self.took * SHARE)
    }

    fn is_notable(_: &WeighReport) -> bool {
        false
    }

    fn rest(&mut self) {
        self.gauges.forget();
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<WeighReport> {
        let mut report = WeighReport::default();
        let all = async |conn: &mut Link| store::topic::all(conn).await;
        for topic in sweep.session.call("list the topics", all).await? {
            let look = async |conn: &mut Link| weigh(conn, &topic).await;
            let weight = sweep.session.call("weigh a topic", look).await?;
            self.gauges.weight(topic.name.as_str(), &weight);
            report.bytes = report.bytes.saturating_add(weight.bytes);
            report.log_messages += weight.log.map_or(0, |log| log.messages);
        }
        self.gauges.look_ended();
        self.took = sweep.now.elapsed();
        Ok(report)
    }
}
