//! Transactional handlers in a consumer: a handler's writes exist exactly if its message is acked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::BigInt;
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use rowmq_consumer::TopicOptions;
use rowmq_core::handler::{BatchTxHandler, Context, Decide, HandlerError, RawTxHandler, TxHandler};
use rowmq_core::model::TopicSettings;
use rowmq_core::{AsyncMysqlConnection, NewMessage, TopicName, enqueue, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::Notify;

use crate::handling::running::{Running, drained, quick, send};

/// Returns the one number that a query selects.
pub(crate) async fn number(database: &TestDatabase, query: &str) -> i64 {
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = BigInt)]
        n: i64,
    }
    let query = format!("SELECT CAST(({query}) AS SIGNED) AS n");
    let rows: Vec<Row> =
        diesel::sql_query(query).load(&mut database.connect().await).await.expect("a number");
    rows[0].n
}

async fn stage(settings: &TopicSettings) -> (TestDatabase, rowmq_core::Topic) {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", settings).await;
    database.topic("invoices").await;
    let table = "CREATE TABLE booked (n INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(64))";
    database.connect().await.batch_execute(table).await.expect("a table");
    (database, topic)
}

async fn book(tx: &mut AsyncMysqlConnection, what: &str) -> Result<(), HandlerError> {
    let insert = format!("INSERT INTO booked (what) VALUES ('{what}')");
    diesel::sql_query(insert).execute(tx).await?;
    let invoices = TopicName::new("invoices")?;
    enqueue(tx, &invoices, &NewMessage::new(what)).await?;
    Ok(())
}

/// Books, and then does what the body says.
struct Books;

impl TxHandler for Books {
    type Payload = String;

