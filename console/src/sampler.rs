//! What open pages show. One task looks at the server for the pages of all clients.

mod history;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rowmq_core::connection::{Link, Session};
use rowmq_core::inspect::{
    DutyReport, GroupStatus, WorkerStatus, Workers, duties, groups, workers,
};
use rowmq_core::model::{Throughput, TopicId};
use rowmq_core::store::inspect::Depth;
use rowmq_core::store::{self, stream::partition};
use rowmq_core::{Error, Fault, Result, Topic, TopicName};
use rowmq_service::health::Health;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::history::Histories;
pub(crate) use self::history::{Point, Rates};
use crate::database::Database;

/// The interval between looks at the server.
const INTERVAL: Duration = Duration::from_secs(2);

/// The pause after a look is this many times as long as the look, so that looks cost the server at
/// most a tenth of one connection.
const REST: u32 = 9;

/// How often the resting loop reports that it is alive: a rest can be long after a long look, and a
/// probe must not take that for a hang.
const TURN: Duration = Duration::from_secs(5);

/// The latest snapshot. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    seen: watch::Receiver<Arc<Snapshot>>,
    wanted: Arc<Notify>,
}

impl Live {
    pub(crate) fn now(&self) -> Arc<Snapshot> {
        Arc::clone(&self.seen.borrow())
    }

    /// The topic, even one that was created since the last look.
    pub(crate) async fn topic(&self, name: &TopicName) -> Result<TopicNow> {
        if self.now().topic(name).is_none() {
            self.look_again().await;
        }
        let unknown = || Error::UnknownTopic { topic: name.clone() };
        self.now().topic(name).cloned().ok_or_else(unknown)
    }

    /// A receiver of every new snapshot.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.seen.clone()
    }

    /// Asks for a look soon and waits for it, so that a user who has changed something sees the
    /// change. The wait is short: if the server does not answer, the page itself shows that.
    pub(crate) async fn look_again(&self) {
        let asked = Instant::now();
        let mut seen = self.seen.clone();
        self.wanted.notify_one();
        // A look that began before the change may not have seen it.
        let later = seen.wait_for(|it| it.began.is_some_and(|began| began >= asked));
        drop(tokio::time::timeout(INTERVAL, later).await);
    }
}

/// What one look saw.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct Snapshot {
    /// The number of the look.
    pub(crate) no: u64,
    /// When, by the server's clock; nothing before the first look.
    pub(crate) at: Option<DateTime<Utc>>,
    /// When the look began, by the clock of this process. `None` before the first look.
    #[serde(skip)]
    pub(crate) began: Option<Instant>,
    /// How long the look took, in milliseconds.
    pub(crate) took_ms: u64,
    /// Why the last look failed; the rest of the snapshot is then older.
    pub(crate) failure: Option<String>,
    /// The topics, groups too.
    pub(crate) topics: Vec<TopicNow>,
    /// The groups of streams.
    pub(crate) groups: Vec<GroupNow>,
    /// The workers that are alive.
    pub(crate) workers: Vec<WorkerStatus>,
    /// The duties of the janitor.
    pub(crate) duties: Vec<DutyReport>,
}

/// A topic, how much it holds, and how that changes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct TopicNow {
    #[serde(flatten)]
    pub(crate) topic: Topic,
    #[serde(flatten)]
    pub(crate) depth: Depth,
    /// Messages in its log, if it is a stream.
    pub(crate) logged: Option<u64>,
    /// How fast these change.
    pub(crate) rates: Rates,
    #[serde(skip)]
    pub(crate) history: Arc<[Point]>,
}

/// A group, its progress, and its speed.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct GroupNow {
    #[serde(flatten)]
    pub(crate) status: GroupStatus,
    /// Messages that it handles a second.
    pub(crate) handled_per_second: Option<f64>,
    #[serde(skip)]
    pub(crate) history: Arc<[Point]>,
}

impl Snapshot {
    pub(crate) fn topic(&self, name: &TopicName) -> Option<&TopicNow> {
        self.topics.iter().find(|one| one.topic.name == *name)
    }

