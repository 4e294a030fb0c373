//! The doorbell on real servers: consumers claim other processes' messages at once while it rings,
//! and poll for them while it cannot.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod groups;
mod server;

use std::time::Duration;

use rowmq_consumer::{ConsumerBuilder, ConsumerOptions, DoorbellMode, Receiver, TopicOptions};
use rowmq_core::connection::ServerUrl;
use rowmq_core::doctor::{Verdict, examine};
use rowmq_core::doorbell::Doorbell;
use rowmq_core::handler::Context;
use rowmq_core::model::Access;
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lane::{self, LaneKind};
use rowmq_core::{Error, NewMessage, Topic, doorbell, enqueue_all, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{PATIENCE, TestDatabase};
use tokio::sync::mpsc;

use crate::doorbell::server::Server;
use crate::handling::running::{Running, With, patient, send};

/// Longer than any test: a message that is claimed while the doorbell rings was not found by
/// polling.
const NEVER: Duration = Duration::from_secs(3600);

fn options() -> ConsumerOptions {
    ConsumerOptions { doorbell: DoorbellMode::Auto, safety_poll: NEVER, ..patient() }
}

/// A consumer that reports every body it handles, and its doorbell.
struct Bell {
    running: Running,
    handled: mpsc::UnboundedReceiver<Vec<u8>>,
    doorbell: Doorbell,
}

impl Bell {
    fn start(url: &ServerUrl, topics: &[&Topic]) -> Self {
        let (tell, handled) = mpsc::unbounded_channel();
        let running = Running::at(url, |mut consumer: ConsumerBuilder| {
            for topic in topics {
                let tell = tell.clone();
                let handler = With(move |context: Context| {
                    tell.send(context.delivery.body.clone()).expect("the test listens");
                    async { Ok(()) }
                });
                consumer =
                    consumer.raw_handler(topic.name.clone(), TopicOptions::default(), handler);
            }
            consumer.options(options())
        });
        let doorbell = Doorbell::follow(url, options().beat).expect("a thread");
        Self { running, handled, doorbell }
    }

    async fn turns(&self, ringing: bool) {
        let mut state = self.doorbell.ringing();
        let turned = tokio::time::timeout(PATIENCE, state.wait_for(|now| *now == ringing)).await;
        turned.expect("in time").expect("it is there");
    }

    async fn handles(&mut self, body: &[u8]) {
        let handled = tokio::time::timeout(PATIENCE, self.handled.recv()).await;
        assert_eq!(handled.expect("in time").as_deref(), Some(body));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_process_is_claimed_although_nobody_polls() {
    let database = Server::with_log().database().await;
    let topics = [database.topic("one").await, database.topic("two").await];
    let mut bell = Bell::start(database.url(), &[&topics[0], &topics[1]]);
    bell.turns(true).await;
    for n in 0..10_u8 {
        let body = vec![n; usize::from(n) * 1000];
        send(&database, &topics[usize::from(n % 2)], &[NewMessage::new(body.clone())]).await;
        bell.handles(&body).await;
    }
    assert!(*bell.doorbell.ringing().borrow());
    bell.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_several_topics_in_one_statement_ring_for_each() {
    let server = Server::with_log();
    let database = server.database().await;
    let topics = [database.topic("one").await, database.topic("two").await];
    let mut bells: Vec<_> =
        topics.iter().map(|topic| Bell::start(database.url(), &[topic])).collect();
    bells[0].turns(true).await;
    let row = |topic: &Topic| {
        format!("({}, UNHEX(REPEAT('ab', 16)), 'key', REPEAT('h', 300), 'body')", topic.id.0)
    };
    server.sql(&format!(
        "INSERT INTO {}.queue_message (topic_id, msg_id, ordering_key, headers, body) \
         VALUES {}, {}",
        database.name(),
        row(&topics[0]),
        row(&topics[1])
    ));
    for bell in &mut bells {
        bell.handles(b"body").await;
    }
    for bell in bells {
        bell.running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_a_producers_lane_rings_for_its_topic() {
    let database = Server::with_log().database().await;
    let topic = database.topic("in-lane").await;
    let mut conn = database.connect().await;
    let lane = lane::open(&mut conn, LaneKind::Passing, NewMessage::new("").msg_id.0)
        .await
        .expect("opened");
    let mut bell = Bell::start(database.url(), &[&topic]);
    bell.turns(true).await;
    for seq in 1..4 {
        let messages = [NewMessage::new("x"), NewMessage::new("x")];
        insert_in_lane(&mut conn, topic.id, &messages, lane, seq).await.expect("stored");
        bell.handles(b"x").await;
        bell.handles(b"x").await;
    }
    bell.running.stop().await;
}

/// The log is compressed: by transaction (MySQL) or by event (`MariaDB`); or has row images without
/// the columns that have defaults.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_compressed_or_minimal_rings_too() {
    let server = Server::with_log();
    let database = server.database().await;
    let topic = database.topic("packed").await;
    let mut bell = Bell::start(database.url(), &[&topic]);
    bell.turns(true).await;
    let insert = format!(
        "INSERT INTO {}.queue_message (topic_id, msg_id, body) \
         VALUES ({}, UNHEX(REPEAT('ab', 16)), REPEAT('b', 500))",
        database.name(),
        topic.id.0
    );
    let compressed = if server.is_mariadb() {
        "SET GLOBAL log_bin_compress = 1"
    } else {
        "SET binlog_transaction_compression = ON"
    };
    for setting in [compressed, "SET binlog_row_image = 'MINIMAL'"] {
        server.sql(&format!("{setting}; {insert}"));
        bell.handles(&[b'b'; 500]).await;
    }
    bell.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pull_api_is_woken_too() {
    let database = Server::with_log().database().await;
    let topic = database.topic("pulled").await;
    let url = database.url().clone();
    let mut receiver =
        Receiver::connect(url.clone(), topic.name.clone(), 1, options()).await.expect("connected");
    let doorbell = Doorbell::follow(&url, options().beat).expect("a thread");
    let mut ringing = doorbell.ringing();
    // Until the doorbell rings, its first claims are polls.
    let waiting = tokio::spawn(async move {
        for _ in 0..3 {
            receiver.receive().await.expect("received").ack().await.expect("acked");
        }
        receiver.close().await.expect("closed");
    });
    ringing.wait_for(|now| *now).await.expect("it is there");
    let mut conn = database.connect().await;
    for body in ["a", "b", "c"] {
        let message = [NewMessage::new(body)];
        enqueue_all(&mut conn, &topic.name, &message).await.expect("enqueued");
    }
    tokio::time::timeout(PATIENCE, waiting).await.expect("in time").expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_killed_comes_back_and_nothing_waits_for_it() {
    let server = Server::with_log();
    let database = server.database().await;
    let topic = database.topic("killed").await;
    let mut bell = Bell::start(database.url(), &[&topic]);
    for _ in 0..2 {
        bell.turns(true).await;
        let followers = server.followers(database.name());
        assert_eq!(followers.len(), 1, "one a process: {followers:?}");
        let mut state = bell.doorbell.ringing();
        state.mark_unchanged();
        server.sql(&format!("KILL {}", followers[0]));
        // The doorbell may ring again before the test looks.
        let turned = tokio::time::timeout(PATIENCE, state.changed()).await;
        turned.expect("in time").expect("it is there");
        send(&database, &topic, &[NewMessage::new("polled")]).await;
        bell.handles(b"polled").await;
        bell.turns(true).await;
        send(&database, &topic, &[NewMessage::new("rung")]).await;
        bell.handles(b"rung").await;
    }
    bell.running.stop().await;
}

/// The connections stay open and nothing arrives any more, as behind a cut cable.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_in_silence_is_noticed() {
    let database = Server::with_log().database().await;
    let topic = database.topic("dark").await;
    let proxy = FaultProxy::start(database.url()).await;
    let mut bell = Bell::start(&proxy.url(database.url()), &[&topic]);
    bell.turns(true).await;
    // The consumer has started once it handles a message.
    send(&database, &topic, &[NewMessage::new("begun")]).await;
    bell.handles(b"begun").await;
    proxy.blackhole();
    send(&database, &topic, &[NewMessage::new("unheard")]).await;
    bell.turns(false).await;
    proxy.pass();
    bell.handles(b"unheard").await;
    bell.turns(true).await;
    send(&database, &topic, &[NewMessage::new("heard")]).await;
    bell.handles(b"heard").await;
    bell.running.stop().await;
}

/// While the doorbell rings, workers that hold nothing rarely read the rules.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_of_one_topic_or_of_all_is_a_change_that_is_heard() {
    let database = Server::with_log().database().await;
    let topic = database.topic("ruled").await;
    let bell = Bell::start(database.url(), &[&topic]);
    bell.turns(true).await;
    let mut conn = database.connect().await;
    for access in [Access::WriteOnly, Access::ReadWrite] {
        let mut changes = bell.doorbell.changes();
        changes.mark_unchanged();
        store::topic::set_access(&mut conn, &topic.name, access).await.expect("set");
        let heard = tokio::time::timeout(PATIENCE, changes.changed()).await;
        heard.expect("the topic's rule is heard").expect("it is there");
        changes.mark_unchanged();
        store::switch::set(&mut conn, access).await.expect("set");
        let heard = tokio::time::timeout(PATIENCE, changes.changed()).await;
        heard.expect("the switch is heard").expect("it is there");
    }
    bell.running.stop().await;
}

/// Checks that the consumer works by polling.
async fn polls(url: &ServerUrl, database: &TestDatabase) {
    let topic = database.topic("polled").await;
    let mut bell = Bell::start(url, &[&topic]);
    for body in ["a", "b"] {
        send(database, &topic, &[NewMessage::new(body)]).await;
        bell.handles(body.as_bytes()).await;
    }
    assert!(!*bell.doorbell.ringing().borrow());
    bell.running.stop().await;
}

async fn refusal(url: &ServerUrl) -> String {
    let refused = doorbell::trial(url).await.expect_err("refused");
    assert!(matches!(refused, Error::NoDoorbell { .. }), "{refused}");
    let report = examine(url).await.expect("examined");
    let check = report.checks.iter().find(|check| check.name == "doorbell").expect("a check");
    assert_eq!(check.verdict, Verdict::Ok, "nobody has to have one");
    assert!(check.detail.contains(&refused.to_string()), "{} / {refused}", check.detail);
    refused.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_not_follow_polls_and_is_told_the_grants() {
    let database = Server::with_log().database().await;
    let own = "ALL PRIVILEGES ON {}.*";
    for grants in
        [&[own][..], &[own, "REPLICATION SLAVE ON *.*"], &[own, "REPLICATION CLIENT ON *.*"]]
    {
        let refused = refusal(&database.account(grants).await).await;
        assert!(refused.contains("GRANT REPLICATION SLAVE, REPLICATION CLIENT"), "{refused}");
    }
    let both = [own, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"];
    doorbell::trial(&database.account(&both).await).await.expect("it may");
    polls(&database.account(&[own]).await, &database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_binary_log_is_polled_and_the_setting_is_named() {
    let database = Server::without_log().database().await;
    let refused = refusal(database.url()).await;
    assert!(refused.contains("log_bin is OFF"), "{refused}");
    polls(database.url(), &database).await;
}
