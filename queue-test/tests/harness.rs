//! The harness itself, which users' tests build on.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::sync::Mutex;
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Text};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_core::codec::{Encoding, Gzip};
use rowmq_core::connection::{ServerUrl, SessionKind, connect};
use rowmq_core::handler::{Context, Handler, HandlerError, RawHandler, TxHandler};
use rowmq_core::model::{OnDone, RetryPolicy, TopicSettings};
use rowmq_core::store::inspect::Peeked;
use rowmq_core::{AsyncMysqlConnection, Fault, NewMessage, Priority, TopicName, enqueue};
use rowmq_test::{TestDatabase, TestQueue, connected};

#[derive(QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

async fn count(conn: &mut AsyncMysqlConnection, query: &str) -> i64 {
    let rows: Vec<Count> = diesel::sql_query(query).load(conn).await.expect("counted");
    rows[0].n
}

async fn server() -> AsyncMysqlConnection {
    let url = std::env::var("ROWMQ_URL").expect("ROWMQ_URL is set");
    let url = ServerUrl::new(&url).expect("a URL");
    connected(&url).await
}

async fn exists(database: &str) -> bool {
    let query = "SELECT COUNT(*) AS n FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?";
    let query = diesel::sql_query(query).bind::<Text, _>(database);
    let rows: Vec<Count> = query.load(&mut server().await).await.expect("counted");
    rows[0].n == 1
}

/// Fails each message once for the word `fail`, and does what the other words say.
#[derive(Default)]
struct Obedient {
    seen: Mutex<Vec<String>>,
}

impl Handler for Obedient {
    type Payload = String;

    async fn handle(&self, context: &Context, word: String) -> Result<(), HandlerError> {
        self.seen.lock().expect("no panic while locked").push(word.clone());
        match word.as_str() {
            "fail" if context.delivery.failures == 0 => Err(HandlerError::retry("not yet")),
            "dead" => Err(HandlerError::dead("never")),
            "discard" => Err(HandlerError::discard("too old")),
            "release" => Err(HandlerError::Release),
            "snooze" if context.delivery.delivery_no.0 == 1 => {
                Err(HandlerError::Snooze(Duration::from_secs(60)))
            }
            "snooze" => Err(HandlerError::Snooze(Duration::ZERO)),
            "panic" => panic!("as told"),
            _ => Ok(()),
        }
    }
}

async fn enqueue_words(queue: &TestQueue, topic: &str, words: &[&str]) {
    for word in words {
        queue.enqueue(topic, &NewMessage::json(word).expect("JSON")).await;
    }
}

// On a single-threaded runtime, the default of `#[tokio::test]`.
#[tokio::test]
async fn a_test_database_has_the_tables_and_is_dropped_in_the_end() {
    let server = std::env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
    let server = ServerUrl::new(&server).expect("a URL");
    // Not `ROWMQ_URL` itself, whose databases may be left to other tests.
    let server = server.with_database("information_schema").expect("a name for a URL");
    let database = TestDatabase::on(&server).await;
    let name = database.name().to_owned();
    database.topic("mail").await;
    assert_eq!(
        count(&mut database.connect().await, "SELECT COUNT(*) AS n FROM queue_topic").await,
        1
    );
    drop(database);
    assert!(!exists(&name).await);
}

