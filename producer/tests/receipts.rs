//! Messages sent without waiting for each: receipts, batches, room, and the effects of a fault.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::mpsc;
use std::time::Duration;

use crate::setup::{batches, lanes, messages, stored, stored_ids};
use futures_util::FutureExt;
use futures_util::future::join_all;
use rowmq_core::model::TopicSettings;
use rowmq_core::{Error, Moment, MsgId, NewMessage, TopicName};
use rowmq_producer::{Batching, Producer, ProducerOptions, Receipt, ResendPolicy, SendError};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::STORE_IN_LANE;
use rowmq_test::{TestDatabase, until};
use tokio::task::unconstrained;

/// A lane removes its row, which counts its batches, half a lease after its last send.
const LONG: Duration = Duration::from_secs(60);

async fn send(producer: &Producer, topic: &TopicName, messages: Vec<NewMessage>) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for message in messages {
        receipts.push(producer.send_async(topic, message).await.expect("accepted"));
    }
    receipts
}

#[tokio::test]
async fn messages_are_stored_in_the_order_of_their_acceptance_and_in_few_batches() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions { lease: LONG, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let messages = messages(3000);
    let ids: Vec<MsgId> = messages.iter().map(|message| message.msg_id).collect();
    let receipts = send(&producer, &topic, messages).await;
    assert_eq!(receipts.iter().map(Receipt::msg_id).collect::<Vec<_>>(), ids);
    let outcomes = join_all(receipts).await;
    assert_eq!(
        outcomes.into_iter().map(|outcome| outcome.expect("stored").msg_id).collect::<Vec<_>>(),
        ids
    );
    assert_eq!(stored_ids(&database, "mail").await, ids);
    let batches = batches(&database).await;
    assert!((6..300).contains(&batches), "{batches} batches");
}

#[tokio::test]
async fn a_message_that_is_refused_takes_no_other_with_it() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let topic = database.topic_with("mail", &settings).await.name;
    // At first, all of them are one batch.
    let batching = Batching { linger: Duration::from_millis(500), ..Batching::default() };
    let options = ProducerOptions { batching, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let mut messages = messages(64);
    for bad in [0, 31, 32] {
        messages[bad].body = vec![b'x'; 11];
    }
    messages[50].deliver = Some(Moment::After(Duration::MAX));
    let outcomes = join_all(send(&producer, &topic, messages).await).await;
    let mut stored_ids_expected = Vec::new();
    for (at, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(sent) => stored_ids_expected.push(sent.msg_id),
            Err(SendError::Refused(Error::BodyTooLarge { len: 11, limit: 10, .. })) => {
                assert!([0, 31, 32].contains(&at), "{at}");
            }
            Err(SendError::Refused(Error::InvalidTime { .. })) => assert_eq!(at, 50),
            Err(error) => panic!("{at}: {error}"),
        }
    }
    assert_eq!(stored_ids_expected.len(), 60);
    assert_eq!(stored_ids(&database, "mail").await, stored_ids_expected);
}

#[tokio::test]
async fn a_topic_that_does_not_exist_refuses_each_message_and_no_other_topic() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let unknown = TopicName::new("unknown").expect("a name");
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let refused = send(&producer, &unknown, messages(3)).await;
    let accepted = send(&producer, &topic, messages(3)).await;
    for outcome in join_all(refused).await {
        assert!(matches!(outcome, Err(SendError::Refused(Error::UnknownTopic { .. }))));
    }
    for outcome in join_all(accepted).await {
        outcome.expect("stored");
    }
}

#[tokio::test]
async fn who_sends_more_than_there_is_room_for_waits() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let proxy = FaultProxy::start(database.url()).await;
    let buffer_bytes = NonZeroU32::new(10_000).expect("not zero");
    let batching = Batching { buffer_bytes, ..Batching::default() };
    let options = ProducerOptions { batching, ..ProducerOptions::default() };
    let url = proxy.url(database.url());
    let producer = Producer::connect(url, options).await.expect("connected");
    proxy.refuse();
    let body = vec![b'x'; 3000];
    let accept = || producer.send_async(&topic, NewMessage::new(body.clone()));
    let mut receipts = vec![accept().await.expect("room"), accept().await.expect("room")];
    let third = accept();
    tokio::pin!(third);
    assert!(third.as_mut().now_or_never().is_none(), "3 × 3,512 bytes are more than 10,000");
    proxy.pass();
    receipts.push(third.await.expect("there is room when the first are stored"));
    for outcome in join_all(receipts).await {
        outcome.expect("stored");
    }
    // Larger than the entire room, it waits until it is alone.
    let large = producer.send_async(&topic, NewMessage::new(vec![b'x'; 20_000])).await;
    large.expect("room").await.expect("stored");
    assert_eq!(stored(&database, "mail").await.len(), 4);
}

