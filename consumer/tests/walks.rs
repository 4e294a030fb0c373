//! The walks of docs/architecture.md, against the steps that messages log on their way.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, mem};

use rowmq_consumer::{Consumer, ConsumerOptions, SettledListener, Shutdown, TopicOptions};
use rowmq_core::connection::transaction;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::{Sampling, TopicSettings, Unique};
use rowmq_core::{NewMessage, enqueue, enqueue_all};
use rowmq_producer::{Producer, ProducerOptions};
use rowmq_test::TestDatabase;
use tidy::walks;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

/// Statements that sessions repeat beside any message, every few seconds: they compare the ranges
/// that they hold, and read the id of a new lane.
const REPEATED: [&str; 2] =
    ["queue-core/src/store/stream/range.rs", "queue-core/src/store/inserted.rs"];

/// What has run in any thread: functions as `file:function`, and the files of statements.
struct Ran {
    functions: BTreeSet<String>,
    files: BTreeSet<String>,
}

static RAN: Mutex<Ran> = Mutex::new(Ran { functions: BTreeSet::new(), files: BTreeSet::new() });

/// Returns what has run since the last call. Nothing is missed between two calls: a task runs some
/// time after it was spawned.
fn ran() -> Ran {
    let mut ran = RAN.lock().unwrap_or_else(PoisonError::into_inner);
    Ran { functions: mem::take(&mut ran.functions), files: mem::take(&mut ran.files) }
}

fn record(file: &str, function: Option<&str>) {
    let mut ran = RAN.lock().unwrap_or_else(PoisonError::into_inner);
    ran.files.insert(file.to_owned());
    ran.functions.extend(function.map(|function| format!("{file}:{function}")));
}

struct Recorder;

impl<S: Subscriber> Layer<S> for Recorder {
    fn on_event(&self, event: &Event<'_>, _: LayerContext<'_, S>) {
        let of = event.metadata();
        if of.target().starts_with("rowmq") {
            event.record(&mut Place(of.file().unwrap_or_default()));
        }
    }
}

/// Records a step, which its file logs, or the file in which a statement was made.
struct Place(&'static str);

impl Visit for Place {
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "step" => record(self.0, Some(value)),
            "made_in" => record(value, None),
            _ => {}
        }
    }
}

/// Compares what has run with the walk whose name begins with `name`.
fn assert_walked(name: &str, ran: &Ran) {
    let walks = walks::all().expect("the document");
    let walk = walks.iter().find(|walk| walk.name.starts_with(name)).expect("its walk");
    let steps = walk.steps.iter().map(|step| format!("{}:{}", step.file, step.function));
    let missed: Vec<_> = steps.filter(|step| !ran.functions.contains(step)).collect();
    assert!(missed.is_empty(), "{name}: the walk names what does not run: {missed:#?}");
    let mut listed = BTreeSet::from(REPEATED);
    for walk in &walks {
        listed.extend(walk.steps.iter().chain(&walk.branches).map(|step| step.file.as_str()));
    }
    let unlisted: Vec<_> =
        ran.files.iter().filter(|file| !listed.contains(file.as_str())).collect();
    assert!(unlisted.is_empty(), "{name}: no walk names these files that run: {unlisted:#?}");
}

struct Nothing;

impl RawHandler for Nothing {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Ok(())
    }
}

/// One test: what it records is the whole process's.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_takes_the_walks_of_the_architecture() {
    let subscriber = tracing_subscriber::registry().with(Recorder);
    tracing::subscriber::set_global_default(subscriber).expect("the only subscriber");
    let database = TestDatabase::new().await;
    let day = Some(Duration::from_secs(86_400));
    let all = TopicSettings {
        searchable: day,
        dedupe_window: day,
        trace: Sampling::ALL,
        ..TopicSettings::default()
    };
    let topic = database.topic_with("all", &all).await;
    let (sent, plain) = (database.topic("sent").await, database.topic("plain").await);
    let mut conn = database.connect().await;
    enqueue(&mut conn, &plain.name, &NewMessage::new("first")).await.expect("enqueued");
    drop(ran());
    let producer = Producer::connect(database.url().clone(), ProducerOptions::default());
    let producer = producer.await.expect("connected");
    // What starts beside the first message is on no walk.
    let started = ran().functions;
    let now = NewMessage::new("now").with_unique(Unique::until_done("only"));
    let later = NewMessage::new("later").with_delay(Duration::from_secs(3600));
    let messages = [now, later];
    let enqueued = transaction(&mut conn, "test", async |conn| {
        enqueue(conn, &topic.name, &NewMessage::new("one")).await?;
        enqueue_all(conn, &topic.name, &messages).await
    });
    enqueued.await.expect("enqueued");
    producer.send(&sent.name, NewMessage::new("one")).await.expect("sent");
    producer.send_all(&sent.name, vec![NewMessage::new("one")]).await.expect("sent");
    let mut enqueued = ran();
    enqueued.functions.extend(started);
    assert_walked("enqueue", &enqueued);

    let (on_settled, mut settled) = mpsc::unbounded_channel();
    let listener = SettledListener::new(move |_| on_settled.send(()).unwrap_or_default());
    let lease = Duration::from_secs(60);
    let options = ConsumerOptions { lease, sweep: false, ..ConsumerOptions::default() };
    let consumer = Consumer::builder(database.url().clone())
        .options(options)
        .on_settled(listener)
        .raw_handler(plain.name.clone(), TopicOptions::default(), Nothing)
        .build()
        .expect("built");
    let shutdown = Shutdown { drain: CancellationToken::new(), quit: CancellationToken::new() };
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    settled.recv().await.expect("the first message is settled");
    let started = ran().functions;
    producer.send(&plain.name, NewMessage::new("second")).await.expect("sent");
    settled.recv().await.expect("the second message is settled");
    let mut handled = ran();
    handled.functions.extend(started);
    assert_walked("claim", &handled);
    shutdown.drain.cancel();
    running.await.expect("no panic").expect("stopped in order");
    producer.close().await;
}
