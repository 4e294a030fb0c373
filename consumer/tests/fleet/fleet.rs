//! A fleet of real consumer processes on a private database, and what they recorded.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{OffsetSpec, TopicSettings};
use rowmq_core::store;
use rowmq_core::store::stream::progress;
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{AsyncMysqlConnection, MsgId, NewMessage, Topic, TopicName, enqueue_to};
use rowmq_test::TestDatabase;
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here may take, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Fleet {
    pub(crate) database: TestDatabase,
    /// The topic that messages are sent to.
    pub(crate) topic: Topic,
    /// What the members consume: the topic, or a group of it.
    pub(crate) consumed: Topic,
    url: String,
    folder: tempfile::TempDir,
    members: Vec<Member>,
}

pub(crate) struct Member {
    child: Child,
    log: PathBuf,
}

/// What the consumers recorded about one message.
#[derive(Debug, Default, Clone)]
pub(crate) struct History {
    /// `(consumer, delivery number)` of each begin, by consumer, in the order of its own log.
    pub(crate) starts: Vec<(usize, u32)>,
    pub(crate) ends: Vec<(usize, u32)>,
}

/// How a recorder is started.
pub(crate) struct Start<'a> {
    pub(crate) work_ms: u64,
    pub(crate) concurrency: usize,
    pub(crate) settings: &'a [(&'a str, &'a str)],
    pub(crate) crash_on: Option<&'a str>,
    /// Starts it as a transactional handler, with the table `effect`.
    pub(crate) effects: bool,
}

impl Default for Start<'_> {
    fn default() -> Self {
        Self { work_ms: 0, concurrency: 16, settings: &[], crash_on: None, effects: false }
    }
}

/// A call of a handler, in nanoseconds since 1970.
pub(crate) struct Run {
    pub(crate) member: usize,
    pub(crate) id: MsgId,
    pub(crate) began: u128,
    /// `None` if the consumer was killed.
    pub(crate) ended: Option<u128>,
}

impl Fleet {
    pub(crate) async fn new() -> Self {
        Self::on(TestDatabase::new().await).await
    }

    pub(crate) async fn on(database: TestDatabase) -> Self {
        let topic = database.topic("work").await;
        Self::on_topic(database, topic)
    }

    /// Starts a fleet of members of a group; its stream has this many partitions.
    pub(crate) async fn of_group(partitions: u32, ordered: bool) -> Self {
        let database = TestDatabase::new().await;
        let mut conn = database.connect().await;
        let stream = TopicName::new("work").expect("a name");
        let group = TopicName::of_group(&stream, "g").expect("a name");
        let settings = TopicSettings::default();
        create_stream(&mut conn, &stream, partitions, &settings).await.expect("made");
        create_group(&mut conn, &group, ordered, OffsetSpec::Earliest, &settings)
            .await
            .expect("made");
        let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
        let group = store::topic::existing(&mut conn, &group).await.expect("it is there");
        Self::consuming(database, stream, group)
    }

    /// Starts a fleet of members of a broadcast group; its stream has this many partitions.
    pub(crate) async fn of_broadcast(partitions: u32) -> Self {
        let database = TestDatabase::new().await;
        let mut conn = database.connect().await;
        let stream = TopicName::new("work").expect("a name");
        let group = TopicName::of_group(&stream, "all").expect("a name");
        let settings = TopicSettings::default();
        create_stream(&mut conn, &stream, partitions, &settings).await.expect("made");
        create_broadcast(&mut conn, &group, OffsetSpec::Earliest, &settings).await.expect("made");
        let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
        let group = store::topic::existing(&mut conn, &group).await.expect("it is there");
        Self::consuming(database, stream, group)
    }

    /// Starts a fleet of consumers of a queue.
    pub(crate) fn on_topic(database: TestDatabase, topic: Topic) -> Self {
        Self::consuming(database, topic.clone(), topic)
    }

    fn consuming(database: TestDatabase, topic: Topic, consumed: Topic) -> Self {
        let url = database.url().expose().to_owned();
        let folder = tempfile::tempdir().expect("a folder");
        Self { database, topic, consumed, url, folder, members: Vec::new() }
    }

    /// Returns how many messages are not handled yet.
    pub(crate) async fn left(&self, conn: &mut AsyncMysqlConnection) -> u64 {
        let mut left = 0;
        for topic in [&self.topic, &self.consumed] {
            let depth = store::inspect::depth(conn, topic.id).await.expect("a depth");
            left += depth.unsettled + depth.claimed + depth.scheduled;
        }
        if let Some(group) = self.consumed.group() {
            let progress = progress::of_group(conn, group).await.expect("its progress");
            left += progress.iter().map(|one| one.lag).sum::<u64>();
        }
        left
    }

    /// Makes consumers that start from now on reach the server another way: through a proxy, or as
    /// another account.
    pub(crate) fn through(&mut self, url: &ServerUrl) {
        self.url = url.expose().to_owned();
    }

    pub(crate) async fn enqueue(&self, n: usize) -> Vec<MsgId> {
        let mut conn = self.database.connect().await;
        let messages: Vec<_> = (0..n).map(|i| NewMessage::new(format!("message {i}"))).collect();
        enqueue_to(&mut conn, &self.topic, &messages).await.expect("enqueued");
        messages.iter().map(|message| message.msg_id).collect()
    }

