//! The library while connections break: no acknowledged message is lost or stored twice.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::setup::{Told, depth, errors, lanes, messages, stored, stored_ids};
use rowmq_core::store::lane;
use rowmq_core::{MsgId, NewMessage, TopicName};
use rowmq_producer::{Producer, ProducerOptions, ResendPolicy, SendError, Sent};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::{READ_TOPIC, STORE_IN_LANE};
use rowmq_test::{TestDatabase, until};
use tokio::sync::mpsc;

/// Every statement of a single-statement batch.
const STATEMENTS: [&str; 2] = [READ_TOPIC, STORE_IN_LANE];

/// Every statement of a batch that is too large for that.
const STATEMENTS_OF_MANY: [&str; 5] = [
    READ_TOPIC,
    "BEGIN",
    "INSERT INTO queue_message (topic_id, priority, msg_id",
    STORE_IN_LANE,
    "COMMIT",
];

/// How many messages take a transaction with two INSERTs.
const MANY: usize = 1010;

/// A topic, a proxy in front of its server, and a producer that sends through the proxy.
struct Broken {
    database: TestDatabase,
    topic: TopicName,
    proxy: FaultProxy,
    producer: Producer,
}

impl Broken {
    async fn new(options: ProducerOptions) -> Self {
        let database = TestDatabase::new().await;
        let topic = database.topic("mail").await.name;
        let proxy = FaultProxy::start(database.url()).await;
        let producer =
            Producer::connect(proxy.url(database.url()), options).await.expect("connected");
        Self { database, topic, proxy, producer }
    }

    /// Starts to send one message.
    fn send(&self) -> tokio::task::JoinHandle<Result<Sent, SendError>> {
        let (producer, topic) = (self.producer.clone(), self.topic.clone());
        tokio::spawn(async move { producer.send(&topic, NewMessage::new("x")).await })
    }

    /// Starts to send `n` messages.
    fn send_some(&self, n: usize) -> tokio::task::JoinHandle<Result<(), SendError>> {
        let (producer, topic) = (self.producer.clone(), self.topic.clone());
        tokio::spawn(async move { producer.send_all(&topic, messages(n)).await.map(drop) })
    }

    /// Closes the producer and waits until the server has ended each of its sessions: statements in
    /// flight to them have then been executed.
    async fn left(&self) {
        self.producer.close().await;
        until("every session has ended", async || self.proxy.ports().is_empty()).await;
    }

    async fn stored(&self) -> usize {
        stored(&self.database, "mail").await.len()
    }
}

#[tokio::test]
async fn a_batch_whose_reply_is_lost_is_stored_once_and_not_sent_again() {
    for (n, statement) in [(100, STORE_IN_LANE), (MANY, "COMMIT")] {
        let told = Told::default();
        let broken = Broken::new(told.options()).await;
        broken.proxy.drop_reply_after(statement);
        let batch = messages(n);
        let ids: Vec<MsgId> = batch.iter().map(|message| message.msg_id).collect();
        broken.producer.send_all(&broken.topic, batch).await.expect("acknowledged");
        broken.proxy.sprung().await;
        assert_eq!(stored_ids(&broken.database, "mail").await, ids);
        assert_eq!(told.resends(), 0, "the lane said that it was committed");
        broken.send().await.expect("no panic").expect("the producer goes on");
        assert_eq!(broken.stored().await, n + 1);
    }
}

#[tokio::test]
async fn a_batch_cut_off_before_its_commit_is_sent_again_and_stored_once() {
    for (n, statement) in [(100, STORE_IN_LANE), (MANY, "COMMIT")] {
        let told = Told::default();
        let broken = Broken::new(told.options()).await;
        broken.proxy.cut_before(statement);
        let batch = messages(n);
        let ids: Vec<MsgId> = batch.iter().map(|message| message.msg_id).collect();
        broken.producer.send_all(&broken.topic, batch).await.expect("acknowledged");
        broken.proxy.sprung().await;
        assert_eq!(stored_ids(&broken.database, "mail").await, ids);
        assert_eq!(told.resends(), 1);
    }
}

#[tokio::test]
async fn a_connection_that_breaks_at_any_statement_costs_nothing_and_doubles_nothing() {
    let one = STATEMENTS.map(|statement| (1, statement));
    let many = STATEMENTS_OF_MANY.map(|statement| (MANY, statement));
    for (n, statement) in one.into_iter().chain(many) {
        for arm in [FaultProxy::drop_reply_after, FaultProxy::cut_before] {
            let broken = Broken::new(ProducerOptions::default()).await;
            arm(&broken.proxy, statement);
            broken.send_some(n).await.expect("no panic").expect("acknowledged");
            broken.proxy.sprung().await;
            assert_eq!(broken.stored().await, n, "{n} at {statement}");
            broken.send().await.expect("no panic").expect("acknowledged");
            assert_eq!(broken.stored().await, n + 1, "{n} at {statement}");
        }
    }
}

