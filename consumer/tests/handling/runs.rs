use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowmq_consumer::TopicOptions;
use rowmq_core::handler::Context;
use rowmq_core::model::{ClaimNo, OnDone, TopicSettings};
use rowmq_core::{NewMessage, Priority, store};
use rowmq_service::health::Health;
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::{Barrier, Notify};
use tokio_util::sync::CancellationToken;

use crate::handling::running::{Running, With, drained, one_at_a_time, quick, send};

#[tokio::test(flavor = "multi_thread")]
async fn one_handler_at_a_time_sees_strict_order_by_priority_and_id() {
    let database = TestDatabase::new().await;
    let topic = database.topic("ordered").await;
    let low = Priority::new(7).expect("a priority");
    let mut messages: Vec<_> = (0..300).map(|i| NewMessage::new(format!("5 {i:04}"))).collect();
    messages.extend((0..50).map(|i| NewMessage::new(format!("7 {i:04}")).with_priority(low)));
    messages.extend(
        (0..50).map(|i| NewMessage::new(format!("0 {i:04}")).with_priority(Priority::FIRST)),
    );
    send(&database, &topic, &messages).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (name, sink) = (topic.name.clone(), Arc::clone(&seen));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let body = String::from_utf8(context.delivery.body.clone()).expect("text");
            sink.lock().expect("unpoisoned").push(body);
            async { Ok(()) }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let seen = seen.lock().expect("unpoisoned").clone();
    let mut sorted = seen.clone();
    sorted.sort();
    assert_eq!(seen.len(), 400);
    assert_eq!(seen, sorted);
}

/// A time beyond every clock sets no limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_may_take_as_long_as_can_be_said() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("slow", &quick()).await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let told = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&told));
    let options = TopicOptions { timeout: Some(Duration::MAX), ..TopicOptions::default() };
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let tell = Arc::clone(&tell);
            async move {
                assert_eq!(context.deadline, None);
                tell.notify_one();
                Ok(())
            }
        });
        consumer.raw_handler(name, options, handler)
    });
    tokio::time::timeout(PATIENCE, told.notified()).await.expect("told");
    drained(&database, &topic).await;
    running.stop().await;
}

/// F23: when a run's time is up, its handler is cancelled, then dropped; a failure is charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_interrupted_and_retried() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("slow", &quick()).await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let told = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&told));
    let options = TopicOptions { timeout: Some(Duration::from_secs(3)), ..TopicOptions::default() };
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let tell = Arc::clone(&tell);
            async move {
                assert!(context.deadline.is_some());
                if context.delivery.failures == 0 {
                    context.cancelled.cancelled().await;
                    tell.notify_one();
                    return Ok(());
                }
                assert_eq!((context.delivery.failures, context.delivery.delivery_no.0), (1, 2));
                Ok(())
            }
        });
        consumer.raw_handler(name, options, handler)
    });
    tokio::time::timeout(PATIENCE, told.notified()).await.expect("told");
    drained(&database, &topic).await;
    running.stop().await;
    let mut conn = database.connect().await;
    assert_eq!(store::inspect::depth(&mut conn, topic.id).await.expect("a depth").dead, 0);
}

/// While its handlers hang, a consumer gives back what it claimed ahead of them.
#[tokio::test(flavor = "multi_thread")]
async fn another_consumer_handles_what_was_claimed_ahead_of_handlers_that_hang() {
    let database = TestDatabase::new().await;
    let topic = database.topic("work").await;
    let messages: Vec<_> = (0..4000).map(|i| NewMessage::new(format!("{i}"))).collect();
    send(&database, &topic, &messages).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let (hang, go_on) = (CancellationToken::new(), CancellationToken::new());
    let quick = Running::start(&database, |consumer| {
        let (handled, hang, go_on) = (Arc::clone(&handled), hang.clone(), go_on.clone());
        let handler = With(move |_| {
            if handled.fetch_add(1, Ordering::Relaxed) == 1000 {
                hang.cancel();
            }
            let hangs = hang.is_cancelled().then(|| go_on.clone());
            async move {
                if let Some(go_on) = hangs {
                    go_on.cancelled().await;
                }
                Ok(())
            }
        });
        consumer.raw_handler(topic.name.clone(), TopicOptions::default(), handler)
    });
    tokio::time::timeout(PATIENCE, hang.cancelled()).await.expect("a thousand are handled");
    let other = Running::start(&database, |consumer| {
        let handler = With(|_| async { Ok(()) });
        consumer.raw_handler(topic.name.clone(), TopicOptions::default(), handler)
    });
    let mut conn = database.connect().await;
    let hanging = TopicOptions::default().concurrency as u64;
    until("only what hangs is left", async || {
        store::inspect::depth(&mut conn, topic.id).await.expect("a depth").unsettled <= hanging
    })
    .await;
    go_on.cancel();
    drained(&database, &topic).await;
    quick.stop().await;
    other.stop().await;
}

