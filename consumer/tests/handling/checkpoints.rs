//! Long handlers that continue where an earlier delivery stopped.

use std::sync::{Arc, Mutex};

use diesel_async::RunQueryDsl;
use rowmq_consumer::TopicOptions;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::checkpoint::LIMIT;
use rowmq_core::dead::redrive;
use rowmq_core::handler::{Context, HandlerError, RawTxHandler};
use rowmq_core::model::{Checkpoint, Percent, TopicSettings};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::{AsyncMysqlConnection, Error, NewMessage, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::Notify;

use crate::handling::effects::number;
use crate::handling::running::{Running, With, drained, one_at_a_time, quick, send};

const KEPT: &str = "SELECT COUNT(*) FROM queue_checkpoint";

/// Takes ten steps and records each; fails after step 4 and, once, after step 7.
async fn ten_steps(context: Context, done: Arc<Mutex<Vec<u64>>>) -> Result<(), HandlerError> {
    let last = context.last_checkpoint().await?;
    let from: u64 = last.as_ref().map_or(Ok(0), |saved| saved.json())?;
    if let Some(saved) = last {
        assert!(saved.delivery_no < context.delivery.delivery_no, "an earlier delivery's");
        assert_eq!(saved.checkpoint.progress, Some(Percent::of(from, 10)));
    }
    for step in from..10 {
        done.lock().expect("unpoisoned").push(step);
        let next = step + 1;
        context.checkpoint(Checkpoint::json(&next)?.at(Percent::of(next, 10))).await?;
        if (next == 4 || next == 7) && context.delivery.failures < u32::from(next == 7) + 1 {
            return Err(HandlerError::retry("it stops half-way"));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_on_where_the_delivery_before_it_stopped() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("long", &quick()).await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let done = Arc::new(Mutex::new(Vec::new()));
    let (name, sink) = (topic.name.clone(), Arc::clone(&done));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context| ten_steps(context, Arc::clone(&sink)));
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(*done.lock().expect("unpoisoned"), (0..10).collect::<Vec<_>>(), "each step once");
    assert_eq!(number(&database, KEPT).await, 0, "forgotten with the ack");
    let dead = store::inspect::depth(&mut database.connect().await, topic.id).await;
    assert_eq!(dead.expect("a depth").dead, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redriven_dead_letter_goes_on_too() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { max_attempts: 1, ..quick() };
    let topic = database.topic_with("long", &settings).await;
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let found = Arc::new(Mutex::new(Vec::new()));
    let (name, sink) = (topic.name.clone(), Arc::clone(&found));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let sink = Arc::clone(&sink);
            async move {
                let last = context.last_checkpoint().await?;
                let is_first = last.is_none();
                sink.lock().expect("unpoisoned").push(last.map(|saved| saved.checkpoint.state));
                if is_first {
                    context.checkpoint(Checkpoint::new("half")).await?;
                    return Err(HandlerError::retry("no"));
                }
                Ok(())
            }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    let dead = "SELECT COUNT(*) FROM queue_dead";
    until("dead", async || number(&database, dead).await == 1).await;
    assert_eq!(number(&database, KEPT).await, 1);
    let mut session = database.session().await;
    redrive(&mut session, &topic, &DeadFilter::default(), None, |_| {}).await.expect("redriven");
    until("handled", async || found.lock().expect("unpoisoned").len() == 2).await;
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(*found.lock().expect("unpoisoned"), [None, Some(b"half".to_vec())]);
    assert_eq!(number(&database, KEPT).await, 0);
}

/// Saves a checkpoint, and fails the first time.
struct Saves(Arc<Mutex<Vec<bool>>>);

impl RawTxHandler for Saves {
    async fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        let had_one = context.last_checkpoint().await?.is_some();
        self.0.lock().expect("unpoisoned").push(had_one);
        diesel::sql_query("INSERT INTO booked VALUES (1)").execute(tx).await?;
        context.checkpoint(Checkpoint::new("half")).await?;
        if had_one { Ok(()) } else { Err(HandlerError::retry("no")) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_rolled_back_leaves_its_checkpoint() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("long", &quick()).await;
    let table = "CREATE TABLE booked (n INT NOT NULL)";
    diesel::sql_query(table).execute(&mut database.connect().await).await.expect("a table");
    send(&database, &topic, &[NewMessage::new("x")]).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (name, handler) = (topic.name.clone(), Saves(Arc::clone(&seen)));
    let running = Running::start(&database, |consumer| {
        consumer.raw_tx_handler(name, TopicOptions::default(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(*seen.lock().expect("unpoisoned"), [false, true]);
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 1);
    assert_eq!(number(&database, KEPT).await, 0, "forgotten in the transaction of the ack");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_was_taken_away_saves_nothing() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("long", &quick()).await;
    let message = NewMessage::new("x");
    send(&database, &topic, std::slice::from_ref(&message)).await;
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let said = Arc::new(Mutex::new(Vec::new()));
    let (name, told) = (topic.name.clone(), (began.clone(), go_on.clone(), said.clone()));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let (began, go_on, said) = told.clone();
            async move {
                began.notify_one();
                go_on.notified().await;
                let large = Checkpoint::new(vec![0; LIMIT + 1]);
                for checkpoint in [Checkpoint::new("late"), large] {
                    let error = context.checkpoint(checkpoint).await.expect_err("refused");
                    said.lock().expect("unpoisoned").push(error);
                }
                Ok(())
            }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    tokio::time::timeout(PATIENCE, began.notified()).await.expect("begun");
    let mut session = database.session().await;
    let mut cancellation = Cancellation::new(&topic, message.msg_id);
    let answer = cancellation.attempt(&mut session, Claims::TakeAway).await.expect("an attempt");
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    go_on.notify_one();
    until("said", async || said.lock().expect("unpoisoned").len() == 2).await;
    running.stop().await;
    assert_eq!(number(&database, KEPT).await, 0);
    let said = said.lock().expect("unpoisoned");
    assert!(matches!(said[0], Error::ClaimLost { .. }), "{}", said[0]);
    assert!(matches!(said[1], Error::InvalidCheckpoint { .. }), "{}", said[1]);
}