/// A batch that also has delayed messages is a transaction, and it advances its lane even if it has
/// no ready message.
#[tokio::test]
async fn a_batch_with_delayed_messages_is_stored_once_wherever_it_breaks() {
    for statement in ["BEGIN", "INSERT INTO queue_scheduled", STORE_IN_LANE, "COMMIT"] {
        for arm in [FaultProxy::drop_reply_after, FaultProxy::cut_before] {
            for ready in [0, 3] {
                let broken = Broken::new(ProducerOptions::default()).await;
                arm(&broken.proxy, statement);
                let mut batch = messages(ready);
                let later = NewMessage::new("later").with_delay(Duration::from_secs(3600));
                batch.insert(ready / 2, later);
                let ids: Vec<MsgId> =
                    batch.iter().filter(|m| m.deliver.is_none()).map(|m| m.msg_id).collect();
                broken.producer.send_all(&broken.topic, batch).await.expect("acknowledged");
                broken.proxy.sprung().await;
                let depth = depth(&broken.database, "mail").await;
                assert_eq!((depth.unsettled, depth.scheduled), (ready as u64, 1), "{statement}");
                assert_eq!(stored_ids(&broken.database, "mail").await, ids, "in order");
            }
        }
    }
}

#[tokio::test]
async fn a_statement_that_arrives_after_its_batch_was_sent_again_stores_nothing() {
    // Since then nothing was sent, or one more message, or many, and the lane is closed.
    for others in [0, 1, 30] {
        let told = Told::default();
        let options = ProducerOptions { lease: Duration::from_secs(6), ..told.options() };
        let broken = Broken::new(options).await;
        broken.proxy.strand(STORE_IN_LANE);
        broken.send().await.expect("no panic").expect("acknowledged");
        broken.proxy.sprung().await;
        assert_eq!(told.resends(), 1);
        for _ in 0..others {
            broken.send().await.expect("no panic").expect("acknowledged");
        }
        if others == 30 {
            broken.producer.close().await;
        }
        broken.proxy.release();
        broken.left().await;
        assert_eq!(broken.stored().await, 1 + others);
    }
}

#[tokio::test]
async fn a_batch_given_up_as_not_stored_is_not_stored_by_a_statement_that_arrives_late() {
    let resend = ResendPolicy { max_resends: Some(0), ..ResendPolicy::default() };
    let lease = Duration::from_secs(6);
    let broken = Broken::new(ProducerOptions { resend, lease, ..ProducerOptions::default() }).await;
    broken.proxy.strand(STORE_IN_LANE);
    let given_up = broken.send().await.expect("no panic");
    assert!(matches!(given_up, Err(SendError::GaveUp { .. })), "{given_up:?}");
    broken.send().await.expect("no panic").expect("the next goes through another lane");
    broken.proxy.release();
    broken.left().await;
    assert_eq!(broken.stored().await, 1, "the next, and nothing else");
}

#[tokio::test]
async fn a_commit_still_on_its_way_is_waited_for_never_overtaken() {
    let (options, mut errors) = errors();
    let broken = Broken::new(options).await;
    broken.proxy.strand("COMMIT");
    let send = broken.send_some(MANY);
    broken.proxy.sprung().await;
    // The producer has queried its lane, which the stranded transaction has locked.
    let waited_for = errors.recv().await.expect("a wait");
    assert!(waited_for.contains("Lock wait timeout"), "{waited_for}");
    assert_eq!(broken.stored().await, 0);
    broken.proxy.release();
    send.await.expect("no panic").expect("acknowledged");
    assert_eq!(broken.stored().await, MANY);
}

#[tokio::test]
async fn a_commit_that_never_arrives_is_dropped_by_the_server_and_the_batch_sent_again() {
    let told = Told::default();
    let options = ProducerOptions { lease: Duration::from_secs(5), ..told.options() };
    let broken = Broken::new(options).await;
    broken.proxy.strand("COMMIT");
    broken.send_some(MANY).await.expect("no panic").expect("acknowledged");
    assert_eq!(broken.stored().await, MANY);
    assert!(told.resends() >= 1);
    // Too late: the server has ended that session.
    broken.proxy.release();
    broken.send().await.expect("no panic").expect("acknowledged");
    assert_eq!(broken.stored().await, MANY + 1);
}