/// S10: no transaction is open, and no row locked, while a handler runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_handler_holds_no_lock() {
    let database = TestDatabase::new().await;
    let topic = database.topic("work").await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let barrier = Arc::new(Barrier::new(2));
    let (name, inside) = (topic.name.clone(), Arc::clone(&barrier));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |_| {
            let inside = Arc::clone(&inside);
            async move {
                inside.wait().await;
                inside.wait().await;
                Ok(())
            }
        });
        consumer.raw_handler(name, TopicOptions::default(), handler)
    });
    barrier.wait().await;
    let mut conn = database.connect().await;
    store::doctor::begin(&mut conn).await.expect("begun");
    let worker = store::worker::latest(&mut conn, 1).await.expect("workers")[0].id;
    let rows = store::claim::of_worker(&mut conn, worker, ClaimNo(0));
    let claims = rows.await.expect("claims");
    let claimed = store::settle::ClaimedRows {
        fence: claims[0].fence,
        topic: topic.id,
        priority: claims[0].priority,
        rows: [claims[0].lo].into_iter().collect(),
    };
    let locked = store::settle::lock_own(&mut conn, &claimed).await.expect("not locked");
    assert_eq!(locked.len(), 1, "another session can lock the row at once");
    store::doctor::roll_back(&mut conn).await.expect("rolled back");
    barrier.wait().await;
    drained(&database, &topic).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handled_messages_are_kept_where_the_topic_says_so() {
    let database = TestDatabase::new().await;
    let keep = TopicSettings { on_done: OnDone::Keep(Duration::from_secs(600)), ..quick() };
    let topic = database.topic_with("kept", &keep).await;
    send(&database, &topic, &(0..20).map(|_| NewMessage::new("x")).collect::<Vec<_>>()).await;
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(name, TopicOptions::default(), With(|_| async { Ok(()) }))
    });
    drained(&database, &topic).await;
    running.stop().await;
    let mut conn = database.connect().await;
    let mut purged = 0;
    let table = store::inspect::MessageTable::Archive;
    purged += store::inspect::purge_some(&mut conn, table, topic.id, 100).await.expect("purged");
    assert_eq!(purged, 20);
}

/// A consumer whose handlers are all busy claims nothing, and is alive nevertheless: a restart
/// because of its probe would start the long jobs again.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_busy_for_long_is_alive() {
    let database = TestDatabase::new().await;
    let topic = database.topic("jobs").await;
    send(&database, &topic, &[NewMessage::new("a long job")]).await;
    let (begun, over) = (CancellationToken::new(), CancellationToken::new());
    let health = Health::new();
    let (started, ended) = (begun.clone(), over.clone());
    let job = With(move |_| {
        let (started, ended) = (started.clone(), ended.clone());
        async move {
            started.cancel();
            ended.cancelled().await;
            Ok(())
        }
    });
    let running = Running::start(&database, |builder| {
        let builder = builder.health(health.clone());
        builder.raw_handler(topic.name.clone(), one_at_a_time(), job)
    });
    begun.cancelled().await;
    for _ in 0..2 {
        let before = health.last_turn();
        until("turned", async || health.last_turn() != before).await;
    }
    over.cancel();
    drained(&database, &topic).await;
    running.stop().await;
}
