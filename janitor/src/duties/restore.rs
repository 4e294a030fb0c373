use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::topic::deletion::{lost, restore};
use rowmq_core::{Error, Result};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// How often the duty looks for messages without a topic.
const EVERY: Duration = Duration::from_secs(60);

/// The look takes at most one part in this many of the sweeper's time, for any number of topics.
const SHARE: u32 = 50;

/// Gives messages of a deleted topic a topic again: an open transaction with an old snapshot can
/// enqueue to a topic that has just been deleted, and the server acknowledges its COMMIT.
#[derive(Debug, Default)]
pub struct Restore {
    /// How long the last look took.
    took: Duration,
}

/// What a run of [`Restore`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct RestoreReport {
    /// The topics that were created for messages without one.
    pub topics: Vec<String>,
}

impl Duty for Restore {
    const NAME: &'static str = "restore";
    type Report = RestoreReport;

    fn interval(&self) -> Duration {
        EVERY.max(self.took * SHARE)
    }

    fn is_notable(report: &RestoreReport) -> bool {
        *report != RestoreReport::default()
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<RestoreReport> {
        let mut report = RestoreReport::default();
        let look = async |conn: &mut Link| lost(conn).await;
        for id in sweep.session.call("look for messages without a topic", look).await? {
            match restore(sweep.session, id).await {
                Ok(name) => {
                    tracing::error!(
                        topic.name = %name, topic.id = id.0,
                        "Messages came into a topic as it was deleted; they have this topic now. \
                         Move them where they belong, or delete it."
                    );
                    report.topics.push(name.to_string());
                }
                // Another sweeper was faster.
                Err(Error::TopicExists { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.took = sweep.now.elapsed();
        Ok(report)
    }
}
