use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::DateTime;
use rowmq_consumer::TopicOptions;
use rowmq_core::handler::{BatchHandler, Context, Decide, Handler, HandlerError};
use rowmq_core::{NewMessage, store};
use rowmq_test::TestDatabase;
use serde::{Deserialize, Serialize};

use crate::handling::running::{Running, drained, one_at_a_time, quick, send};

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
        let runs = {
            let mut runs = self.0.lock().expect("unpoisoned");
            *runs.entry(order.verdict.clone()).and_modify(|runs| *runs += 1).or_insert(1)
        };
        match order.verdict.as_str() {
            "ack" => Ok(()),
            "retry" => Err(std::io::Error::other("always fails"))?,
            "dead" => "x".parse::<u32>().map(|_| ()).or_dead(),
            "discard" => Err(HandlerError::discard("too old")),
            "at" => "x".parse::<u32>().map(|_| ()).or_retry_at(DateTime::UNIX_EPOCH),
            "snooze" if runs < 6 => Err(HandlerError::Snooze(Duration::from_millis(1))),
            "snooze" => Ok(()),
            other => panic!("cannot {other}"),
        }
    }
}

/// Every verdict in one topic: failures are retried up to the limit and then dead-lettered with
/// their body, a panic counts as a failure, and the process survives (F20, F22, F27).
#[tokio::test(flavor = "multi_thread")]
async fn verdicts_decide_what_becomes_of_a_message() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("orders", &quick()).await;
    let mut messages: Vec<_> = ["ack", "retry", "dead", "discard", "at", "snooze", "panic"]
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
    assert_eq!((runs("retry"), runs("at"), runs("panic")), (3, 3, 3), "max_attempts is 3");
    assert_eq!(runs("snooze"), 6, "nothing is charged");
    let mut conn = database.connect().await;
    let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
    assert_eq!(depth.dead, 5, "retry, dead, at, panic and the one that is no JSON");
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
