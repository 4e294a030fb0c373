//! Sends that wait for a lane and share a batch.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::future::Future;
use std::num::NonZeroU32;

use crate::setup::{batches, messages, stored_ids};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use rowmq_core::model::TopicSettings;
use rowmq_core::stream::group::create_stream;
use rowmq_core::{Error, NewMessage, Priority, TopicName};
use rowmq_producer::{Outcome, Producer, ProducerOptions, Progress, ProgressListener, SendError};
use rowmq_test::TestDatabase;
use rowmq_test::proxy::FaultProxy;
use tokio::sync::mpsc;

/// A producer with one lane, before a server that refuses it.
struct Held {
    database: TestDatabase,
    proxy: FaultProxy,
    producer: Producer,
    /// The sizes of the batches that were tried in vain.
    waiting: mpsc::UnboundedReceiver<usize>,
}

impl Held {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let proxy = FaultProxy::start(database.url()).await;
        let (tell, waiting) = mpsc::unbounded_channel();
        let listener = ProgressListener::new(move |progress| {
            if let Progress::Waiting { messages, .. } = progress {
                tell.send(messages).expect("the test listens");
            }
        });
        let options = ProducerOptions {
            lanes: NonZeroU32::MIN,
            on_progress: Some(listener),
            ..ProducerOptions::default()
        };
        let url = proxy.url(database.url());
        let producer = Producer::connect(url, options).await.expect("connected");
        proxy.refuse();
        Self { database, proxy, producer, waiting }
    }

    /// Sends a message that occupies the lane.
    async fn occupy(&mut self, topic: &TopicName) -> BoxFuture<'static, Outcome> {
        let (producer, topic) = (self.producer.clone(), topic.clone());
        let send = async move { producer.send(&topic, NewMessage::new("first")).await };
        let first = pending(send);
        assert_eq!(self.waiting.recv().await, Some(1));
        first
    }

    /// Sends the messages while the lane is occupied, and lets the server answer. Returns their
    /// outcomes.
    async fn send(&mut self, topic: &TopicName, messages: Vec<NewMessage>) -> Vec<Outcome> {
        let first = self.occupy(topic).await;
        let others = pending(self.send_all_singly(topic, messages));
        self.proxy.pass();
        first.await.expect("stored");
        others.await
    }

    fn send_all_singly(
        &self,
        topic: &TopicName,
        messages: Vec<NewMessage>,
    ) -> impl Future<Output = Vec<Outcome>> + use<> {
        let (producer, topic) = (self.producer.clone(), topic.clone());
        async move {
            let sends = messages.into_iter().map(|message| producer.send(&topic, message));
            join_all(sends).await
        }
    }
}

/// Polls a future once, which does not end it.
fn pending<T>(future: impl Future<Output = T> + Send + 'static) -> BoxFuture<'static, T> {
    let mut future = future.boxed();
    assert!((&mut future).now_or_never().is_none());
    future
}

#[tokio::test]
async fn sends_that_wait_for_a_lane_share_a_batch() {
    let mut held = Held::new().await;
    let topic = held.database.topic("mail").await.name;
    let outcomes = held.send(&topic, messages(100)).await;
    let ids: Vec<_> = outcomes.into_iter().map(|sent| sent.expect("stored").msg_id).collect();
    // Each sender has the id of its own message.
    assert_eq!(stored_ids(&held.database, "mail").await[1..], ids);
    // The first, the hundred, and what became of the lane that was refused.
    let batches = batches(&held.database).await;
    assert!(batches <= 4, "{batches} batches");
}

#[tokio::test]
async fn an_error_of_one_message_reaches_its_sender_only() {
    let mut held = Held::new().await;
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let topic = held.database.topic_with("mail", &settings).await.name;
    let mut messages = messages(64);
    messages[31].body = vec![b'x'; 11];
    let outcomes = held.send(&topic, messages).await;
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Err(SendError::Refused(Error::BodyTooLarge { .. })) => assert_eq!(at, 31),
            outcome => drop(outcome.expect("stored")),
        }
    }
    assert_eq!(stored_ids(&held.database, "mail").await.len(), 64);
}

#[tokio::test]
async fn a_priority_that_a_stream_refuses_reaches_its_sender_only() {
    let mut held = Held::new().await;
    let topic = TopicName::new("s").expect("a name");
    let mut conn = held.database.connect().await;
    create_stream(&mut conn, &topic, 1, &TopicSettings::default()).await.expect("created");
    let mut messages = messages(8);
    messages[3].priority = Priority::FIRST;
    let outcomes = held.send(&topic, messages).await;
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Err(SendError::Refused(Error::NoPriorities { .. })) => assert_eq!(at, 3),
            outcome => drop(outcome.expect("stored")),
        }
    }
}

#[tokio::test]
async fn a_sender_that_goes_away_takes_no_other_with_it() {
    let mut held = Held::new().await;
    let topic = held.database.topic("mail").await.name;
    let first = held.occupy(&topic).await;
    let gone = pending(held.send_all_singly(&topic, messages(8)));
    let staying = pending(held.send_all_singly(&topic, messages(8)));
    drop((first, gone));
    held.proxy.pass();
    for outcome in staying.await {
        outcome.expect("stored");
    }
}