    pub(crate) fn group(&self, name: &TopicName) -> Option<&GroupNow> {
        self.groups.iter().find(|one| one.status.topic.name == *name)
    }
}

/// What one look reads.
struct Look {
    at: DateTime<Utc>,
    topics: Vec<(Topic, Depth, Option<Log>)>,
    groups: Vec<GroupStatus>,
    workers: Vec<WorkerStatus>,
    duties: Vec<DutyReport>,
    throughput: HashMap<TopicId, Throughput>,
}

/// The log of a stream, all partitions together.
#[derive(Debug, Clone, Copy)]
struct Log {
    /// Messages that it has ever had.
    appended: u64,
    /// Those that it keeps.
    kept: u64,
}

/// Begins to look, until the process ends.
pub(crate) fn start(database: Database, health: Health, ending: CancellationToken) -> Live {
    let (tell, seen) = watch::channel(Arc::new(Snapshot::default()));
    let wanted = Arc::new(Notify::new());
    let live = Live { seen, wanted: Arc::clone(&wanted) };
    tokio::spawn(async move {
        let mut histories = Histories::default();
        let mut no = 0;
        while !ending.is_cancelled() {
            let began = Instant::now();
            let turning = health.clone();
            let looked = database.read(move |it| Box::pin(look(it, turning))).await;
            let took = began.elapsed();
            health.alive();
            health.ready(looked.as_ref().map(drop).map_err(ToString::to_string));
            no += 1;
            let before = Arc::clone(&tell.borrow());
            let mut next = match looked {
                Ok(look) => histories.with(look),
                Err(error) => Snapshot {
                    failure: Some(rowmq_service::process::sentence(&error.into())),
                    ..Snapshot::clone(&before)
                },
            };
            next.no = no;
            next.began = Some(began);
            next.took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            // A server that failed to answer gets no longer rest: users wait for it to come back.
            let times = if next.failure.is_some() { 1 } else { REST };
            let rest = INTERVAL.saturating_sub(took).max(took * times);
            tell.send_replace(Arc::new(next));
            ending.run_until_cancelled(woken(&health, &wanted, took, rest)).await;
        }
    });
    live
}

/// Rests until a page asks for another look, but at least for as long as the last look took, so
/// that half of the time is rest.
async fn woken(health: &Health, wanted: &Notify, took: Duration, rest: Duration) {
    let rested = tokio::time::Instant::now();
    loop {
        health.alive();
        let must = took.saturating_sub(rested.elapsed());
        let may = rest.saturating_sub(rested.elapsed());
        if !must.is_zero() {
            tokio::time::sleep(must.min(TURN)).await;
        } else if may.is_zero()
            || tokio::time::timeout(may.min(TURN), wanted.notified()).await.is_ok()
        {
            return;
        }
    }
}

async fn look(session: &mut Session, turning: Health) -> Result<Look> {
    let all = async |conn: &mut Link| store::topic::all(conn).await;
    let mut topics = Vec::new();
    for topic in session.call("list the topics", all).await? {
        // With many topics a look is long, but it is still working.
        turning.alive();
        let read = async |conn: &mut Link| {
            let depth = store::inspect::depth(conn, topic.id).await?;
            let log = if topic.is_stream() { Some(log_of(conn, &topic).await?) } else { None };
            Ok((depth, log))
        };
        let (depth, log) = session.call("read the topic's depth", read).await?;
        topics.push((topic, depth, log));
    }
    let read = async |conn: &mut Link| store::throughput::by_topic(conn).await;
    let throughput = match session.call("read the throughput", read).await {
        Ok(read) => read.into_iter().collect(),
        // The tables or the grants are older than this console: the rest can be shown.
        Err(error) if matches!(error.fault(), Fault::Denied | Fault::Schema) => HashMap::new(),
        Err(error) => return Err(error),
    };
    let now = async |conn: &mut Link| store::topic::server_time(conn).await;
    Ok(Look {
        topics,
        throughput,
        groups: groups(session, None).await?,
        workers: workers(session, Workers::Alive).await?,
        duties: duties(session).await?,
        at: session.call("read the server's clock", now).await?.and_utc(),
    })
}

