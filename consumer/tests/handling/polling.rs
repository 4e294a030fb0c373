use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowmq_consumer::{Consumer, ConsumerBuilder, ConsumerOptions, Receiver, TopicOptions};
use rowmq_core::handler::HandlerError;
use rowmq_core::{NewMessage, TopicName, store, wake};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::Notify;

use crate::handling::running::{Running, With, drained, patient, quick, send};

/// Seed 002: the application acks with a call of its own; a delivery dropped without an ack is
/// released.
#[tokio::test(flavor = "multi_thread")]
async fn pulled_deliveries_are_settled_by_the_caller_and_released_when_dropped() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("pulled", &quick()).await;
    let bodies = ["ack", "fail", "drop"];
    send(&database, &topic, &bodies.map(NewMessage::new)).await;
    let options = patient();
    let mut receiver = Receiver::connect(database.url().clone(), topic.name.clone(), 10, options)
        .await
        .expect("connected");
    let mut seen = Vec::new();
    // Three, and the dropped one and the failed one once more.
    while seen.len() < 3 || seen.iter().filter(|(_, no)| *no == 2).count() < 2 {
        let received = tokio::time::timeout(PATIENCE, receiver.receive())
            .await
            .expect("in time")
            .expect("received");
        let body = String::from_utf8(received.body.clone()).expect("text");
        seen.push((body.clone(), received.delivery_no.0));
        match body.as_str() {
            "fail" if received.failures == 0 => {
                received.fail(HandlerError::retry("not now")).await.expect("failed");
            }
            "drop" if received.delivery_no.0 == 1 => drop(received),
            _ => received.ack().await.expect("acked"),
        }
    }
    receiver.close().await.expect("closed");
    drained(&database, &topic).await;
    seen.sort();
    let expected = [("ack", 1), ("drop", 1), ("drop", 2), ("fail", 1), ("fail", 2)];
    assert_eq!(seen, expected.map(|(body, no)| (body.to_owned(), no)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_enqueue_in_the_same_process_wakes_the_consumer() {
    let database = TestDatabase::new().await;
    let topic = database.topic("woken").await;
    let handled = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&handled));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |_| {
            tell.notify_one();
            async { Ok(()) }
        });
        consumer.raw_handler(name, TopicOptions::default(), handler)
    });
    for _ in 0..20 {
        send(&database, &topic, &[NewMessage::new("x")]).await;
        wake::wake(database.url(), &topic.name);
        tokio::time::timeout(PATIENCE, handled.notified()).await.expect("handled");
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_topic_waits_and_a_resumed_one_goes_on() {
    let database = TestDatabase::new().await;
    let topic = database.topic("paused").await;
    let mut conn = database.connect().await;
    let pause = rowmq_core::model::Access::WriteOnly;
    store::topic::set_access(&mut conn, &topic.name, pause).await.expect("paused");
    let seen = Arc::new(Mutex::new(0_u32));
    let (name, count) = (topic.name.clone(), Arc::clone(&seen));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |_| {
            *count.lock().expect("unpoisoned") += 1;
            async { Ok(()) }
        });
        consumer.raw_handler(name, TopicOptions::default(), handler)
    });
    until("registered", async || {
        let workers = store::worker::alive(&mut conn).await.expect("workers");
        workers.first().is_some_and(|worker| worker.beat_no >= 3)
    })
    .await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let beats = async |conn: &mut _| {
        let workers: Vec<store::worker::WorkerRow> =
            store::worker::alive(conn).await.expect("workers");
        workers[0].beat_no
    };
    let now = beats(&mut conn).await;
    until("a beat later", async || beats(&mut conn).await > now).await;
    assert_eq!(*seen.lock().expect("unpoisoned"), 0, "nothing is claimed while it is paused");
    let open = rowmq_core::model::Access::ReadWrite;
    store::topic::set_access(&mut conn, &topic.name, open).await.expect("resumed");
    drained(&database, &topic).await;
    assert_eq!(*seen.lock().expect("unpoisoned"), 1);
    running.stop().await;
}

#[test]
fn a_consumer_that_cannot_work_is_refused_with_the_reason() {
    let url = || "mysql://u:p@127.0.0.1/q".parse().expect("a URL");
    let name = || TopicName::new("t").expect("a name");
    let nothing = || With(|_| async { Ok(()) });
    let refused = |builder: ConsumerBuilder| match builder.build() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("built"),
    };
    assert!(refused(Consumer::builder(url())).contains("No handler"));
    let twice = Consumer::builder(url())
        .raw_handler(name(), TopicOptions::default(), nothing())
        .raw_handler(name(), TopicOptions::default(), nothing());
    assert!(refused(twice).contains("'t' has two handlers"));
    let lease = ConsumerOptions { lease: Duration::from_secs(1), ..ConsumerOptions::default() };
    let short = Consumer::builder(url()).options(lease).raw_handler(
        name(),
        TopicOptions::default(),
        nothing(),
    );
    assert!(refused(short).contains("2 s or more"));
}
