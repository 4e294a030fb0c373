//! Large batches of a stream bypass its inbox: once, whole and in order, wherever they break.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use crate::setup::{depth, messages};
use rowmq_core::connection::transaction;
use rowmq_core::model::{ClaimNo, DeliveryNo, Offset, PartitionNo, TopicSettings};
use rowmq_core::store::stream::log::{Reading, Stretch};
use rowmq_core::stream::group::create_stream;
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{NewMessage, TopicName, store};
use rowmq_producer::{Producer, ProducerOptions};
use rowmq_test::TestDatabase;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::{READ_TOPIC, STORE_IN_LANE};

/// Batches of this size and more bypass the inbox.
const DIRECT: usize = 100;

/// Every statement of such a batch.
const STATEMENTS: [&str; 8] = [
    READ_TOPIC,
    "BEGIN",
    STORE_IN_LANE,
    "SELECT queue_partition.partition_no",
    "SELECT priority, id",
    "INSERT INTO queue_log",
    "UPDATE queue_partition",
    "COMMIT",
];

/// Creates a stream of one partition.
async fn stream() -> (TestDatabase, TopicName) {
    let (database, name) = (TestDatabase::new().await, TopicName::new("s").expect("a name"));
    let mut conn = database.connect().await;
    create_stream(&mut conn, &name, 1, &TopicSettings::default()).await.expect("created");
    (database, name)
}

/// Returns the offsets and bodies of the log.
async fn log(database: &TestDatabase) -> Vec<(u64, String)> {
    let mut conn = database.connect().await;
    let name = TopicName::new("s").expect("a name");
    let stream = store::topic::existing(&mut conn, &name).await.expect("read").id;
    let reading = Reading { group: stream, claim_no: ClaimNo(0), delivery_no: DeliveryNo(0) };
    let (lo, hi) = (Offset(0), Offset(100_000));
    let stretch = Stretch { stream, partition: PartitionNo(0), lo, hi };
    let read = store::stream::log::read(&mut conn, stretch, reading).await.expect("read");
    let text = |body: Vec<u8>| String::from_utf8(body).expect("text");
    read.deliveries.into_iter().map(|one| (one.row.0, text(one.body))).collect()
}

async fn sequence_all(database: &TestDatabase, name: &TopicName) {
    let mut conn = database.connect().await;
    let id = store::topic::existing(&mut conn, name).await.expect("read").id;
    let turn = async |conn: &mut _| sequence(conn, id, 1000, Contention::Wait).await;
    transaction(&mut conn, "test", turn).await.expect("sequenced");
}

fn numbered(bodies: impl Iterator<Item = String>) -> Vec<(u64, String)> {
    (0..).zip(bodies).collect()
}

#[tokio::test]
async fn a_large_batch_is_in_the_log_at_once_behind_what_was_sent_before() {
    let (database, name) = stream().await;
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    producer.send_all(&name, messages(DIRECT - 1)).await.expect("stored");
    assert_eq!((log(&database).await.len(), depth(&database, "s").await.unsettled), (0, 99));
    let later = NewMessage::new("later").with_delay(std::time::Duration::from_secs(3600));
    let batch = messages(DIRECT).into_iter().chain([later]).collect();
    producer.send_all(&name, batch).await.expect("stored");
    let depth = depth(&database, "s").await;
    assert_eq!((depth.unsettled, depth.scheduled), (0, 1));
    let bodies = (0..DIRECT - 1).chain(0..DIRECT).map(|n| n.to_string());
    assert_eq!(log(&database).await, numbered(bodies));
}

#[tokio::test]
async fn a_large_batch_is_stored_once_whole_and_in_order_wherever_it_breaks() {
    for statement in STATEMENTS {
        for arm in [FaultProxy::drop_reply_after, FaultProxy::cut_before] {
            let (database, name) = stream().await;
            let proxy = FaultProxy::start(database.url()).await;
            let url = proxy.url(database.url());
            let options = ProducerOptions::default();
            let producer = Producer::connect(url, options).await.expect("connected");
            arm(&proxy, statement);
            producer.send_all(&name, messages(DIRECT)).await.expect("acknowledged");
            proxy.sprung().await;
            producer.send_all(&name, messages(DIRECT)).await.expect("acknowledged");
            // The broken connection may have been at work on the log for longer than that.
            sequence_all(&database, &name).await;
            let bodies = (0..DIRECT).chain(0..DIRECT).map(|n| n.to_string());
            assert_eq!(log(&database).await, numbered(bodies), "{statement}");
        }
    }
}
