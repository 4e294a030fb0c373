use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::store::stream::inbox;
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{Error, Result, store, telemetry};
use serde::Serialize;

use crate::duty::{Duty, Sweep};

/// The most messages of one transaction.
const BATCH: u32 = 1000;

/// The most transactions for each stream in a run.
const TURNS: usize = 10;

/// Gives messages their offsets in streams that no group reads at the moment.
#[derive(Debug, Default)]
pub struct Sequence;

/// What a run of [`Sequence`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct SequenceReport {
    /// Messages that got their offset.
    pub sequenced: usize,
}

impl Duty for Sequence {
    const NAME: &'static str = "sequence";
    type Report = SequenceReport;

    /// Consumers do this at once; this duty is for streams without consumers.
    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_notable(_: &SequenceReport) -> bool {
        false
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<SequenceReport> {
        let mut report = SequenceReport::default();
        let all = async |conn: &mut Link| store::topic::all(conn).await;
        let topics = sweep.session.call("list the topics", all).await?;
        for topic in topics.iter().filter(|topic| topic.is_stream()) {
            let look = async |conn: &mut Link| inbox::is_empty(conn, topic.id).await;
            if sweep.session.call("look into the inbox", look).await? {
                continue;
            }
            for _ in 0..TURNS {
                let turn = async |conn: &mut Link| {
                    sequence(conn, topic.id, BATCH, Contention::Leave).await
                };
                let done = match sweep.session.transaction("sequence", turn).await {
                    // Another session has purged a row in the meantime.
                    Err(Error::Counts { .. }) => break,
                    other => other?,
                };
                telemetry::sequenced(done.messages);
                report.sequenced += done.messages;
                if !done.more {
                    break;
                }
            }
        }
        Ok(report)
    }
}
