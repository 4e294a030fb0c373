mod ruler;

use std::collections::HashMap;
use std::time::Duration;

use rowmq_core::connection::Session;
use rowmq_core::model::{Backlog, TopicId, TopicSettings};
use rowmq_core::store::{self, backlog};
use rowmq_core::{Result, Topic};
use serde::Serialize;
use tokio::time::Instant;

use self::ruler::Ruler;
use crate::duty::{Duty, Sweep};
use crate::gauges::Gauges;

/// How often the topics are measured: in between, producers may exceed the limit.
const EVERY: Duration = Duration::from_millis(250);

/// Measuring takes at most one part in this many of the sweeper's time, for any number of topics
/// with a limit.
const SHARE: u32 = 10;

/// How often an unchanged measurement is written: often enough to stay valid, seldom enough that
/// old versions of the topic's row do not pile up behind a long transaction.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// How many bodies one run measures. Their mean goes into the mean of earlier ones.
const SAMPLES: usize = 16;

/// Measures the topics that have a limit, and closes and opens them.
#[derive(Debug, Default)]
pub struct Backlogs {
    topics: HashMap<TopicId, Measuring>,
    gauges: Gauges,
    /// How long the last run took.
    took: Duration,
}

/// What a run of [`Backlogs`] did.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize)]
pub struct BacklogsReport {
    /// Topics measured.
    pub measured: usize,
    /// How many of them are full.
    pub full: usize,
    /// How many became full, or accept messages again.
    pub turned: usize,
}

/// What is kept about a topic between two runs.
#[derive(Debug, Default)]
struct Measuring {
    ruler: Ruler,
    /// The recent mean size of a message in bytes.
    mean_bytes: Option<f64>,
    written_at: Option<Instant>,
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy)]
struct Counted {
    depth: u64,
    bytes: Option<u64>,
    /// Whether everything was counted.
    is_whole: bool,
}

impl Counted {
    /// Judges the topic by this count, given its last state.
    fn judged(self, was: Option<Backlog>, settings: &TopicSettings) -> Backlog {
        let was = was.filter(|was| was.full);
        // The previous sweeper has counted messages of a full topic that this one has not counted
        // yet.
        let unseen = was.filter(|_| !self.is_whole);
        let depth = unseen.map_or(0, |was| was.depth).max(self.depth);
        let before = unseen.and_then(|was| was.bytes).unwrap_or(0);
        let bytes = self.bytes.map(|bytes| bytes.max(before));
        Backlog::measured(depth, bytes, was.is_some(), settings)
    }
}

impl Duty for Backlogs {
    const NAME: &'static str = "backlog";
    type Report = BacklogsReport;

    fn interval(&self) -> Duration {
        EVERY.max(self.took * SHARE)
    }

    fn is_notable(report: &BacklogsReport) -> bool {
        report.turned > 0
    }

    fn rest(&mut self) {
        self.gauges.forget();
    }

    async fn run_once(&mut self, sweep: &mut Sweep<'_>) -> Result<BacklogsReport> {
        let mut report = BacklogsReport::default();
        let limited = async |conn: &mut _| store::topic::limited(conn).await;
        let topics = sweep.session.call("list the topics with a limit", limited).await?;
        self.topics.retain(|id, _| topics.iter().any(|topic| topic.id == *id));
        for topic in &topics {
            let measuring = self.topics.entry(topic.id).or_default();
            let backlog = measuring.measure(sweep.session, topic).await?;
            self.gauges.backlog(topic.name.as_str(), backlog);
            report.measured += 1;
            report.full += usize::from(backlog.full);
            let turned = topic.backlog.is_some_and(|was| was.full) != backlog.full;
            report.turned += usize::from(turned);
            if turned || measuring.written_at.is_none_or(|at| at.elapsed() >= RENEW_EVERY) {
                let write = async |conn: &mut _| backlog::publish(conn, topic, backlog).await;
                let written = sweep.session.transaction("write down a backlog", write).await?;
                measuring.written_at = written.then(Instant::now);
                if turned && written {
                    log(topic, backlog);
                }
            }
        }
        self.gauges.look_ended();
        self.took = sweep.now.elapsed();
        Ok(report)
    }
}

impl Measuring {
    async fn measure(&mut self, session: &mut Session, topic: &Topic) -> Result<Backlog> {
        self.ruler.measure(session, topic.id).await?;
        let depth = self.ruler.total();
        let bytes = match topic.settings.max_bytes {
            Some(_) => Some(self.bytes(session, topic, depth).await?),
            None => None,
        };
        let counted = Counted { depth, bytes, is_whole: self.ruler.is_whole() };
        Ok(counted.judged(topic.backlog, &topic.settings))
    }

    /// Returns this many messages times the mean of the sampled ones.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate above zero"
    )]
    async fn bytes(&mut self, session: &mut Session, topic: &Topic, depth: u64) -> Result<u64> {
        let places = self.ruler.places(SAMPLES, &mut rand::rng());
        let look = async |conn: &mut _| backlog::sizes(conn, topic.id, &places).await;
        let sizes = session.call("measure a topic", look).await?;
        if !sizes.is_empty() {
            let mean = sizes.iter().sum::<u64>() as f64 / sizes.len() as f64;
            let before = self.mean_bytes.filter(|_| depth > SAMPLES as u64);
            self.mean_bytes = Some(before.map_or(mean, |before| before.mul_add(0.75, mean * 0.25)));
        }
        Ok((self.mean_bytes.unwrap_or(0.0) * depth as f64) as u64)
    }
}

fn log(topic: &Topic, backlog: Backlog) {
    let (depth, bytes) = (backlog.depth, backlog.bytes);
    if backlog.full {
        tracing::warn!(
            topic.name = %topic.name, backlog.depth = depth, backlog.bytes = bytes,
            "Topic is full and takes no messages until its consumers have caught up."
        );
    } else {
        tracing::info!(
            topic.name = %topic.name, backlog.depth = depth, backlog.bytes = bytes,
            "Topic is no longer full and takes messages again."
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn a_full_topic_stays_full_while_a_new_sweeper_has_not_counted_all_of_it() {
        let max_depth = NonZeroU64::new(1_000_000);
        let mut settings = TopicSettings { max_depth, ..TopicSettings::default() };
        let was = Backlog { depth: 1_200_000, bytes: None, full: true };
        let part = Counted { depth: 200_000, bytes: None, is_whole: false };
        assert_eq!(part.judged(Some(was), &settings), was);
        assert!(!part.judged(None, &settings).full, "no measurement says that it is");
        assert!(!Counted { is_whole: true, ..part }.judged(Some(was), &settings).full);
        settings.max_depth = NonZeroU64::new(2_000_000);
        assert!(!part.judged(Some(was), &settings).full, "its limit was raised");
    }
}
