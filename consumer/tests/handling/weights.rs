//! Topics that share their consumer's concurrency by weights.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowmq_consumer::{ConsumerOptions, TopicOptions};
use rowmq_core::handler::Context;
use rowmq_core::model::TopicSettings;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::{Barrier, Notify, Semaphore};

use crate::handling::running::{Running, With, drained, patient, quick, send};

fn shared(concurrency: usize) -> ConsumerOptions {
    ConsumerOptions { concurrency: NonZeroUsize::new(concurrency), ..patient() }
}

fn weight(weight: u32) -> TopicOptions {
    let weight = NonZeroU32::new(weight).expect("not zero");
    TopicOptions { weight, ..TopicOptions::default() }
}

fn numbered(n: usize) -> Vec<NewMessage> {
    (0..n).map(|n| NewMessage::new(n.to_string())).collect()
}

/// Records which topic's messages are handled, in order, and how many handlers ran at once.
#[derive(Clone, Default)]
struct Log {
    topics: Arc<Mutex<Vec<String>>>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Log {
    async fn handle(&self, context: &Context) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        self.topics.lock().expect("unpoisoned").push(context.topic.to_string());
        tokio::time::sleep(Duration::from_millis(4)).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Holds a slot until there is a permit.
    async fn hold(&self, gate: &Semaphore) {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        gate.acquire().await.expect("never closed").forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether a message of the topic has been claimed, though it may have been given back since.
async fn delivered(conn: &mut AsyncMysqlConnection, topic: &Topic) -> bool {
    let messages = store::inspect::peek(conn, topic.id, 500).await.expect("peeked");
    messages.iter().any(|message| message.delivery_no > 0)
}

/// The three topics share one slot, and the other slots are held. A topic claims for all slots, and
/// has no more messages than that: it has claimed all of them when its turns begin, so a busy
/// server does not affect the result.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_worked_off_by_the_weights_and_to_its_end() {
    const SLOTS: usize = 16;
    let database = TestDatabase::new().await;
    let holding = database.topic("holding").await;
    let topics = [
        database.topic("light").await,
        database.topic("middle").await,
        database.topic("heavy").await,
    ];
    let (log, held) = (Log::default(), Arc::new(Semaphore::new(0)));
    let running = Running::start(&database, |consumer| {
        let (log_of_held, gate) = (log.clone(), Arc::clone(&held));
        let hold = With(move |_| {
            let (log, gate) = (log_of_held.clone(), Arc::clone(&gate));
            async move {
                log.hold(&gate).await;
                Ok(())
            }
        });
        let mut consumer = consumer.options(shared(SLOTS));
        consumer = consumer.raw_handler(holding.name.clone(), weight(1), hold);
        for (topic, its) in topics.iter().zip([1, 2, 5]) {
            let log = log.clone();
            let handler = With(move |context: Context| {
                let log = log.clone();
                async move {
                    log.handle(&context).await;
                    Ok(())
                }
            });
            consumer = consumer.raw_handler(topic.name.clone(), weight(its), handler);
        }
        consumer
    });
    send(&database, &holding, &numbered(SLOTS)).await;
    until("every slot is held", async || log.running.load(Ordering::SeqCst) == SLOTS).await;
    let mut conn = database.connect().await;
    for topic in &topics {
        send(&database, topic, &numbered(SLOTS)).await;
    }
    for topic in &topics {
        until("it has been claimed from", async || delivered(&mut conn, topic).await).await;
    }
    held.add_permits(1);
    drained(&database, &topics[2]).await;
    held.add_permits(SLOTS - 1);
    for topic in topics.iter().chain([&holding]) {
        drained(&database, topic).await;
    }
    running.stop().await;
    let log_of_topics = log.topics.lock().expect("unpoisoned");
    assert_eq!(log_of_topics.len(), 3 * SLOTS);
    assert_eq!(log.most.load(Ordering::SeqCst), SLOTS, "as many as are shared and no more");
    // While all three had work.
    let end = log_of_topics.iter().rposition(|topic| topic == "heavy").expect("handled");
    let count = |name: &str| log_of_topics[..end].iter().filter(|topic| *topic == name).count();
    let (light, middle) = (count("light"), count("middle"));
    assert!((1..=6).contains(&light), "{light} beside {SLOTS}, 3 are meant");
    assert!((3..=10).contains(&middle), "{middle} beside {SLOTS}, 6 are meant");
}

/// The others have no work.
#[tokio::test(flavor = "multi_thread")]
async fn one_topic_may_use_all_that_is_shared() {
    let database = TestDatabase::new().await;
    let topics = [database.topic("idle").await, database.topic("busy").await];
    send(&database, &topics[1], &numbered(8)).await;
    let all = Arc::new(Barrier::new(4));
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.options(shared(4));
        let idle = With(|_| async { Ok(()) });
        let consumer = consumer.raw_handler(topics[0].name.clone(), weight(100), idle);
        let meet = Arc::clone(&all);
        let busy = With(move |_| {
            let meet = Arc::clone(&meet);
            async move {
                meet.wait().await;
                Ok(())
            }
        });
        consumer.raw_handler(topics[1].name.clone(), weight(1), busy)
    });
    drained(&database, &topics[1]).await;
    running.stop().await;
}