    /// Returns the messages whose handlers ended, in the order of their ends, over all members.
    pub(crate) fn ended_in_order(&self) -> Vec<MsgId> {
        let mut ended: Vec<(u128, MsgId)> = Vec::new();
        for member in &self.members {
            let log = fs::read_to_string(&member.log).expect("a log");
            for line in log.lines() {
                if let ["end", id, _, at] = *line.split(' ').collect::<Vec<_>>() {
                    ended.push((at.parse().expect("a time"), id.parse().expect("an id")));
                }
            }
        }
        ended.sort_unstable();
        ended.into_iter().map(|(_, id)| id).collect()
    }

    /// Starts a recorder; returns its index in the fleet.
    pub(crate) fn start(&mut self, start: &Start<'_>) -> usize {
        let index = self.members.len();
        let log = self.folder.path().join(format!("{index}.log"));
        fs::write(&log, "").expect("a log");
        let errors = fs::File::create(self.folder.path().join(format!("{index}.err")));
        let child = Command::new(program("examples/recorder"))
            .args([self.consumed.name.as_str(), log.to_str().expect("a plain path")])
            .args(["--concurrency", &start.concurrency.to_string()])
            .args(["--work", &start.work_ms.to_string()])
            .args(start.effects.then_some("--effects"))
            .args(start.crash_on.iter().flat_map(|body| ["--crash-on", body]))
            .env("ROWMQ_URL", &self.url)
            .envs(start.settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors.expect("an error log"))
            .spawn()
            .expect("the recorder is built; run the tests by ./ops/test");
        self.members.push(Member { child, log });
        index
    }

    pub(crate) fn signal(&self, member: usize, signal: Signal) {
        let pid = i32::try_from(self.members[member].child.id()).expect("a pid");
        let pid = Pid::from_raw(pid).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    /// Returns whether the consumer still runs.
    pub(crate) fn runs(&mut self, member: usize) -> bool {
        self.members[member].child.try_wait().expect("waited").is_none()
    }

    pub(crate) async fn ended(&mut self, member: usize) -> std::process::ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.members[member].child.try_wait().expect("waited") {
                return status;
            }
            assert!(Instant::now() < deadline, "consumer {member} does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns what was recorded, by message id.
    pub(crate) fn histories(&self) -> HashMap<MsgId, History> {
        let mut histories: HashMap<MsgId, History> = HashMap::new();
        for (index, member) in self.members.iter().enumerate() {
            let log = fs::read_to_string(&member.log).expect("a log");
            for line in log.lines() {
                let mut words = line.split(' ');
                let event = words.next().expect("an event");
                let id = words.next().and_then(|id| id.parse().ok()).expect("an id");
                let no = words.next().and_then(|no| no.parse().ok()).expect("a number");
                let history = histories.entry(id).or_default();
                match event {
                    "start" => history.starts.push((index, no)),
                    "end" => history.ends.push((index, no)),
                    _ => {}
                }
            }
        }
        histories
    }

    /// Returns every call of a handler.
    pub(crate) fn handler_runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (member, it) in self.members.iter().enumerate() {
            let log = fs::read_to_string(&it.log).expect("a log");
            for line in log.lines() {
                let [event, id, _, at] = *line.split(' ').collect::<Vec<_>>() else { continue };
                let (id, at) = (id.parse().expect("an id"), at.parse().expect("a time"));
                let begun = runs.iter_mut().rfind(|run| run.member == member && run.id == id);
                match (event, begun) {
                    ("start", _) => runs.push(Run { member, id, began: at, ended: None }),
                    (_, Some(run)) => run.ended = Some(at),
                    _ => {}
                }
            }
        }
        runs
    }

    /// Returns how many messages this consumer has begun.
    pub(crate) fn begun(&self, member: usize) -> usize {
        let log = fs::read_to_string(&self.members[member].log).expect("a log");
        log.lines().filter(|line| line.starts_with("start ")).count()
    }

    /// Returns the messages that this consumer has begun.
    pub(crate) fn begun_by(&self, member: usize) -> HashSet<MsgId> {
        let histories = self.histories().into_iter();
        let is_begun = |(_, it): &(_, History)| it.starts.iter().any(|(by, _)| *by == member);
        histories.filter(is_begun).map(|(id, _)| id).collect()
    }

    /// Returns what the consumer wrote to standard error.
    pub(crate) fn said(&self, member: usize) -> String {
        fs::read_to_string(self.folder.path().join(format!("{member}.err"))).expect("a log")
    }

    /// Returns what all consumers wrote to standard error.
    pub(crate) fn all_said(&self) -> String {
        let all: Vec<_> = (0..self.members.len()).map(|member| self.said(member)).collect();
        all.join("\n")
    }

    /// Waits until the hot table and the claims are empty.
    pub(crate) async fn drained(&self) {
        let mut conn = self.database.connect().await;
        self.until("drained", async || self.left(&mut conn).await == 0).await;
    }

    /// Waits for a condition; on a timeout, shows what the consumers wrote.
    pub(crate) async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !holds().await {
            if Instant::now() > deadline {
                panic!("not {what} after {PATIENCE:?}; they said:\n{}", self.all_said());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            // It may have ended already.
            drop(member.child.kill());
            drop(member.child.wait());
        }
    }
}

/// Returns a program that cargo has built beside this test.
pub(crate) fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("target/debug/deps");
    folder.join(name)
}
