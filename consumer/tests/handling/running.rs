//! A consumer within the test, and what tests wait for.

use std::future::Future;
use std::time::Duration;

use rowmq_consumer::{Consumer, ConsumerBuilder, ConsumerOptions, Error, Shutdown, TopicOptions};
use rowmq_core::connection::ServerUrl;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::{RetryPolicy, TopicSettings};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::{NewMessage, Topic, dead, enqueue_to, store};
use rowmq_test::{TestDatabase, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Options with a lease so long that a busy server answers within half of it, as it must.
pub(crate) fn patient() -> ConsumerOptions {
    ConsumerOptions { lease: Duration::from_secs(60), ..ConsumerOptions::default() }
}

/// A consumer that runs until the test ends it.
pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start(
        database: &TestDatabase,
        with: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    ) -> Self {
        Self::at(database.url(), with)
    }

    /// Starts it as another account, or through a proxy.
    pub(crate) fn at(
        url: &ServerUrl,
        with: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    ) -> Self {
        let builder = Consumer::builder(url.clone()).options(patient());
        let consumer = with(builder).build().expect("built");
        let shutdown = Shutdown { drain: CancellationToken::new(), quit: CancellationToken::new() };
        let task = tokio::spawn(consumer.run(shutdown.clone()));
        Self { shutdown, task }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.drain.cancel();
        self.task.await.expect("no panic").expect("stopped in order");
    }
}

pub(crate) async fn drained(database: &TestDatabase, topic: &Topic) {
    let mut conn = database.connect().await;
    until("drained", async || {
        let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
        depth.unsettled + depth.claimed + depth.scheduled == 0
    })
    .await;
}

/// Returns the topic's dead letters: their bodies and last errors, in order.
pub(crate) async fn dead(database: &TestDatabase, topic: &Topic) -> Vec<(String, String)> {
    let mut session = database.session().await;
    let letters = dead::list(&mut session, topic.id, &DeadFilter::default(), 100).await;
    let mut found = Vec::new();
    for letter in letters.expect("listed") {
        let read = async |conn: &mut _| store::dead::body(conn, topic.id, letter.row).await;
        let body = session.call("read a dead letter", read).await.expect("read").expect("there");
        found.push((String::from_utf8_lossy(&body).into_owned(), letter.last_error));
    }
    found.sort();
    found
}

pub(crate) async fn send(database: &TestDatabase, topic: &Topic, messages: &[NewMessage]) {
    let mut conn = database.connect().await;
    enqueue_to(&mut conn, topic, messages).await.expect("enqueued");
}

pub(crate) fn one_at_a_time() -> TopicOptions {
    TopicOptions { concurrency: 1, ..TopicOptions::default() }
}

/// Returns settings under which retries come back at once.
pub(crate) fn quick() -> TopicSettings {
    let retry = RetryPolicy::Fixed(Duration::from_millis(1));
    TopicSettings { retry, max_attempts: 3, ..TopicSettings::default() }
}

/// A raw handler built from a closure.
pub(crate) struct With<F>(pub(crate) F);

impl<F, R> RawHandler for With<F>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    fn handle(&self, context: &Context) -> impl Future<Output = Result<(), HandlerError>> + Send {
        (self.0)(context.clone())
    }
}