async fn log_of(conn: &mut Link, topic: &Topic) -> Result<Log> {
    let partitions = partition::all(conn, topic.id).await?;
    let sum = |of: fn(&partition::Partition) -> u64| partitions.iter().map(of).sum();
    Ok(Log { appended: sum(|one| one.next.0), kept: sum(|one| one.next.0 - one.first.0) })
}

impl Histories {
    fn with(&mut self, look: Look) -> Snapshot {
        let mut appended = HashMap::new();
        let mut topics = Vec::new();
        let throughput = |of: TopicId| look.throughput.get(&of).copied().unwrap_or_default();
        for (topic, depth, log) in look.topics {
            let point = Point {
                at: look.at,
                waiting: depth.unsettled,
                oldest_ms: depth.oldest_age_ms,
                passed: log.map(|log| log.appended),
                throughput: throughput(topic.id),
                rates: Rates::default(),
            };
            let (rates, history) = self.take(&topic.name, point);
            if let Some(log) = log {
                appended.insert(topic.id, log.appended);
            }
            let logged = log.map(|log| log.kept);
            topics.push(TopicNow { topic, depth, logged, rates, history });
        }
        let mut groups = Vec::new();
        for status in look.groups {
            let stream = status.topic.of_stream();
            let through = stream
                .and_then(|stream| appended.get(&stream))
                .map(|appended| appended.saturating_sub(status.lag));
            let point = Point {
                at: look.at,
                waiting: status.lag,
                oldest_ms: status.lag_ms,
                passed: through,
                throughput: throughput(status.topic.id),
                rates: Rates::default(),
            };
            let (rates, history) = self.take_group(&status.topic.name, point);
            let handled_per_second = rates.passed_per_second;
            groups.push(GroupNow { status, handled_per_second, history });
        }
        self.forget_before(look.at);
        let (workers, duties) = (look.workers, look.duties);
        Snapshot { at: Some(look.at), topics, groups, workers, duties, ..Snapshot::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_rests_for_long_is_none_that_hangs() {
        let (health, wanted) = (Health::new(), Notify::new());
        let (took, rest) = (Duration::from_secs(15), Duration::from_secs(135));
        let mut resting = std::pin::pin!(woken(&health, &wanted, took, rest));
        let began = tokio::time::Instant::now();
        let mut turned = health.last_turn();
        while tokio::time::timeout(2 * TURN, &mut resting).await.is_err() {
            assert!(health.last_turn() > turned);
            turned = health.last_turn();
        }
        assert_eq!(began.elapsed().as_secs(), rest.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_began_before_the_change_does_not_end_the_wait_for_another_one() {
        let (tell, seen) = watch::channel(Arc::new(Snapshot::default()));
        let live = Live { seen, wanted: Arc::default() };
        let look = |no, began| Arc::new(Snapshot { no, began: Some(began), ..Snapshot::default() });
        let under_way = Instant::now() - Duration::from_millis(1);
        let mut waiting = std::pin::pin!(live.look_again());
        let a_while = INTERVAL / 4;
        assert!(tokio::time::timeout(a_while, &mut waiting).await.is_err());
        tell.send_replace(look(1, under_way));
        assert!(tokio::time::timeout(a_while, &mut waiting).await.is_err());
        tell.send_replace(look(2, Instant::now()));
        assert!(tokio::time::timeout(a_while, &mut waiting).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_another_look_waits_for_as_long_as_one_takes() {
        let (health, wanted) = (Health::new(), Notify::new());
        wanted.notify_one();
        let began = tokio::time::Instant::now();
        woken(&health, &wanted, Duration::from_secs(7), Duration::from_secs(63)).await;
        assert_eq!(began.elapsed().as_secs(), 7);
    }
}