#[tokio::test]
async fn a_test_database_is_dropped_when_its_test_panics_in_a_transaction() {
    let (name, panicked) = std::thread::spawn(|| {
        let name = Mutex::new(String::new());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let run = || {
            runtime.block_on(async {
                let database = TestDatabase::new().await;
                database.name().clone_into(&mut name.lock().expect("unlocked"));
                let mut conn = database.connect().await;
                let open = "BEGIN; INSERT INTO queue_floor VALUES (1, 1, 1, 1)";
                conn.batch_execute(open).await.expect("an open transaction");
                // Dropped after the database, so that the transaction is still open then.
                let (_conn, _database) = (conn, database);
                panic!("this panic is part of the test");
            })
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err();
        (name.into_inner().expect("unlocked"), panicked)
    })
    .join()
    .expect("joined");
    assert!(panicked && !name.is_empty());
    assert!(!exists(&name).await);
}

#[tokio::test]
async fn an_account_has_only_its_grants_and_goes_with_the_database() {
    let database = TestDatabase::new().await;
    let url = database.account(&["SELECT ON {}.queue_topic"]).await;
    let mut conn = connected(&url).await;
    assert_eq!(count(&mut conn, "SELECT COUNT(*) AS n FROM queue_topic").await, 0);
    let denied = conn.batch_execute("DELETE FROM queue_topic").await;
    assert!(denied.is_err_and(|error| error.to_string().contains("denied")));
    drop(database);
    let again = connect(&url, SessionKind::Plain).await.map(|_| ()).expect_err("it is gone");
    // For an account that does not exist, MySQL requests one kind of password or another.
    assert_eq!(again.fault(), Fault::Denied, "{again}");
}

#[tokio::test]
async fn assertions_count_messages_or_look_for_one() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    queue.assert_enqueued("mail", 0).await;
    enqueue_words(&queue, "mail", &["a", "b"]).await;
    queue.assert_enqueued("mail", 2).await;
    queue.assert_enqueued("mail", |m: &Peeked| m.body == br#""b""#).await;
    let wrong = queue.assert_enqueued("mail", |m: &Peeked| m.body == b"c");
    let wrong = futures_util::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(wrong)).await;
    let text = wrong.expect_err("there is no c");
    let text = text.downcast_ref::<String>().expect("a formatted text");
    assert!(text.contains("harness.rs") && text.contains("mail holds no message"), "{text}");
    assert_eq!(topic.name.as_str(), "mail");
}

