//! A topic that is paused because too many of its messages fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowmq_consumer::TopicOptions;
use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::model::{OffsetSpec, RetryPolicy, TopicSettings};
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::{NewMessage, Topic, TopicName, store};
use rowmq_test::{TestDatabase, until};

use crate::handling::running::{Running, With, drained, send};

fn pausing(concurrency: usize, rate: &str, pause_for: Duration) -> TopicOptions {
    let pause_on_errors = Some(rate.parse().expect("a rate"));
    TopicOptions { concurrency, pause_on_errors, pause_for, ..TopicOptions::default() }
}

/// Retries come back at once, and no message is given up.
fn patient() -> TopicSettings {
    let retry = RetryPolicy::Fixed(Duration::from_millis(1));
    TopicSettings { retry, max_attempts: 1000, ..TopicSettings::default() }
}

fn numbered(n: usize) -> Vec<NewMessage> {
    (0..n).map(|n| NewMessage::new(n.to_string()).with_key(format!("k{}", n % 4))).collect()
}

/// A dependency of a handler, and what the handler has handled while it worked.
#[derive(Clone, Default)]
struct Dependency {
    works: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    handled: Arc<Mutex<Vec<Context>>>,
}

impl Dependency {
    async fn call(&self, context: Context) -> Result<(), HandlerError> {
        if !self.works.load(Ordering::SeqCst) {
            self.failures.fetch_add(1, Ordering::SeqCst);
            return Err(HandlerError::retry("it does not work"));
        }
        self.handled.lock().expect("unpoisoned").push(context);
        Ok(())
    }

    fn failures(&self) -> usize {
        self.failures.load(Ordering::SeqCst)
    }

    fn handler(&self) -> With<impl Fn(Context) -> Handling + Send + Sync + 'static> {
        let this = self.clone();
        With(move |context| {
            let this = this.clone();
            Box::pin(async move { this.call(context).await }) as Handling
        })
    }

    /// Returns the numbers of the handled messages, in the order of their handling.
    fn handled(&self) -> Vec<usize> {
        let number = |context: &Context| {
            String::from_utf8_lossy(&context.delivery.body).parse().expect("a number")
        };
        self.handled.lock().expect("unpoisoned").iter().map(number).collect()
    }
}

type Handling = std::pin::Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// Three failures and no more are charged, however many messages were claimed.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_topic_is_paused_nothing_is_claimed_and_what_had_not_begun_is_given_back() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("mail", &patient()).await;
    send(&database, &topic, &numbered(300)).await;
    let dependency = Dependency::default();
    let options = pausing(1, "100%/3", Duration::from_secs(3600));
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(topic.name.clone(), options, dependency.handler())
    });
    let mut conn = database.connect().await;
    until("paused", async || {
        let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
        dependency.failures() == 3 && (depth.claimed, depth.unsettled + depth.scheduled) == (0, 300)
    })
    .await;
    // The consumer is stopped while the topic is paused.
    running.stop().await;
    assert_eq!(dependency.failures(), 3);
    let peeked = store::inspect::peek(&mut conn, topic.id, 300).await.expect("peeked");
    let charged: u32 = peeked.iter().map(|message| message.failures).sum();
    assert!(peeked.len() >= 297 && charged <= 3, "{charged} of {}", peeked.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_topic_is_tried_by_one_message_at_a_time_until_its_handler_works() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("mail", &patient()).await;
    send(&database, &topic, &numbered(300)).await;
    let dependency = Dependency::default();
    let options = pausing(8, "100%/8", Duration::from_millis(10));
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(topic.name.clone(), options, dependency.handler())
    });
    until("tried", async || dependency.failures() >= 8 + 8 + 10).await;
    dependency.works.store(true, Ordering::SeqCst);
    drained(&database, &topic).await;
    running.stop().await;
    let mut handled = dependency.handled();
    handled.sort_unstable();
    assert_eq!(handled, (0..300).collect::<Vec<_>>(), "each of them once");
    let mut failures = 0;
    for context in dependency.handled.lock().expect("unpoisoned").iter() {
        failures += context.delivery.failures as usize;
    }
    assert_eq!(failures, dependency.failures(), "nothing else was charged");
}

/// A pause affects this topic alone.
#[tokio::test(flavor = "multi_thread")]
async fn other_topics_of_the_consumer_go_on() {
    let database = TestDatabase::new().await;
    let topics = [
        database.topic_with("bad", &patient()).await,
        database.topic_with("good", &patient()).await,
    ];
    let (bad, good) = (Dependency::default(), Dependency::default());
    good.works.store(true, Ordering::SeqCst);
    let options = || pausing(1, "50%/2", Duration::from_secs(3600));
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.raw_handler(topics[0].name.clone(), options(), bad.handler());
        consumer.raw_handler(topics[1].name.clone(), options(), good.handler())
    });
    send(&database, &topics[0], &numbered(100)).await;
    until("paused", async || bad.failures() == 2).await;
    send(&database, &topics[1], &numbered(100)).await;
    drained(&database, &topics[1]).await;
    running.stop().await;
    assert_eq!((good.handled().len(), bad.failures()), (100, 2));
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Ordered,
    Broadcast,
}

/// Creates a stream of two partitions and its group.
async fn group(kind: Kind) -> (TestDatabase, Topic, Topic) {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let stream = TopicName::new("orders").expect("a name");
    create_stream(&mut conn, &stream, 2, &TopicSettings::default()).await.expect("made");
    let name = TopicName::of_group(&stream, "mail").expect("a name");
    let (start, settings) = (OffsetSpec::Earliest, patient());
    let made = match kind {
        Kind::Broadcast => create_broadcast(&mut conn, &name, start, &settings).await,
        _ => create_group(&mut conn, &name, kind == Kind::Ordered, start, &settings).await,
    };
    made.expect("made");
    let group = store::topic::existing(&mut conn, &name).await.expect("it is there");
    let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
    (database, stream, group)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_paused_like_a_queue_and_an_ordered_one_keeps_its_order() {
    for kind in [Kind::Plain, Kind::Ordered, Kind::Broadcast] {
        let (database, stream, group) = group(kind).await;
        send(&database, &stream, &numbered(200)).await;
        let dependency = Dependency::default();
        let options = pausing(4, "100%/4", Duration::from_millis(10));
        let running = Running::start(&database, |consumer| {
            consumer.raw_handler(group.name.clone(), options, dependency.handler())
        });
        until("tried", async || dependency.failures() >= 12).await;
        dependency.works.store(true, Ordering::SeqCst);
        until("handled", async || dependency.handled().len() >= 200).await;
        running.stop().await;
        let handled = dependency.handled();
        let mut each = handled.clone();
        each.sort_unstable();
        assert_eq!(each, (0..200).collect::<Vec<_>>(), "{kind:?}");
        if kind == Kind::Ordered {
            let mut last: HashMap<usize, usize> = HashMap::new();
            for number in handled {
                let before = last.insert(number % 4, number);
                assert!(before < Some(number), "{number} came after {before:?} of its key");
            }
        }
    }
}
