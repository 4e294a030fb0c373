//! Idempotent consumption: a handler is entered at most once per biz id after it has succeeded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_consumer::{Receiver, TopicOptions};
use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::model::{OnDone, TopicSettings};
use rowmq_core::{NewMessage, store};
use rowmq_test::TestDatabase;

use crate::handling::running::{Running, With, drained, patient, quick, send};

const HOUR: Duration = Duration::from_secs(3600);

fn with_ledger() -> TopicSettings {
    TopicSettings { ledger_window: Some(HOUR), ..quick() }
}

type Entered = Arc<Mutex<HashMap<String, u32>>>;

/// Counts how often each biz id is entered; every third fails at its first attempt.
fn counting(
    entered: &Entered,
) -> impl Fn(Context) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync + 'static {
    let entered = Arc::clone(entered);
    move |context: Context| {
        let biz_id = context.delivery.biz_id.clone().unwrap_or_default();
        let biz_id = String::from_utf8(biz_id).expect("text");
        let fails = biz_id.ends_with('3') && context.delivery.failures == 0;
        *entered.lock().expect("unpoisoned").entry(biz_id).or_default() += 1;
        std::future::ready(if fails { Err(HandlerError::retry("no")) } else { Ok(()) })
    }
}

fn messages(n: usize) -> Vec<NewMessage> {
    (0..n).map(|i| NewMessage::new("x").with_biz_id(format!("order {i}"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_entered_at_most_once_per_biz_id_after_it_has_succeeded() {
    let database = TestDatabase::new().await;
    let settings = TopicSettings { on_done: OnDone::Keep(HOUR), ..with_ledger() };
    let topic = database.topic_with("orders", &settings).await;
    let entered = Entered::default();
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let (name, handler) = (topic.name.clone(), With(counting(&entered)));
            Running::start(&database, |consumer| {
                consumer.raw_handler(name, TopicOptions::default(), handler)
            })
        })
        .collect();
    for _ in 0..4 {
        send(&database, &topic, &messages(100)).await;
        send(&database, &topic, &[NewMessage::new("without")]).await;
        drained(&database, &topic).await;
    }
    for running in consumers {
        running.stop().await;
    }
    let entered = entered.lock().expect("unpoisoned").clone();
    assert_eq!(entered.len(), 101);
    for (biz_id, times) in &entered {
        let expected = match biz_id {
            none if none.is_empty() => 4,
            failed if failed.ends_with('3') => 2,
            _ => 1,
        };
        assert_eq!(*times, expected, "{biz_id:?}");
    }
    let mut conn = database.connect().await;
    let table = store::inspect::MessageTable::Archive;
    let kept = store::inspect::purge_some(&mut conn, table, topic.id, 1000).await.expect("purged");
    assert_eq!(kept, 404, "the repeated ones are kept too");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_window_a_biz_id_is_handled_again() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", &with_ledger()).await;
    let entered = Entered::default();
    let (name, handler) = (topic.name.clone(), With(counting(&entered)));
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(name, TopicOptions::default(), handler)
    });
    let once = || entered.lock().expect("unpoisoned")["order 0"];
    for expected in [1, 1, 2] {
        if expected == 2 {
            let later = "UPDATE queue_ledger SET keep_until = keep_until - INTERVAL 2 HOUR";
            database.connect().await.batch_execute(later).await.expect("moved");
        }
        send(&database, &topic, &messages(1)).await;
        drained(&database, &topic).await;
        assert_eq!(once(), expected);
    }
    running.stop().await;
}

/// A handler runs only if the ledger could be read.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_looked_up_is_given_back_uncharged() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", &with_ledger()).await;
    let mut conn = database.connect().await;
    conn.batch_execute("RENAME TABLE queue_ledger TO away").await.expect("renamed");
    let entered = Entered::default();
    let (name, handler) = (topic.name.clone(), With(counting(&entered)));
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(name, TopicOptions::default(), handler)
    });
    send(&database, &topic, &messages(1)).await;
    rowmq_test::until("given back", async || {
        let messages = store::inspect::peek(&mut conn, topic.id, 10).await.expect("peeked");
        messages[0].delivery_no > 1 && messages[0].failures == 0
    })
    .await;
    assert!(entered.lock().expect("unpoisoned").is_empty());
    conn.batch_execute("RENAME TABLE away TO queue_ledger").await.expect("renamed");
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(entered.lock().expect("unpoisoned")["order 0"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_hands_out_no_biz_id_that_was_acked() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", &with_ledger()).await;
    let biz_ids = ["a", "b"].map(|biz_id| NewMessage::new(biz_id).with_biz_id(biz_id));
    send(&database, &topic, &biz_ids[..1]).await;
    let options = patient();
    let url = database.url().clone();
    let receiver = Receiver::connect(url, topic.name.clone(), 1, options).await;
    let mut receiver = receiver.expect("connected");
    receiver.receive().await.expect("the first").ack().await.expect("acked");
    let again = ["a", "b"].map(|biz_id| NewMessage::new(biz_id).with_biz_id(biz_id));
    send(&database, &topic, &again).await;
    let next = receiver.receive().await.expect("the next");
    assert_eq!(next.body, b"b");
    next.ack().await.expect("acked");
    drained(&database, &topic).await;
    receiver.close().await.expect("closed");
}
