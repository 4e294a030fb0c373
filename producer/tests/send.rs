//! The library on a real server, without injected faults.

use std::time::Duration;

use crate::setup::{Told, lane_count, messages, stored, stored_ids};
use rowmq_core::model::{Access, TopicSettings};
use rowmq_core::store::{self, lane::LaneId};
use rowmq_core::{Error, Headers, MsgId, NewMessage, Priority, TopicName, wake};
use rowmq_producer::{Producer, ProducerOptions, SendError};
use rowmq_test::{TestDatabase, until};

/// A lane removes its row half a lease after its last send.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_send_returns_when_the_row_is_there_with_all_that_was_given() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let message = NewMessage::new([0, 0xff, b'\'', b'?'])
        .with_priority(Priority::FIRST)
        .with_key([0xfe])
        .with_biz_id("order-1")
        .with_header("trace", "a?b'c");
    let id = producer.send(&topic, message).await.expect("sent").msg_id;

    let rows = stored(&database, "mail").await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].msg_id, id);
    assert_eq!(rows[0].body, [0, 0xff, b'\'', b'?']);
    assert_eq!(rows[0].priority, Priority::FIRST);
    assert_eq!(rows[0].biz_id.as_deref(), Some("order-1"));
    assert_eq!(rows[0].headers, Headers::from_iter([("trace", "a?b'c")]));
    assert_eq!(rows[0].conn_id, None);
}

#[tokio::test]
async fn a_batch_is_stored_in_its_order() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let batch = messages(2500);
    let ids: Vec<MsgId> = batch.iter().map(|message| message.msg_id).collect();
    producer.send_all(&topic, batch).await.expect("sent");
    producer.send_all(&topic, Vec::new()).await.expect("nothing to do");
    assert_eq!(stored_ids(&database, "mail").await, ids);
}

#[tokio::test]
async fn sends_that_follow_one_another_are_stored_in_that_order() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions { lease: LONG, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let mut ids = Vec::new();
    for message in messages(50) {
        ids.push(producer.send(&topic, message).await.expect("sent").msg_id);
    }
    assert_eq!(stored_ids(&database, "mail").await, ids);
    assert_eq!(lane_count(&database).await, 1, "one lane is enough for one sender");
}

#[tokio::test]
async fn what_another_try_would_not_change_fails_at_once_and_stores_nothing() {
    let database = TestDatabase::new().await;
    let small = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let small = database.topic_with("small", &small).await.name;
    let paused = database.topic("paused").await.name;
    let mut conn = database.connect().await;
    store::topic::set_access(&mut conn, &paused, Access::ReadOnly).await.expect("paused");
    let unknown = TopicName::new("unknown").expect("a name");
    let told = Told::default();
    let producer =
        Producer::connect(database.url().clone(), told.options()).await.expect("connected");

    let refused = producer.send(&unknown, NewMessage::new("x")).await;
    assert!(matches!(refused, Err(SendError::Refused(Error::UnknownTopic { .. }))), "{refused:?}");
    let refused = producer.send(&paused, NewMessage::new("x")).await;
    assert!(matches!(refused, Err(SendError::Refused(Error::TopicPaused { .. }))), "{refused:?}");
    let long_key = NewMessage::new("x").with_key("k".repeat(256));
    let refused = producer.send(&small, long_key).await;
    assert!(matches!(refused, Err(SendError::Refused(Error::KeyTooLong { .. }))), "{refused:?}");
    // One body too many in a batch: none of it is stored.
    let mut batch = messages(5);
    batch[3].body = vec![b'x'; 11];
    let refused = producer.send_all(&small, batch).await;
    assert!(matches!(refused, Err(SendError::Refused(Error::BodyTooLarge { .. }))), "{refused:?}");

    assert_eq!(told.waits() + told.resends(), 0, "nothing was tried twice");
    assert!(stored(&database, "small").await.is_empty());
    assert!(stored(&database, "paused").await.is_empty());
    // The lane is unharmed, and a pause ends with the next message.
    producer.send(&small, NewMessage::new("fits")).await.expect("sent");
    store::topic::set_access(&mut conn, &paused, Access::ReadWrite).await.expect("resumed");
    producer.send(&paused, NewMessage::new("x")).await.expect("sent");
}

#[tokio::test]
async fn a_body_beyond_the_servers_packet_is_refused_without_a_resend() {
    let database = TestDatabase::new().await;
    let huge = TopicSettings { body_limit: u32::MAX, ..TopicSettings::default() };
    let topic = database.topic_with("huge", &huge).await.name;
    let told = Told::default();
    let producer =
        Producer::connect(database.url().clone(), told.options()).await.expect("connected");
    // Both servers have a limit of 16 or 64 MiB.
    let refused = producer.send(&topic, NewMessage::new(vec![b'x'; 65 << 20])).await;
    let Err(SendError::Refused(Error::PacketTooLarge { .. })) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(told.waits() + told.resends(), 0, "nothing was tried twice");
    assert!(stored(&database, "huge").await.is_empty());
    producer.send(&topic, NewMessage::new(vec![b'x'; 12 << 20])).await.expect("sent");
}

