//! Messages that are cancelled while they wait, while they are ready, and while they are handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diesel_async::RunQueryDsl;
use rowmq_consumer::TopicOptions;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::connection::Session;
use rowmq_core::handler::{Context, HandlerError, RawTxHandler};
use rowmq_core::model::found::StateWord;
use rowmq_core::model::{OnDone, TopicSettings};
use rowmq_core::{AsyncMysqlConnection, MsgId, NewMessage, Topic, store};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::Notify;

use crate::handling::effects::number;
use crate::handling::running::{Running, With, drained, one_at_a_time, quick, send};

/// Repeats the attempt until it has an answer.
async fn cancel(session: &mut Session, topic: &Topic, id: MsgId, claims: Claims) -> Attempt {
    let mut cancellation = Cancellation::new(topic, id);
    loop {
        match cancellation.attempt(session, claims).await.expect("an attempt") {
            Attempt::Asked(_) | Attempt::Locked => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

async fn requests(database: &TestDatabase) -> i64 {
    number(database, "SELECT COUNT(*) FROM queue_cancellation").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_handler_is_told_and_its_message_is_discarded() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("slow", &quick()).await;
    let (first, second) = (NewMessage::new("first"), NewMessage::new("second"));
    send(&database, &topic, &[first.clone(), second.clone()]).await;
    let began = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&began));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let tell = Arc::clone(&tell);
            async move {
                if context.delivery.body == b"first" {
                    tell.notify_one();
                    context.cancelled.cancelled().await;
                    return Err(HandlerError::retry("it was told to stop"));
                }
                Ok(())
            }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    tokio::time::timeout(PATIENCE, began.notified()).await.expect("begun");
    let mut session = database.session().await;
    let answer = cancel(&mut session, &topic, first.msg_id, Claims::Ask).await;
    assert_eq!(answer, Attempt::Cancelled(Was::Stopped));
    drained(&database, &topic).await;
    running.stop().await;
    let kept =
        "SELECT COUNT(*) FROM queue_archive WHERE reason = 'it was cancelled' AND failures = 0";
    assert_eq!(number(&database, kept).await, 1, "the other one was handled and is not kept");
    assert_eq!(requests(&database).await, 0);
    let answer = cancel(&mut session, &topic, first.msg_id, Claims::Ask).await;
    assert_eq!(answer, Attempt::Over(StateWord::Discarded));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_gets_through_all_the_same_has_handled_its_message() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { on_done: OnDone::Keep(Duration::from_secs(600)), ..quick() };
    let topic = database.topic_with("stubborn", &settings).await;
    let message = NewMessage::new("x");
    send(&database, &topic, std::slice::from_ref(&message)).await;
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        let handler = With(|context: Context| async move {
            context.cancelled.cancelled().await;
            Ok(())
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    let mut session = database.session().await;
    let claimed = "SELECT COUNT(*) FROM queue_claim";
    until("claimed", async || number(&database, claimed).await == 1).await;
    let answer = cancel(&mut session, &topic, message.msg_id, Claims::Ask).await;
    assert_eq!(answer, Attempt::Over(StateWord::Done));
    assert_eq!(requests(&database).await, 0);
    running.stop().await;
}

/// Writes a row, and then ignores its cancellation.
struct Hangs(Arc<Notify>);

impl RawTxHandler for Hangs {
    async fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        diesel::sql_query("INSERT INTO booked (msg_id) VALUES (?)")
            .bind::<diesel::sql_types::Binary, _>(context.delivery.msg_id.as_bytes().to_vec())
            .execute(tx)
            .await?;
        self.0.notify_one();
        context.cancelled.cancelled().await;
        // It ignores the cancellation.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    }
}

async fn booked_table(database: &TestDatabase) {
    let table = "CREATE TABLE booked (msg_id BINARY(16) NOT NULL, KEY (msg_id))";
    diesel::sql_query(table).execute(&mut database.connect().await).await.expect("a table");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_taken_away_takes_the_handlers_transaction_with_it() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("slow", &quick()).await;
    booked_table(&database).await;
    let message = NewMessage::new("x");
    send(&database, &topic, std::slice::from_ref(&message)).await;
    let began = Arc::new(Notify::new());
    let (name, tell) = (topic.name.clone(), Arc::clone(&began));
    let running = Running::start(&database, |consumer| {
        consumer.raw_tx_handler(name, TopicOptions::default(), Hangs(tell))
    });
    tokio::time::timeout(PATIENCE, began.notified()).await.expect("begun");
    let mut session = database.session().await;
    let answer = cancel(&mut session, &topic, message.msg_id, Claims::TakeAway).await;
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    running.stop().await;
    assert_eq!(number(&database, "SELECT COUNT(*) FROM booked").await, 0, "rolled back");
    assert_eq!(number(&database, "SELECT COUNT(*) FROM queue_claim").await, 0);
    assert_eq!(number(&database, "SELECT COUNT(*) FROM queue_archive").await, 1);
}

/// Writes a row in the message's transaction, after a moment.
struct Books(Arc<AtomicUsize>);

impl RawTxHandler for Books {
    async fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        diesel::sql_query("INSERT INTO booked (msg_id) VALUES (?)")
            .bind::<diesel::sql_types::Binary, _>(context.delivery.msg_id.as_bytes().to_vec())
            .execute(tx)
            .await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        if context.cancelled.is_cancelled() {
            return Err(HandlerError::retry("it was told to stop"));
        }
        Ok(())
    }
}

/// Both ways to cancel, beside handlers that write: each message is booked once or cancelled, as
/// reported.
#[tokio::test(flavor = "multi_thread")]
async fn each_message_is_either_handled_or_cancelled() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { searchable: Some(Duration::from_secs(3600)), ..quick() };
    let topic = database.topic_with("orders", &settings).await;
    booked_table(&database).await;
    let messages: Vec<_> = (0..400).map(|n| NewMessage::new(n.to_string())).collect();
    send(&database, &topic, &messages).await;
    let (name, runs) = (topic.name.clone(), Arc::new(AtomicUsize::new(0)));
    let handler = Books(Arc::clone(&runs));
    let options = TopicOptions { concurrency: 4, ..TopicOptions::default() };
    let sessions = [database.session().await, database.session().await];
    let running =
        Running::start(&database, |consumer| consumer.raw_tx_handler(name, options, handler));
    let ways = [Claims::Ask, Claims::TakeAway].into_iter().zip(sessions).enumerate();
    let cancels = ways.map(|(nth, (claims, mut session))| {
        let (topic, ids) = (&topic, &messages);
        async move {
            let mut cancelled = 0;
            // From the last on: a canceller that followed the consumer might never catch up.
            for message in ids.iter().skip(nth).step_by(4).rev() {
                let answer = cancel(&mut session, topic, message.msg_id, claims).await;
                cancelled += i64::from(matches!(answer, Attempt::Cancelled(_)));
            }
            cancelled
        }
    });
    let cancelled: i64 = futures_util::future::join_all(cancels).await.into_iter().sum();
    drained(&database, &topic).await;
    running.stop().await;
    let booked = number(&database, "SELECT COUNT(*) FROM booked").await;
    let once = number(&database, "SELECT COUNT(DISTINCT msg_id) FROM booked").await;
    assert_eq!(booked, once, "no message is handled twice");
    assert_eq!(booked + cancelled, 400, "{cancelled} cancelled, {booked} handled");
    let kept = "SELECT COUNT(*) FROM queue_archive WHERE reason = 'it was cancelled'";
    assert_eq!(number(&database, kept).await, cancelled);
    let both = "SELECT COUNT(*) FROM booked b JOIN queue_archive a ON a.msg_id = b.msg_id";
    assert_eq!(number(&database, both).await, 0, "handled and cancelled");
    assert!(cancelled > 0 && booked > 0, "{cancelled} cancelled, {booked} handled");
    println!(
        "{cancelled} cancelled, {booked} handled, {} runs",
        AtomicUsize::load(&runs, Ordering::Relaxed)
    );
    let mut conn = database.connect().await;
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!((depth.unsettled, depth.claimed, depth.dead), (0, 0, 0));
}
