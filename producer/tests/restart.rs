//! The library while its server restarts and crashes.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::setup::{Told, stored_ids};
use rowmq_core::connection::ServerUrl;
use rowmq_core::{MsgId, NewMessage, TopicName, doctor, migration};
use rowmq_producer::{Producer, ProducerOptions, SpillOptions};
use rowmq_test::{TestDatabase, until};

/// How many messages are sent, and by how many senders, each one after another.
const MESSAGES: usize = 5000;
const SENDERS: usize = 16;

/// A private server, of the kind that `ROWMQ_URL` has; removed at the end.
struct DevServer {
    kind: &'static str,
    name: String,
    url: ServerUrl,
}

impl DevServer {
    async fn start(of: &str) -> Self {
        let url = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
        let url = ServerUrl::new(&url).expect("a URL");
        let product = doctor::examine(&url).await.expect("the server answers").server;
        let kind = if product.contains("MariaDB") { "mariadb" } else { "mysql" };
        let name = format!("producer-{of}-{}", std::process::id());
        let said = ops(kind, &name, "start");
        let own = said.lines().find_map(|line| line.strip_prefix("ROWMQ_URL=")).expect("its URL");
        Self { kind, name, url: ServerUrl::new(own).expect("a URL") }
    }

    /// Runs a command of `ops/dev-server` on it while the senders continue.
    async fn run(&self, command: &'static str) {
        let (kind, name) = (self.kind, self.name.clone());
        tokio::task::spawn_blocking(move || ops(kind, &name, command)).await.expect("no panic");
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        ops(self.kind, &self.name, "stop");
    }
}

fn ops(kind: &str, name: &str, command: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/dev-server");
    let ran = Command::new(script)
        .args([command, "--server", kind, "--name", name])
        .output()
        .expect("ops/dev-server can be run");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() || std::thread::panicking(), "dev-server {command}: {errors}");
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_a_crash_of_the_server_lose_and_double_no_message() {
    let server = DevServer::start("restart").await;
    let database = TestDatabase::empty_on(&server.url).await;
    migration::run(database.url()).await.expect("migrated");
    let topic = database.topic("mail").await.name;
    let told = Told::default();
    let producer =
        Producer::connect(database.url().clone(), told.options()).await.expect("connected");
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let go_on = Arc::new(AtomicBool::new(true));
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let counts = (Arc::clone(&acknowledged), Arc::clone(&go_on));
            tokio::spawn(send(producer.clone(), topic.clone(), MESSAGES / SENDERS, counts))
        })
        .collect();
    for (command, at) in [("restart", MESSAGES / 4), ("crash", MESSAGES / 2)] {
        let reached = async || acknowledged.load(Ordering::SeqCst) >= at;
        until("a part of the messages is acknowledged", reached).await;
        server.run(command).await;
    }
    go_on.store(false, Ordering::SeqCst);
    server.run("restart").await;
    let mut sent = Vec::new();
    for sender in senders {
        sent.extend(sender.await.expect("no panic"));
    }
    producer.close().await;
    assert!(told.waits() >= 2, "the senders felt both");
    let mut found = stored_ids(&database, "mail").await;
    sent.sort_unstable();
    found.sort_unstable();
    assert_eq!(found.len(), sent.len());
    assert!(found == sent, "what is stored is not what was acknowledged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_while_a_producer_with_a_journal_restarts_gets_everything_in_order() {
    let server = DevServer::start("journal").await;
    let database = TestDatabase::empty_on(&server.url).await;
    migration::run(database.url()).await.expect("migrated");
    let topic = database.topic("mail").await.name;
    let folder = tempfile::tempdir().expect("a folder");
    let connect = async || {
        let spill = Some(SpillOptions::new(folder.path()));
        let options = ProducerOptions { spill, ..ProducerOptions::default() };
        Producer::connect(database.url().clone(), options).await.expect("connected")
    };
    let mut sent = vec![Vec::new(); SENDERS];
    for round in 0..3 {
        let producer = connect().await;
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let go_on = Arc::new(AtomicBool::new(round == 0));
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| {
                let (producer, topic) = (producer.clone(), topic.clone());
                let counts = (Arc::clone(&acknowledged), Arc::clone(&go_on));
                tokio::spawn(send(producer, topic, 60, counts))
            })
            .collect();
        if round == 0 {
            let some = async || acknowledged.load(Ordering::SeqCst) >= SENDERS * 10;
            until("some are acknowledged", some).await;
            server.run("crash").await;
            go_on.store(false, Ordering::SeqCst);
        }
        if round == 2 {
            server.run("restart").await;
        }
        for (sender, ids) in senders.into_iter().zip(&mut sent) {
            ids.extend(sender.await.expect("no panic"));
        }
        assert!(round == 2 || producer.in_journal() > 0, "the server is down");
        if round == 2 {
            producer.drained().await.expect("open");
        }
        producer.close().await;
    }
    let found = stored_ids(&database, "mail").await;
    assert_eq!(found.len(), sent.iter().map(Vec::len).sum::<usize>());
    for ids in sent {
        let of_this: Vec<_> = found.iter().copied().filter(|id| ids.contains(id)).collect();
        assert!(of_this == ids, "a sender's messages are not stored once and in order");
    }
}

/// Sends at least this many messages, and more as long as `go_on` is set.
async fn send(
    producer: Producer,
    topic: TopicName,
    least: usize,
    (acknowledged, go_on): (Arc<AtomicUsize>, Arc<AtomicBool>),
) -> Vec<MsgId> {
    let mut ids = Vec::with_capacity(least);
    while ids.len() < least || go_on.load(Ordering::SeqCst) {
        let message = NewMessage::new(ids.len().to_string());
        ids.push(producer.send(&topic, message).await.expect("acknowledged").msg_id);
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
    ids
}
