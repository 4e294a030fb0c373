use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::connection::Link;
use rowmq_core::model::ScheduleName;
use rowmq_core::schedule;
use rowmq_core::{Error, Result, store, telemetry};
use serde::Serialize;
use tokio::time::Instant;

use crate::duty::{Duty, Sweep};

/// The most schedules of one run.
const BATCH: u32 = 1000;

/// How long a schedule whose messages are refused is left alone.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Enqueues the messages of schedules that are due.
#[derive(Debug, Default)]
pub struct Tick {
    /// When the next known tick is due.
    next: Option<Instant>,
    /// Schedules whose messages are refused, and since when they are left alone.
    refused: HashMap<ScheduleName, Instant>,
}

/// What a run of [`Tick`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct TickReport {
    /// Messages enqueued.
    pub enqueued: usize,
    /// Schedules whose messages are refused.
    pub refused: usize,
}

impl Duty for Tick {
    const NAME: &'static str = "tick";
    type Report = TickReport;

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn is_notable(report: &TickReport) -> bool {
        report.enqueued > 0
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<TickReport> {
        let mut report = TickReport::default();
        self.next = None;
        self.refused.retain(|_, since| since.elapsed() < REFUSED_PAUSE);
        let look = async |conn: &mut Link| store::schedule::next(conn, BATCH).await;
        for next in sweep.session.call("tick", look).await? {
            if self.refused.contains_key(&next.name) {
                report.refused += 1;
                continue;
            }
            if !next.wait.is_zero() {
                self.next = Some(Instant::now() + next.wait);
                break;
            }
            let tick = async |conn: &mut Link| schedule::tick(conn, &next.name).await;
            match sweep.session.transaction("tick", tick).await {
                Ok(enqueued) => report.enqueued += enqueued,
                Err(error) if !is_its_own(&error) && error.is_transient() => return Err(error),
                Err(error) if sweep.session.is_lost() => return Err(error),
                Err(error) => {
                    report.refused += 1;
                    tracing::warn!(
                        schedule.name = %next.name, %error, "Schedule cannot enqueue its message."
                    );
                    self.refused.insert(next.name, Instant::now());
                }
            }
        }
        telemetry::ticked(report.enqueued);
        Ok(report)
    }

    fn wants_run_at(&self) -> Option<Instant> {
        self.next
    }
}

/// Returns whether the error concerns only this schedule's topic, not the other schedules.
fn is_its_own(error: &Error) -> bool {
    matches!(error, Error::TopicFull { .. } | Error::TopicPaused { .. })
}