#[tokio::test]
async fn a_drain_handles_everything_in_order_and_reports_what_became_of_it() {
    let queue = TestQueue::new().await;
    // The second attempt must not come within the drain, however long the drain takes.
    let retry = RetryPolicy::Fixed(Duration::from_secs(3600));
    queue.topic_with("words", &TopicSettings { retry, ..TopicSettings::default() }).await;
    let words = ["a", "fail", "dead", "discard", "release", "panic", "z"];
    enqueue_words(&queue, "words", &words).await;
    queue.enqueue("words", &NewMessage::new("no JSON").with_priority(Priority::LAST)).await;
    let handler = Obedient::default();
    let report = queue.drain("words", &handler).await;
    let counts = (report.acked, report.retried, report.dead, report.discarded, report.released);
    assert_eq!(counts, (2, 2, 2, 1, 1), "{report:?}");
    assert_eq!(report.reasons[0], "not yet");
    assert!(report.reasons.iter().any(|reason| reason.contains("panicked: as told")));
    assert_eq!(*handler.seen.lock().expect("unlocked"), words);
    queue.assert_enqueued("words", |m: &Peeked| m.body == br#""release""#).await;
    queue.assert_enqueued("words", 1).await;
    assert_eq!(queue.depth("words").await.dead, 2);
}

#[tokio::test]
async fn the_clock_brings_retries_back_only_once_it_has_moved_far_enough() {
    let queue = TestQueue::new().await;
    // Longer than the second drain can take to begin, however slow the machine is.
    let retry = RetryPolicy::Fixed(Duration::from_secs(3600));
    queue.topic_with("words", &TopicSettings { retry, ..TopicSettings::default() }).await;
    enqueue_words(&queue, "words", &["fail"]).await;
    let handler = Obedient::default();
    assert_eq!(queue.drain("words", &handler).await.retried, 1);
    assert_eq!(queue.drain("words", &handler).await, Default::default());
    assert_eq!(queue.depth("words").await.scheduled, 1);
    queue.advance(Duration::from_secs(3600)).await;
    assert_eq!(queue.drain("words", &handler).await.acked, 1);
    assert_eq!(queue.depth("words").await, Default::default());
}

#[tokio::test]
async fn a_snoozed_message_is_put_off_once_a_drain_and_charged_nothing() {
    let queue = TestQueue::new().await;
    queue.topic("words").await;
    enqueue_words(&queue, "words", &["snooze"]).await;
    let handler = Obedient::default();
    for wait in [60, 0] {
        assert_eq!(queue.drain("words", &handler).await.snoozed, 1);
        queue.advance(Duration::from_secs(wait)).await;
    }
    let handler = Obedient::default();
    assert_eq!(queue.drain("words", &handler).await.snoozed, 1);
    assert_eq!(handler.seen.lock().expect("no panic while locked").len(), 1);
    assert_eq!(queue.depth("words").await.dead, 0);
}

#[tokio::test]
async fn the_clock_ages_finished_messages_that_are_kept() {
    let queue = TestQueue::new().await;
    let hour = Duration::from_secs(3600);
    let settings = TopicSettings { on_done: OnDone::Keep(hour), ..TopicSettings::default() };
    queue.topic_with("words", &settings).await;
    enqueue_words(&queue, "words", &["a"]).await;
    assert_eq!(queue.drain("words", &Obedient::default()).await.acked, 1);
    let mut conn = queue.connect().await;
    let due = "SELECT COUNT(*) AS n FROM queue_archive WHERE keep_until < UTC_TIMESTAMP(6)";
    assert_eq!(count(&mut conn, due).await, 0);
    queue.advance(hour).await;
    assert_eq!(count(&mut conn, due).await, 1);
}

#[tokio::test]
async fn a_biz_id_that_was_drained_is_repeated_until_its_window_is_over() {
    let queue = TestQueue::new().await;
    let hour = Duration::from_secs(3600);
    let settings = TopicSettings { ledger_window: Some(hour), ..TopicSettings::default() };
    queue.topic_with("bytes", &settings).await;
    for (acked, repeated) in [(1, 0), (0, 1), (1, 0)] {
        if acked == 1 {
            queue.advance(hour + Duration::from_secs(1)).await;
        }
        queue.enqueue("bytes", &NewMessage::new([0, 255]).with_biz_id("order 17")).await;
        let drained = queue.drain_raw("bytes", &Bytes).await;
        assert_eq!((drained.acked, drained.repeated), (acked, repeated));
    }
}

/// Enqueues its message again, and fails on the word "bad".
struct Forwards;

impl TxHandler for Forwards {
    type Payload = String;

    async fn handle(
        &self,
        context: &Context,
        word: String,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        let next = TopicName::new("next")?;
        enqueue(tx, &next, &NewMessage::new(context.delivery.body.clone())).await?;
        if word == "bad" { Err(HandlerError::dead("bad")) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_transactional_handler_is_drained_with_its_effects() {
    let queue = TestQueue::new().await;
    queue.topic("words").await;
    queue.topic("next").await;
    for word in ["good", "bad", "better"] {
        queue.enqueue("words", &NewMessage::json(&word).expect("JSON")).await;
    }
    queue.enqueue("words", &NewMessage::new("no JSON")).await;
    let drained = queue.drain_tx("words", &Forwards).await;
    assert_eq!((drained.acked, drained.dead), (2, 2), "{drained:?}");
    queue.assert_enqueued("next", 2).await;
    queue.assert_enqueued("words", 0).await;
}

struct Bytes;

impl RawHandler for Bytes {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        if context.delivery.body == [0, 255] { Ok(()) } else { Err(HandlerError::dead("changed")) }
    }
}

#[tokio::test]
async fn a_raw_handler_is_drained_through_its_bytes() {
    let queue = TestQueue::new().await;
    queue.topic("bytes").await;
    queue.enqueue("bytes", &NewMessage::new([0, 255])).await;
    assert_eq!(queue.drain_raw("bytes", &Bytes).await.acked, 1);
}

#[tokio::test]
#[should_panic(expected = "there is no topic 'nowhere'")]
async fn an_assertion_on_an_unknown_topic_says_so() {
    TestQueue::new().await.assert_enqueued("nowhere", 0).await;
}

#[tokio::test]
async fn a_drain_decodes_what_is_compressed() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    let text = "again and again, ".repeat(100);
    let gzip = Encoding::none().then(Gzip::default());
    let mut conn = queue.connect().await;
    let message = NewMessage::json(&text).expect("JSON").encoded(&gzip).expect("encoded");
    enqueue(&mut conn, &topic.name, &message).await.expect("enqueued");
    let sealed = NewMessage::new("x").with_header("content-encoding", "vault");
    enqueue(&mut conn, &topic.name, &sealed).await.expect("enqueued");
    struct Told(Mutex<Vec<String>>);
    impl Handler for Told {
        type Payload = String;
        async fn handle(&self, _: &Context, body: String) -> Result<(), HandlerError> {
            self.0.lock().expect("unpoisoned").push(body);
            Ok(())
        }
    }
    let told = Told(Mutex::default());
    let drained = queue.drain("mail", &told).await;
    assert_eq!((drained.acked, drained.dead), (1, 1), "{drained:?}");
    assert_eq!(*told.0.lock().expect("unpoisoned"), [text]);
}
