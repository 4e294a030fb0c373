use std::time::Duration;

use rowmq_core::codec::Codecs;
use rowmq_core::connection::{ServerUrl, transaction};
use rowmq_core::handler::{Context, Handler, HandlerError, RawHandler, TxHandler};
use rowmq_core::model::TopicSettings;
use rowmq_core::store::inspect::{self, Depth, Peeked};
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic, TopicName, enqueue, enqueue_all, store};

use crate::{Drained, TestDatabase, clock, drain};

/// How many messages an assertion looks at. A test that enqueues more counts with
/// [`TestQueue::depth`].
const LOOK_AT: u32 = 10_000;

/// A handler that dead-letters its messages with this error.
struct Dies(String);

impl RawHandler for Dies {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Err(HandlerError::dead(self.0.clone()))
    }
}

/// A queue for one test, on a [`TestDatabase`].
#[derive(Debug)]
pub struct TestQueue {
    database: TestDatabase,
    codecs: Codecs,
}

impl TestQueue {
    /// Creates the queue. Works on every kind of tokio runtime.
    ///
    /// # Panics
    /// As [`TestDatabase::new`].
    pub async fn new() -> Self {
        Self { database: TestDatabase::new().await, codecs: Codecs::default() }
    }

    /// Sets the codecs that decode encoded bodies. The default is gzip.
    #[must_use]
    pub fn with_codecs(mut self, codecs: Codecs) -> Self {
        self.codecs = codecs;
        self
    }

    /// Returns its database.
    #[must_use]
    pub fn database(&self) -> &TestDatabase {
        &self.database
    }

    /// Returns its URL, for the code under test.
    #[must_use]
    pub fn url(&self) -> &ServerUrl {
        self.database.url()
    }

    /// Connects to it.
    ///
    /// # Panics
    /// As [`TestDatabase::connect`].
    pub async fn connect(&self) -> AsyncMysqlConnection {
        self.database.connect().await
    }

    /// Creates a topic with the default settings.
    ///
    /// # Panics
    /// As [`TestDatabase::topic`].
    pub async fn topic(&self, name: &str) -> Topic {
        self.database.topic(name).await
    }

    /// Creates a topic with these settings.
    ///
    /// # Panics
    /// As [`TestDatabase::topic_with`].
    pub async fn topic_with(&self, name: &str, settings: &TopicSettings) -> Topic {
        self.database.topic_with(name, settings).await
    }

    /// Enqueues a message; the test stands in for the producer.
    ///
    /// # Panics
    /// If the message is refused.
    pub async fn enqueue(&self, topic: &str, message: &NewMessage) {
        let mut conn = self.connect().await;
        let topic = self.find(&mut conn, topic).await;
        enqueue(&mut conn, &topic.name, message).await.expect("the message is enqueued");
    }

    /// Enqueues messages, in transactions of 500.
    ///
    /// # Panics
    /// If they are refused.
    pub async fn enqueue_all(&self, topic: &str, messages: &[NewMessage]) {
        let mut conn = self.connect().await;
        let topic = self.find(&mut conn, topic).await;
        for some in messages.chunks(500) {
            let send = async |conn: &mut _| enqueue_all(conn, &topic.name, some).await;
            transaction(&mut conn, "send", send).await.expect("the messages are enqueued");
        }
    }

    /// Dead-letters every ready message of a topic with `error`.
    ///
    /// # Panics
    /// As [`drain`](Self::drain), and if nothing was ready.
    pub async fn dead_letter(&self, topic: &str, error: &str) {
        let drained = self.drain_raw(topic, &Dies(error.to_owned())).await;
        assert!(drained.dead > 0, "nothing of {topic} has died: {drained:?}");
    }

    /// Returns the messages of a topic that are ready or claimed, in order of handling.
    ///
    /// # Panics
    /// If there is no such topic.
    pub async fn messages(&self, topic: &str) -> Vec<Peeked> {
        let mut conn = self.connect().await;
        let topic = self.find(&mut conn, topic).await;
        inspect::peek(&mut conn, topic.id, LOOK_AT).await.expect("messages can be read")
    }