#[tokio::test]
async fn a_batch_waits_for_company_only_until_it_is_full() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let two = NonZeroUsize::new(2).expect("not zero");
    let linger = Duration::from_secs(3600);
    let batching = Batching { linger, max_messages: two, ..Batching::default() };
    let options = ProducerOptions { batching, lease: LONG, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    for outcome in join_all(send(&producer, &topic, messages(4)).await).await {
        outcome.expect("stored");
    }
    assert_eq!(batches(&database).await, 2);
    // No further message comes.
    let last = producer.send_async(&topic, NewMessage::new("last")).await.expect("accepted");
    producer.close().await;
    last.await.expect("stored");
}

#[tokio::test]
async fn a_callback_is_told_the_outcome_and_may_panic() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let (tell, told) = mpsc::channel();
    let messages = messages(20);
    let ids: Vec<MsgId> = messages.iter().map(|message| message.msg_id).collect();
    for (at, message) in messages.into_iter().enumerate() {
        let tell = tell.clone();
        let then = move |outcome| {
            tell.send(outcome).expect("the test listens");
            assert!(at % 2 == 0, "every other one panics");
        };
        producer.send_then(&topic, message, then).await.expect("accepted");
    }
    producer.close().await;
    let outcomes: Vec<_> = told.try_iter().map(|outcome| outcome.expect("stored").msg_id).collect();
    assert_eq!(outcomes, ids);
    assert_eq!(stored_ids(&database, "mail").await, ids);
}

#[tokio::test]
async fn a_close_stores_what_is_accepted_and_takes_no_more() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let receipts = send(&producer, &topic, messages(700)).await;
    producer.close().await;
    for receipt in receipts {
        unconstrained(receipt).now_or_never().expect("the outcome is known").expect("stored");
    }
    assert_eq!(stored(&database, "mail").await.len(), 700);
    let late = producer.send_async(&topic, NewMessage::new("late")).await;
    assert!(matches!(late, Err(SendError::Closed)));
}

#[tokio::test]
async fn a_producer_that_is_dropped_stores_what_it_has_accepted() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let receipts = send(&producer, &topic, messages(700)).await;
    drop(producer);
    for outcome in join_all(receipts).await {
        outcome.expect("stored");
    }
    until("the lane is closed", async || lanes(&database).await.is_empty()).await;
}

#[tokio::test]
async fn what_is_given_up_is_told_to_each_and_the_time_counts_from_the_acceptance() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let proxy = FaultProxy::start(database.url()).await;
    let one = NonZeroUsize::MIN;
    let options = ProducerOptions {
        resend: ResendPolicy { give_up_after: Duration::from_secs(5), ..ResendPolicy::default() },
        batching: Batching { max_messages: one, ..Batching::default() },
        ..ProducerOptions::default()
    };
    let url = proxy.url(database.url());
    let producer = Producer::connect(url, options).await.expect("connected");
    proxy.refuse();
    let outcomes = join_all(send(&producer, &topic, messages(5)).await).await;
    let mut tries = Vec::new();
    for outcome in outcomes {
        match outcome {
            Err(SendError::GaveUp { messages: 1, tries: n, .. }) => tries.push(n),
            outcome => panic!("{outcome:?}"),
        }
    }
    // The first batch may use the time of all of them. The deadlines of the others are later by the
    // time between the acceptances: enough for a few last tries, at the end.
    assert!(tries[0] > 2 && tries[1..].iter().all(|n| *n <= tries[0] / 2), "{tries:?}");
    proxy.pass();
    producer.send(&topic, NewMessage::new("later")).await.expect("stored");
    assert_eq!(stored(&database, "mail").await.len(), 1);
}

/// Four producers, whose connections are cut repeatedly: after every few batches the reply to a
/// committed one is dropped, or a batch is cut off before it arrives.
#[tokio::test]
async fn replies_that_are_lost_double_nothing_and_every_receipt_has_its_outcome() {
    const EACH: usize = 12_500;
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let senders = (0..4).map(|at| {
        let (database, topic) = (&database, topic.clone());
        async move {
            let proxy = FaultProxy::start(database.url()).await;
            let batching = Batching {
                max_messages: NonZeroUsize::new(64).expect("not 0"),
                ..Batching::default()
            };
            let options = ProducerOptions { batching, ..ProducerOptions::default() };
            let url = proxy.url(database.url());
            let producer = Producer::connect(url, options).await.expect("connected");
            let mut sent = Vec::new();
            for part in messages(EACH).chunks(640) {
                // At most ten batches, one of which is hit.
                let arm =
                    if at % 2 == 0 { FaultProxy::drop_reply_after } else { FaultProxy::cut_before };
                arm(&proxy, STORE_IN_LANE);
                let receipts = send(&producer, &topic, part.to_vec()).await;
                for outcome in join_all(receipts).await {
                    sent.push(outcome.expect("stored").msg_id);
                }
                proxy.sprung().await;
            }
            producer.close().await;
            sent
        }
    });
    let sent: Vec<Vec<MsgId>> = join_all(senders).await;
    let stored = stored_ids(&database, "mail").await;
    assert_eq!(stored.len(), 4 * EACH);
    for sent in sent {
        let mine: std::collections::HashSet<_> = sent.iter().collect();
        let order: Vec<_> = stored.iter().filter(|id| mine.contains(id)).collect();
        assert_eq!(order, sent.iter().collect::<Vec<_>>(), "each producer's order is kept");
    }
}
