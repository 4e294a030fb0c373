//! Handlers in a consumer within the test: verdicts, panics, time, order, batches, the pull API.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use consumer::{
    Consumer, ConsumerBuilder, ConsumerOptions, Error, Receiver, Shutdown, TopicOptions,
};
use queue_core::handler::{BatchHandler, Context, Decide, Handler, HandlerError, RawHandler};
use queue_core::topic::{OnDone, RetryPolicy, TopicSettings};
use queue_core::{NewMessage, Priority, Topic, TopicName, enqueue_to, store, wake};
use queue_test::TestDatabase;
use serde::{Deserialize, Serialize};
use tokio::sync::{Barrier, Notify};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longer than anything here may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A consumer that runs until the test ends it.
struct Running {
    shutdown: Shutdown,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    fn start(
        database: &TestDatabase,
        with: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    ) -> Self {
        let consumer = with(Consumer::builder(database.url().clone())).build().expect("built");
        let shutdown = Shutdown { drain: CancellationToken::new(), quit: CancellationToken::new() };
        let task = tokio::spawn(consumer.run(shutdown.clone()));
        Self { shutdown, task }
    }

    async fn stop(self) {
        self.shutdown.drain.cancel();
        self.task.await.expect("no panic").expect("stopped in order");
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "not {what} after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn drained(database: &TestDatabase, topic: &Topic) {
    let mut conn = database.connect().await;
    until("drained", async || {
        let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
        depth.unsettled + depth.claimed + depth.scheduled == 0
    })
    .await;
}

async fn send(database: &TestDatabase, topic: &Topic, messages: &[NewMessage]) {
    let mut conn = database.connect().await;
    enqueue_to(&mut conn, topic, messages).await.expect("enqueued");
}

fn one_at_a_time() -> TopicOptions {
    TopicOptions { concurrency: 1, ..TopicOptions::default() }
}

/// Retries come back at once.
fn quick() -> TopicSettings {
    let retry = RetryPolicy { base: Duration::from_millis(1), cap: Duration::from_millis(1) };
    TopicSettings { retry, max_attempts: 3, ..TopicSettings::default() }
}

/// A raw handler made of a closure.
struct With<F>(F);

impl<F, R> RawHandler for With<F>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    fn handle(&self, context: &Context) -> impl Future<Output = Result<(), HandlerError>> + Send {
        (self.0)(context.clone())
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    verdict: String,
}

/// Does what the order says.
#[derive(Clone, Default)]
struct Orders(Arc<Mutex<HashMap<String, u32>>>);

impl Handler for Orders {
    type Payload = Order;

    async fn handle(&self, _: &Context, order: Order) -> Result<(), HandlerError> {
        *self.0.lock().expect("unpoisoned").entry(order.verdict.clone()).or_default() += 1;
        match order.verdict.as_str() {
            "ack" => Ok(()),
            "retry" => Err(std::io::Error::other("always fails"))?,
            "dead" => "x".parse::<u32>().map(|_| ()).or_dead(),
            "discard" => Err(HandlerError::discard("too old")),
            other => panic!("cannot {other}"),
        }
    }
}

/// Every verdict in one topic: what fails is retried up to the limit and then dead-lettered with
/// its body, a panic counts as a failure, and the process lives on (F20, F22, F27).
#[tokio::test(flavor = "multi_thread")]
async fn verdicts_decide_what_becomes_of_a_message() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", &quick()).await;
    let mut messages: Vec<_> = ["ack", "retry", "dead", "discard", "panic"]
        .map(|verdict| NewMessage::json(&Order { verdict: verdict.into() }).expect("JSON"))
        .into();
    messages.push(NewMessage::new("no JSON \u{1f600}"));
    send(&database, &topic, &messages).await;
    let orders = Orders::default();
    let handler = orders.clone();
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        consumer.handler(name, TopicOptions::default(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let runs = orders.0.lock().expect("unpoisoned").clone();
    let runs = |verdict: &str| runs.get(verdict).copied().unwrap_or(0);
    assert_eq!((runs("ack"), runs("dead"), runs("discard")), (1, 1, 1));
    assert_eq!((runs("retry"), runs("panic")), (3, 3), "max_attempts is 3");
    let mut conn = database.connect().await;
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!(depth.dead, 4, "retry, dead, panic and the one that is no JSON");
}

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

/// F23: the time of a run is up: the handler is told, then dropped; the message counts a failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_interrupted_and_retried() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("slow", &quick()).await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let told = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&told));
    let options =
        TopicOptions { timeout: Some(Duration::from_millis(50)), ..TopicOptions::default() };
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

struct Sums(Arc<Mutex<Vec<usize>>>);

impl BatchHandler for Sums {
    type Payload = u32;

    async fn handle(&self, batch: Vec<(Context, u32)>) -> Vec<Result<(), HandlerError>> {
        self.0.lock().expect("unpoisoned").push(batch.len());
        let verdict = |number: u32| {
            if number == 13 { Err(HandlerError::dead("unlucky")) } else { Ok(()) }
        };
        batch.into_iter().map(|(_, number)| verdict(number)).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_handler_takes_many_and_gives_each_its_verdict() {
    let database = TestDatabase::new().await;
    let topic = database.topic("numbers").await;
    let mut messages: Vec<_> = (0..100_u32).map(|n| NewMessage::json(&n).expect("JSON")).collect();
    messages.push(NewMessage::new("no number"));
    send(&database, &topic, &messages).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (name, handler) = (topic.name.clone(), Sums(Arc::clone(&sizes)));
    let running = Running::start(&database, |consumer| {
        consumer.batch_handler(name, one_at_a_time(), 40, handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let sizes = sizes.lock().expect("unpoisoned").clone();
    assert_eq!(sizes.iter().sum::<usize>(), 100);
    assert!(sizes.iter().all(|size| *size <= 40) && sizes.len() < 50, "{sizes:?}");
    let mut conn = database.connect().await;
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!(depth.dead, 2, "13, and the one that is no number");
}

/// S10: no transaction is open, and nothing locked, while a handler runs.
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
    let rows = store::claim::of_worker(
        &mut conn,
        queue_core::message::WorkerId(1),
        queue_core::message::ClaimNo(0),
    );
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

/// Seed 002: the ack is the business's own call; a delivery dropped without it is released.
#[tokio::test(flavor = "multi_thread")]
async fn pulled_deliveries_are_settled_by_the_caller_and_released_when_dropped() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("pulled", &quick()).await;
    let bodies = ["ack", "fail", "drop"];
    send(&database, &topic, &bodies.map(NewMessage::new)).await;
    let options = ConsumerOptions::default();
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
    let pause = queue_core::topic::TopicState { claim_paused: true, enqueue_paused: false };
    store::topic::set_state(&mut conn, &topic.name, pause).await.expect("paused");
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
    let open = queue_core::topic::TopicState::default();
    store::topic::set_state(&mut conn, &topic.name, open).await.expect("resumed");
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