#[tokio::test]
async fn a_topic_is_created_only_where_the_option_says_so() {
    let database = TestDatabase::new().await;
    let topic = TopicName::new("new").expect("a name");
    let told = Told::default();
    let options = ProducerOptions { auto_create_topics: true, ..told.options() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    // Several at once: only one of them can create it.
    let sends = messages(8).into_iter().map(|message| {
        let (producer, topic) = (producer.clone(), topic.clone());
        tokio::spawn(async move { producer.send(&topic, message).await })
    });
    for send in sends.collect::<Vec<_>>() {
        send.await.expect("no panic").expect("sent");
    }
    assert_eq!(stored(&database, "new").await.len(), 8);
    assert_eq!(told.resends(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_senders_at_once_store_each_message_once() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let senders = (0..32).map(|_| {
        let (producer, topic) = (producer.clone(), topic.clone());
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for message in messages(20) {
                ids.push(producer.send(&topic, message).await.expect("sent").msg_id);
            }
            ids
        })
    });
    let mut sent = Vec::new();
    for sender in senders.collect::<Vec<_>>() {
        sent.extend(sender.await.expect("no panic"));
    }
    let mut found = stored_ids(&database, "mail").await;
    sent.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, sent);
    let lanes = lane_count(&database).await;
    assert!((1..=4).contains(&lanes), "{lanes} lanes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_dropped_by_its_caller_disturbs_no_other() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let mut sent = Vec::new();
    let mut dropped = Vec::new();
    for (n, message) in messages(200).into_iter().enumerate() {
        if n % 2 == 0 {
            dropped.push(message.msg_id);
            // Some are dropped before they begin, some in the middle of a statement.
            let limit = Duration::from_micros(50 * (n as u64 % 40));
            drop(tokio::time::timeout(limit, producer.send(&topic, message)).await);
        } else {
            sent.push(producer.send(&topic, message).await.expect("sent").msg_id);
        }
    }
    producer.close().await;
    let found = stored_ids(&database, "mail").await;
    let kept: Vec<_> = found.iter().copied().filter(|id| !dropped.contains(id)).collect();
    assert_eq!(kept, sent);
    for id in dropped {
        assert!(found.iter().filter(|other| **other == id).count() <= 1, "{id} is there twice");
    }
}

#[tokio::test]
async fn a_closed_producer_leaves_no_lane_and_sends_nothing_more() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let under_way = producer.send(&topic, NewMessage::new("last"));
    let clone = producer.clone();
    let (sent, ()) = tokio::join!(under_way, clone.close());
    sent.expect("what is under way is sent");
    assert_eq!(lane_count(&database).await, 0);
    let late = producer.send(&topic, NewMessage::new("late")).await;
    assert!(matches!(late, Err(SendError::Closed)), "{late:?}");
    producer.close().await;
    assert_eq!(stored(&database, "mail").await.len(), 1);
}

#[tokio::test]
async fn a_dropped_producer_closes_its_lanes_by_itself() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let options = ProducerOptions { lease: LONG, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    producer.send(&topic, NewMessage::new("x")).await.expect("sent");
    assert_eq!(lane_count(&database).await, 1);
    drop(producer);
    until("the lane is closed", async || lane_count(&database).await == 0).await;
}

#[tokio::test]
async fn an_idle_lane_is_closed_and_the_next_send_opens_another() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let told = Told::default();
    let options = ProducerOptions { lease: Duration::from_secs(6), ..told.options() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    producer.send(&topic, NewMessage::new("x")).await.expect("sent");
    until("the idle lane is closed", async || lane_count(&database).await == 0).await;
    producer.send(&topic, NewMessage::new("y")).await.expect("sent");
    assert_eq!(stored(&database, "mail").await.len(), 2);
    assert_eq!(told.waits(), 0, "it went before the server dropped it");
}

#[tokio::test]
async fn a_lane_that_was_pruned_with_nothing_in_doubt_is_replaced() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let told = Told::default();
    let producer =
        Producer::connect(database.url().clone(), told.options()).await.expect("connected");
    producer.send(&topic, NewMessage::new("x")).await.expect("sent");
    let mut conn = database.connect().await;
    let lanes: Vec<LaneId> = crate::setup::lanes(&database).await;
    for lane in lanes {
        store::lane::close(&mut conn, lane).await.expect("removed");
    }
    producer.send(&topic, NewMessage::new("y")).await.expect("sent");
    assert_eq!(stored(&database, "mail").await.len(), 2);
    assert_eq!(told.waits() + told.resends(), 0);
}

#[tokio::test]
async fn a_send_wakes_the_consumers_of_this_process() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await.name;
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default())
        .await
        .expect("connected");
    let mut wakes = wake::listen(database.url(), &topic);
    producer.send(&topic, NewMessage::new("x")).await.expect("sent");
    tokio::time::timeout(Duration::from_secs(60), wakes.next()).await.expect("woken");
}

#[tokio::test]
async fn connecting_fails_at_once_and_says_why() {
    let database = TestDatabase::new().await;
    let refused = Producer::connect(database.url_as("nobody", "x"), ProducerOptions::default());
    let refused = refused.await.expect_err("no such account").to_string();
    assert!(refused.contains("check the account"), "{refused}");
    let empty = TestDatabase::empty_on(database.url()).await;
    let refused = Producer::connect(empty.url().clone(), ProducerOptions::default()).await;
    assert_eq!(refused.expect_err("no tables").fault(), rowmq_core::Fault::Schema);
}