#[tokio::test]
async fn behind_a_cut_cable_a_send_waits_for_the_network_and_is_stored_once() {
    let (options, mut errors) = errors();
    let options = ProducerOptions { lease: Duration::from_secs(5), ..options };
    let broken = Broken::new(options).await;
    broken.proxy.blackhole();
    let send = broken.send();
    let error = errors.recv().await.expect("a wait");
    assert!(error.contains("no answer within 5000 ms"), "{error}");
    broken.proxy.pass();
    send.await.expect("no panic").expect("acknowledged");
    assert_eq!(broken.stored().await, 1);
}

#[tokio::test]
async fn a_server_that_stays_away_is_given_up_and_nothing_is_stored() {
    let policy =
        ResendPolicy { give_up_after: Duration::from_millis(300), ..ResendPolicy::default() };
    let broken =
        Broken::new(ProducerOptions { resend: policy, ..ProducerOptions::default() }).await;
    broken.proxy.refuse();
    let given_up = broken.send().await.expect("no panic");
    assert!(matches!(given_up, Err(SendError::GaveUp { messages: 1, .. })), "{given_up:?}");
    broken.proxy.pass();
    assert_eq!(broken.stored().await, 0);
    broken.send().await.expect("no panic").expect("the producer lives on");
}

#[tokio::test]
async fn no_more_resends_are_made_than_are_allowed() {
    let policy = ResendPolicy { max_resends: Some(2), ..ResendPolicy::default() };
    let told = Told::default();
    let broken = Broken::new(ProducerOptions { resend: policy, ..told.options() }).await;
    broken.proxy.refuse();
    let given_up = broken.send().await.expect("no panic");
    assert!(matches!(given_up, Err(SendError::GaveUp { tries: 3, .. })), "{given_up:?}");
    assert_eq!(told.waits(), 2);
}

#[tokio::test]
async fn a_commit_nobody_can_ask_about_is_reported_as_unknown() {
    let policy =
        ResendPolicy { give_up_after: Duration::from_millis(300), ..ResendPolicy::default() };
    let broken =
        Broken::new(ProducerOptions { resend: policy, ..ProducerOptions::default() }).await;
    broken.proxy.drop_reply_after(STORE_IN_LANE);
    broken.proxy.refuse_new();
    let unknown = broken.send().await.expect("no panic");
    assert!(matches!(unknown, Err(SendError::Unknown { messages: 1, .. })), "{unknown:?}");
    broken.proxy.pass();
    assert_eq!(broken.stored().await, 1, "this one was committed");
    broken.send().await.expect("no panic").expect("the next goes through another lane");
    assert_eq!(broken.stored().await, 2);
}

#[tokio::test]
async fn a_lane_that_vanishes_while_a_commit_is_in_doubt_leaves_it_unknown() {
    let (options, mut errors) = errors();
    let broken = Broken::new(options).await;
    broken.proxy.drop_reply_after(STORE_IN_LANE);
    broken.proxy.refuse_new();
    let send = broken.send();
    errors.recv().await.expect("a wait");
    let mut conn = broken.database.connect().await;
    for id in lanes(&broken.database).await {
        lane::close(&mut conn, id).await.expect("removed");
    }
    broken.proxy.pass();
    let unknown = send.await.expect("no panic");
    assert!(matches!(unknown, Err(SendError::Unknown { .. })), "{unknown:?}");
    assert_eq!(broken.stored().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_senders_over_a_network_that_breaks_again_and_again_lose_and_double_nothing() {
    let lanes = NonZeroU32::new(8).expect("not zero");
    let broken =
        Arc::new(Broken::new(ProducerOptions { lanes, ..ProducerOptions::default() }).await);
    let (acknowledged, mut acknowledgements) = mpsc::unbounded_channel();
    for _ in 0..32 {
        let (broken, acknowledged) = (Arc::clone(&broken), acknowledged.clone());
        tokio::spawn(async move {
            for message in messages(20) {
                let sent = broken.producer.send(&broken.topic, message).await;
                drop(acknowledged.send(sent));
            }
        });
    }
    drop(acknowledged);
    let mut sent = Vec::new();
    while let Some(id) = acknowledgements.recv().await {
        sent.push(id.expect("acknowledged").msg_id);
        match sent.len() % 30 {
            10 => broken.proxy.drop_reply_after(STORE_IN_LANE),
            20 => broken.proxy.cut_before(STORE_IN_LANE),
            0 => broken.proxy.reset(),
            _ => {}
        }
    }
    assert_eq!(sent.len(), 640);
    let mut found = stored_ids(&broken.database, "mail").await;
    sent.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, sent);
}