    async fn handle(
        &self,
        context: &Context,
        what: String,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        book(tx, &what).await?;
        match what.as_str() {
            "fail once" if context.delivery.failures == 0 => Err(HandlerError::retry("no")),
            "panic once" if context.delivery.failures == 0 => panic!("on purpose"),
            "dead" => "x".parse::<u32>().map(|_| ()).or_dead(),
            "discard" => Err(HandlerError::discard("too old")),
            "commit" => Ok(tx.batch_execute("COMMIT").await?),
            _ => Ok(()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_wrote_is_there_exactly_if_its_message_is_acked() {
    let (database, topic) = stage(&quick()).await;
    let plain: Vec<_> = (0..200).map(|n| format!("plain {n}")).collect();
    let special = ["fail once", "panic once", "dead", "discard", "commit"].map(str::to_owned);
    let bodies = plain.iter().chain(&special);
    let mut messages: Vec<_> = bodies.map(|body| NewMessage::json(body).expect("JSON")).collect();
    messages.push(NewMessage::new("no JSON"));
    send(&database, &topic, &messages).await;
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        consumer.tx_handler(name, TopicOptions::default(), Books)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let once = "SELECT COUNT(*) FROM (SELECT what FROM booked GROUP BY what HAVING COUNT(*) = 1) t";
    assert_eq!(number(&database, once).await, 203, "plain, failed, panicked, committed");
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 203);
    let follow_ups = "SELECT COUNT(*) FROM queue_message WHERE topic_id <> 0";
    assert_eq!(number(&database, follow_ups).await, 203, "a follow-up for each booking");
    let mut conn = database.connect().await;
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!(depth.dead, 3, "dead, commit, and the one that is no JSON");
    let claims = number(&database, "SELECT COUNT(*) FROM queue_claim").await;
    assert_eq!(claims, 0, "no claim is left behind");
}

/// Books the bytes.
struct Bytes;

impl RawTxHandler for Bytes {
    async fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        book(tx, std::str::from_utf8(&context.delivery.body)?).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_transactional_handler_gets_the_bytes() {
    let (database, topic) = stage(&TopicSettings { max_attempts: 1, ..quick() }).await;
    let messages = [NewMessage::new("no JSON"), NewMessage::new([0, 255])];
    send(&database, &topic, &messages).await;
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        consumer.raw_tx_handler(name, TopicOptions::default(), Bytes)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked WHERE what = 'no JSON'").await, 1);
    let mut conn = database.connect().await;
    assert_eq!(store::inspect::depth(&mut conn, topic.id).await.expect("a depth").dead, 1);
}

struct Batches(Arc<Mutex<Vec<usize>>>);

impl BatchTxHandler for Batches {
    type Payload = u32;

    async fn handle(
        &self,
        batch: Vec<(Context, u32)>,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        self.0.lock().expect("unpoisoned").push(batch.len());
        for (_, number) in &batch {
            book(tx, &number.to_string()).await?;
        }
        let unlucky = batch.iter().any(|(_, number)| *number == 13);
        if unlucky { Err(HandlerError::dead("unlucky")) } else { Ok(()) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_commits_as_one_and_its_bad_message_is_found() {
    let (database, topic) = stage(&quick()).await;
    let messages: Vec<_> = (0..60_u32).map(|n| NewMessage::json(&n).expect("JSON")).collect();
    send(&database, &topic, &messages).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (name, handler) = (topic.name.clone(), Batches(Arc::clone(&sizes)));
    let options = TopicOptions { concurrency: 2, ..TopicOptions::default() };
    let running =
        Running::start(&database, |consumer| consumer.batch_tx_handler(name, options, 20, handler));
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(number(&database, "SELECT COUNT(DISTINCT what) FROM booked").await, 59);
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 59);
    assert!(sizes.lock().expect("unpoisoned").iter().any(|size| *size > 1));
    let mut conn = database.connect().await;
    assert_eq!(store::inspect::depth(&mut conn, topic.id).await.expect("a depth").dead, 1);
}

/// Waits in its transaction until it is dropped.
struct Stubborn(Arc<Notify>);

impl TxHandler for Stubborn {
    type Payload = String;

    async fn handle(
        &self,
        _: &Context,
        what: String,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        book(tx, &what).await?;
        self.0.notify_one();
        std::future::pending().await
    }
}

/// A run that is dropped half-way has no effect, and its message is given back uncharged.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_dropped_leaves_nothing_behind() {
    let (database, topic) = stage(&quick()).await;
    send(&database, &topic, &[NewMessage::json(&"x").expect("JSON")]).await;
    let inside = Arc::new(Notify::new());
    let (name, handler) = (topic.name.clone(), Stubborn(Arc::clone(&inside)));
    let running = Running::start(&database, |consumer| {
        consumer.tx_handler(name, TopicOptions::default(), handler)
    });
    tokio::time::timeout(PATIENCE, inside.notified()).await.expect("inside");
    running.shutdown.quit.cancel();
    running.stop().await;
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 0);
    let mut conn = database.connect().await;
    let messages = store::inspect::peek(&mut conn, topic.id, 10).await.expect("peeked");
    assert_eq!((messages.len(), messages[0].failures), (1, 0));
    assert_eq!(number(&database, "SELECT COUNT(*) FROM queue_claim").await, 0);
}

/// F23: after the run's time its transaction is rolled back, and a failure is charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_rolled_back_and_charged() {
    let (database, topic) = stage(&TopicSettings { max_attempts: 1, ..quick() }).await;
    send(&database, &topic, &[NewMessage::json(&"x").expect("JSON")]).await;
    let (name, handler) = (topic.name.clone(), Stubborn(Arc::default()));
    let options =
        TopicOptions { timeout: Some(Duration::from_millis(50)), ..TopicOptions::default() };
    let running = Running::start(&database, |consumer| consumer.tx_handler(name, options, handler));
    let mut conn = database.connect().await;
    until("dead-lettered", async || {
        store::inspect::depth(&mut conn, topic.id).await.expect("a depth").dead == 1
    })
    .await;
    running.stop().await;
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 0);
}