    /// Returns how many messages a topic holds, by state.
    ///
    /// # Panics
    /// If there is no such topic.
    pub async fn depth(&self, topic: &str) -> Depth {
        let mut conn = self.connect().await;
        let topic = self.find(&mut conn, topic).await;
        inspect::depth(&mut conn, topic.id).await.expect("the depth can be read")
    }

    /// Asserts what a topic holds, ready or claimed: how many messages (`2`), or that one of them
    /// meets a predicate (`|m: &Peeked| m.body == b"hello"`). Messages that wait for their time do
    /// not count.
    ///
    /// # Panics
    /// If the assertion fails, with the messages that are there; or if there is no such topic.
    #[track_caller]
    pub fn assert_enqueued(
        &self,
        topic: &str,
        expected: impl Expected,
    ) -> impl Future<Output = ()> {
        // The caller's place is taken here, because an async fn does not have it.
        let caller = std::panic::Location::caller();
        async move {
            let messages = self.messages(topic).await;
            let met = expected.met_by(&messages);
            assert!(met.is_ok(), "{caller}: {topic} {}", met.err().unwrap_or_default());
        }
    }

    /// Claims, decodes, handles and settles every message of a topic, one after the other in order,
    /// through the same code as a consumer. A panic of the handler counts as a failure; a body that
    /// cannot be decoded is dead-lettered. Messages that become due are handled too. Messages that
    /// the handler releases are handled once and given back at the end.
    ///
    /// # Panics
    /// If there is no such topic, its claims are paused, or the server fails.
    pub async fn drain<H: Handler>(&self, topic: &str, handler: &H) -> Drained {
        self.drain_by(topic, drain::Typed(handler)).await
    }

    /// Does what [`drain`](Self::drain) does, with a handler that takes bytes.
    ///
    /// # Panics
    /// As [`drain`](Self::drain).
    pub async fn drain_raw<H: RawHandler>(&self, topic: &str, handler: &H) -> Drained {
        self.drain_by(topic, drain::Raw(handler)).await
    }

    /// Does what [`drain`](Self::drain) does, with a handler that gets the transaction in which its
    /// message is acked.
    ///
    /// # Panics
    /// As [`drain`](Self::drain).
    pub async fn drain_tx<H: TxHandler>(&self, topic: &str, handler: &H) -> Drained {
        let url = self.url().clone();
        self.drain_by(topic, drain::InTransaction { handler, url: &url }).await
    }

    async fn drain_by(&self, topic: &str, run: impl drain::Run) -> Drained {
        let mut conn = self.connect().await;
        let topic = self.find(&mut conn, topic).await;
        drain::drain(self.url(), &mut conn, (&topic, &self.codecs), run).await
    }

    /// Lets time pass: everything that waits for its time (delayed messages, retries, schedules,
    /// archived messages, biz ids in the ledger) waits `by` less.
    ///
    /// # Panics
    /// If the server fails.
    pub async fn advance(&self, by: Duration) {
        let mut conn = self.connect().await;
        clock::advance(&mut conn, by).await.expect("the times can be moved");
    }

    async fn find(&self, conn: &mut AsyncMysqlConnection, topic: &str) -> Topic {
        let name = TopicName::new(topic).expect("a topic name");
        let found = store::topic::find(conn, &name).await.expect("topics can be read");
        found
            .unwrap_or_else(|| panic!("there is no topic '{topic}'; make it with TestQueue::topic"))
    }
}

/// What [`TestQueue::assert_enqueued`] can check: a number of messages, or a predicate that one of
/// them must meet.
pub trait Expected {
    /// Checks the messages.
    ///
    /// # Errors
    /// What is wrong with them: the end of the sentence that begins with the topic's name.
    fn met_by(&self, messages: &[Peeked]) -> Result<(), String>;
}

impl Expected for usize {
    fn met_by(&self, messages: &[Peeked]) -> Result<(), String> {
        if messages.len() == *self {
            return Ok(());
        }
        Err(format!("holds {} messages, {self} expected: {messages:#?}", messages.len()))
    }
}

impl<F: Fn(&Peeked) -> bool> Expected for F {
    fn met_by(&self, messages: &[Peeked]) -> Result<(), String> {
        if messages.iter().any(self) {
            return Ok(());
        }
        Err(format!("holds no message as expected, only {messages:#?}"))
    }
}
