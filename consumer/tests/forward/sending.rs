//! A topic, forwards that run as processes, and what tests check of both.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use diesel_async::RunQueryDsl;
use rowmq_core::model::TopicSettings;
use rowmq_core::{MsgId, NewMessage, Topic, enqueue_to, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::task::JoinHandle;

/// A database with the topic `work`.
pub(crate) struct Scene {
    pub(crate) database: TestDatabase,
    pub(crate) topic: Topic,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        Self::with(&TopicSettings::default()).await
    }

    pub(crate) async fn with(settings: &TopicSettings) -> Self {
        let database = TestDatabase::new().await;
        let topic = database.topic_with("work", settings).await;
        Self { database, topic }
    }

    /// Enqueues messages with these bodies; returns their ids, in order.
    pub(crate) async fn enqueue<B: Into<Vec<u8>>>(
        &self,
        bodies: impl IntoIterator<Item = B>,
    ) -> Vec<MsgId> {
        let messages: Vec<_> = bodies.into_iter().map(NewMessage::new).collect();
        let mut conn = self.database.connect().await;
        enqueue_to(&mut conn, &self.topic, &messages).await.expect("enqueued");
        messages.iter().map(|message| message.msg_id).collect()
    }

    /// Returns how many messages are not settled, and how many of them are claimed.
    pub(crate) async fn left(&self) -> (u64, u64) {
        let mut conn = self.database.connect().await;
        let depth = store::inspect::depth(&mut conn, self.topic.id).await.expect("a depth");
        (depth.unsettled + depth.scheduled, depth.claimed)
    }

    /// Makes the queue forget that messages were in hand when a forward was killed. Those that it
    /// happens to twice are handled one by one, and some hundreds of them take minutes.
    pub(crate) async fn forget_crashes(&self) {
        let mut conn = self.database.connect().await;
        let forget = "UPDATE queue_message SET suspicions = 0";
        diesel::sql_query(forget).execute(&mut conn).await.expect("forgotten");
    }

    pub(crate) async fn drained(&self) {
        until("drained", async || self.left().await == (0, 0)).await;
    }

    /// Starts `rowmq-consumer forward …`.
    pub(crate) fn forward(&self, arguments: &[&str]) -> Forward {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rowmq-consumer"))
            .arg("forward")
            .args(arguments)
            .env("ROWMQ_URL", self.database.url().expose())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("runs");
        let out = child.stdout.take();
        let mut errors = child.stderr.take().expect("piped");
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            errors.read_to_string(&mut text).expect("text");
            text
        });
        Forward { child, out, said: Some(said) }
    }
}

/// A forward that is killed when the test ends, if not before.
pub(crate) struct Forward {
    child: Child,
    pub(crate) out: Option<ChildStdout>,
    said: Option<std::thread::JoinHandle<String>>,
}

impl Drop for Forward {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if let (true, Some(said)) = (std::thread::panicking(), self.said.take()) {
            println!("{}", said.join().unwrap_or_default());
        }
    }
}

impl Forward {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("signalled");
    }

    /// Waits for its end; returns what it wrote.
    pub(crate) async fn ended(&mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                break status;
            }
            assert!(Instant::now() < deadline, "the forward does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let said = self.said.take().expect("asked once").join().expect("read");
        (status, said)
    }

    /// Reads `n` lines of standard output; returns them and the rest.
    pub(crate) fn lines(&mut self, n: usize) -> JoinHandle<(Vec<Value>, BufReader<ChildStdout>)> {
        let mut out = BufReader::new(self.out.take().expect("read once"));
        tokio::task::spawn_blocking(move || {
            let lines = out.by_ref().lines().take(n);
            let lines = lines.map(|line| parsed(line.expect("a line").as_bytes())).collect();
            (lines, out)
        })
    }
}

pub(crate) fn parsed(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
}

/// Returns the message ids of the lines, in order.
pub(crate) fn ids(lines: &[Value]) -> Vec<MsgId> {
    let id = |line: &Value| line["msg_id"].as_str().and_then(|id| id.parse().ok());
    lines.iter().map(|line| id(line).expect("an id")).collect()
}

/// Asserts that each arrived at least once; returns how many came again.
pub(crate) fn at_least_once(sent: &[MsgId], arrived: &[MsgId]) -> usize {
    let mut times: BTreeMap<MsgId, usize> = sent.iter().map(|id| (*id, 0)).collect();
    for id in arrived {
        *times.get_mut(id).expect("a message that was sent") += 1;
    }
    let lost: Vec<_> = times.iter().filter(|(_, n)| **n == 0).collect();
    assert!(lost.is_empty(), "{} of {} never arrived", lost.len(), sent.len());
    arrived.len() - sent.len()
}