/// A free slot is not lost to a topic whose handlers are slow.
#[tokio::test(flavor = "multi_thread")]
async fn a_topic_has_its_turn_while_the_handlers_of_another_one_are_slow() {
    let database = TestDatabase::new().await;
    let (slow, fast) = (database.topic("slow").await, database.topic("fast").await);
    send(&database, &slow, &numbered(20)).await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let running = Running::start(&database, |consumer| {
        let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go_on));
        let handler = With(move |_| {
            let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
            async move {
                tell.notify_one();
                wait.notified().await;
                Ok(())
            }
        });
        let consumer = consumer.options(shared(1));
        let consumer = consumer.raw_handler(slow.name.clone(), weight(1000), handler);
        consumer.raw_handler(fast.name.clone(), weight(1), With(|_| async { Ok(()) }))
    });
    let next = async || tokio::time::timeout(PATIENCE, begun.notified()).await.expect("begun");
    next().await;
    send(&database, &fast, &numbered(1)).await;
    // However large the other's weight is: it has used more in some turns.
    for _ in 1..20 {
        go_on.notify_one();
        next().await;
    }
    go_on.notify_one();
    drained(&database, &slow).await;
    drained(&database, &fast).await;
    running.stop().await;
}

/// The janitor counts a run's time from the claim on.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waited_for_its_turn_too_long_is_claimed_anew() {
    let database = TestDatabase::new().await;
    let limited = TopicSettings { max_run_time: Some(Duration::from_secs(60)), ..quick() };
    let slow = database.topic("slow").await;
    let limited = database.topic_with("limited", &limited).await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handled = Arc::new(Mutex::new(None));
    let running = Running::start(&database, |consumer| {
        let (tell, wait) = (Arc::clone(&begun), Arc::clone(&go_on));
        let handler = With(move |_| {
            let (tell, wait) = (Arc::clone(&tell), Arc::clone(&wait));
            async move {
                tell.notify_one();
                wait.notified().await;
                Ok(())
            }
        });
        // A message waits for half a lease.
        let consumer =
            consumer.options(ConsumerOptions { lease: Duration::from_secs(20), ..shared(1) });
        let consumer = consumer.raw_handler(slow.name.clone(), weight(1), handler);
        let note = Arc::clone(&handled);
        let handler = With(move |context: Context| {
            *note.lock().expect("unpoisoned") = Some(context.delivery.delivery_no.0);
            async { Ok(()) }
        });
        consumer.raw_handler(limited.name.clone(), weight(1), handler)
    });
    send(&database, &slow, &numbered(1)).await;
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("begun");
    send(&database, &limited, &numbered(1)).await;
    let mut conn = database.connect().await;
    until("claimed", async || delivered(&mut conn, &limited).await).await;
    until("given back", async || {
        store::inspect::depth(&mut conn, limited.id).await.expect("a depth").claimed == 0
    })
    .await;
    // Nothing is claimed until the turn comes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let left = store::inspect::peek(&mut conn, limited.id, 1).await.expect("peeked");
    assert_eq!((left[0].conn_id, left[0].delivery_no), (None, 1));
    assert_eq!(*handled.lock().expect("unpoisoned"), None);
    go_on.notify_one();
    drained(&database, &limited).await;
    running.stop().await;
    assert_eq!(*handled.lock().expect("unpoisoned"), Some(2), "its second delivery");
}

/// It claims nothing either, until its turn comes; then it does.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_without_a_turn_is_left_to_another_consumer() {
    let database = TestDatabase::new().await;
    let topics = [database.topic("slow").await, database.topic("fast").await];
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let told = (began.clone(), go_on.clone());
    let fast = Arc::new(AtomicUsize::new(0));
    let counted = fast.clone();
    let running = Running::start(&database, |consumer| {
        let slow = With(move |_| {
            let (began, go_on) = told.clone();
            async move {
                began.notify_one();
                go_on.notified().await;
                Ok(())
            }
        });
        let quick = With(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
        consumer
            .options(shared(1))
            .raw_handler(topics[0].name.clone(), weight(1), slow)
            .raw_handler(topics[1].name.clone(), weight(1), quick)
    });
    send(&database, &topics[0], &numbered(1)).await;
    tokio::time::timeout(PATIENCE, began.notified()).await.expect("begun");
    send(&database, &topics[1], &numbered(20)).await;
    let mut conn = database.connect().await;
    until("claimed", async || delivered(&mut conn, &topics[1]).await).await;
    let other = Running::start(&database, |consumer| {
        let quick = With(|_| async { Ok(()) });
        consumer.raw_handler(topics[1].name.clone(), TopicOptions::default(), quick)
    });
    drained(&database, &topics[1]).await;
    other.stop().await;
    assert_eq!(fast.load(Ordering::SeqCst), 0, "it was never its turn");
    send(&database, &topics[1], &numbered(20)).await;
    go_on.notify_one();
    drained(&database, &topics[1]).await;
    running.stop().await;
    assert_eq!(fast.load(Ordering::SeqCst), 20);
}
