//! A consumer's throughput is counted, by topic.

use std::time::Duration;

use rowmq_core::NewMessage;
use rowmq_core::handler::HandlerError;
use rowmq_core::store::throughput::by_topic;
use rowmq_test::{TestDatabase, until};

use crate::handling::running::{Running, With, one_at_a_time, quick, send};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_gets_done_is_told_while_it_runs() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("mail", &quick()).await;
    let messages = ["fine", "fine", "dead", "fine"].map(NewMessage::new);
    send(&database, &topic, &messages).await;
    let name = topic.name.clone();
    let running = Running::start(&database, |consumer| {
        let handler = With(|context: rowmq_core::handler::Context| async move {
            match context.delivery.body.as_slice() {
                b"dead" => Err(HandlerError::dead("no")),
                _ => Ok(()),
            }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    let mut conn = database.connect().await;
    until("all are counted", async || {
        let told = by_topic(&mut conn).await.expect("read");
        told.iter().any(|(of, sums)| {
            *of == topic.id
                && (sums.done, sums.failed, sums.picked_up) == (3, 1, 4)
                && sums.waited > Duration::ZERO
        })
    })
    .await;
    running.stop().await;
}
