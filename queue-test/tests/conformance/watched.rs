//! What the janitor measures for the metrics: the topics' weight, the server, its tables.

use std::time::Duration;

use rowmq_core::doctor::{TABLES, server_state};
use rowmq_core::model::RowId;
use rowmq_core::store::backlog::{self, Span};
use rowmq_core::store::server::{history_length, table_sizes};
use rowmq_core::topic::{LogWeight, Weight, weigh};
use rowmq_core::{NewMessage, Priority, enqueue, enqueue_all};
use rowmq_test::connected;

use crate::scene::Scene;
use crate::streams::Stream;

#[tokio::test]
async fn a_topic_weighs_what_its_messages_do_and_no_other_topics() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    assert_eq!(weigh(&mut scene.conn, &topic).await.unwrap(), Weight::default());
    assert_eq!(backlog::spans(&mut scene.conn, topic.id).await.unwrap(), []);
    let other = scene.db.topic("other").await;
    for priority in [0, 0, 5, 9] {
        let message = NewMessage::new("x".repeat(1000)).with_header("a", "b");
        let message = message.with_priority(Priority::new(priority).unwrap());
        enqueue(&mut scene.conn, &topic.name, &message).await.unwrap();
        enqueue(&mut scene.conn, &other.name, &NewMessage::new("y")).await.unwrap();
    }
    let headers = u64::try_from("{\"a\":\"b\"}".len()).unwrap();
    let weight = weigh(&mut scene.conn, &topic).await.unwrap();
    assert_eq!((weight.messages, weight.bytes, weight.log), (4, 4 * (1000 + headers), None));
    let spans = backlog::spans(&mut scene.conn, topic.id).await.unwrap();
    assert_eq!(spans.iter().map(|span| span.priority).collect::<Vec<_>>(), [0, 5, 9]);
    let first = spans[0];
    assert_eq!(first, Span { last: RowId(first.first.0 + 2), ..first }, "the other's lies between");
}

#[tokio::test]
async fn beyond_what_is_counted_a_topic_is_weighed_by_how_densely_it_lies() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    let other = scene.db.topic("other").await;
    for _ in 0..30 {
        let messages: Vec<_> = (0..500).map(|_| NewMessage::new("x".repeat(10))).collect();
        enqueue_all(&mut scene.conn, &topic.name, &messages).await.unwrap();
        enqueue_all(&mut scene.conn, &other.name, &messages).await.unwrap();
    }
    let weight = weigh(&mut scene.conn, &topic).await.unwrap();
    assert!((13_000..=17_000).contains(&weight.messages), "{weight:?}");
    assert_eq!(weight.bytes, weight.messages * 10);
}

#[tokio::test]
async fn a_stream_weighs_its_log_and_counts_what_it_ever_had() {
    let mut stream = Stream::new(2).await;
    stream.enqueue(10..40).await;
    let topic = stream.topic.clone();
    let waiting = weigh(&mut stream.conn, &topic).await.unwrap();
    assert_eq!((waiting.messages, waiting.bytes), (30, 60), "in its inbox");
    assert_eq!(waiting.log, Some(LogWeight::default()));
    stream.sequence().await;
    let weight = weigh(&mut stream.conn, &topic).await.unwrap();
    assert_eq!((weight.messages, weight.bytes), (0, 60));
    let log = weight.log.unwrap();
    assert_eq!((log.messages, log.appended), (30, 30));
    assert!(log.oldest_age_ms.unwrap() < Duration::from_secs(60).as_millis() as u64);
}

#[tokio::test]
async fn the_server_tells_how_it_fares_as_far_as_the_account_may_ask() {
    let mut scene = Scene::new().await;
    let is_mariadb = scene.is_mariadb().await;
    let state = server_state(&mut scene.conn).await.unwrap();
    assert_eq!(state.product, if is_mariadb { "MariaDB" } else { "MySQL" });
    assert_eq!(state.version, scene.text("SELECT VERSION()").await);
    assert!(state.durable && state.history.is_some() && state.semi_sync.is_none(), "{state:?}");
    assert!(state.connections.unwrap() >= 1 && state.connections_limit.unwrap() >= 100);
    let account = scene.db.account(&["SELECT ON {}.*"]).await;
    let mut blind = connected(&account).await;
    assert_eq!(history_length(&mut blind).await.unwrap(), None, "without PROCESS");
    let state = server_state(&mut blind).await.unwrap();
    assert_eq!(state.history.is_some(), is_mariadb, "MariaDB has it in its status");
}

#[tokio::test]
async fn every_table_has_a_size_that_follows_what_is_in_it() {
    let mut scene = Scene::new().await;
    let sizes = table_sizes(&mut scene.conn, &TABLES).await.unwrap();
    let mut names: Vec<_> = sizes.iter().map(|size| size.name).collect();
    let mut tables = TABLES.to_vec();
    names.sort_unstable();
    tables.sort_unstable();
    assert_eq!(names, tables);
    let messages: Vec<_> = (0..200).map(|_| NewMessage::new("x".repeat(20_000))).collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
    scene.sql("ANALYZE TABLE queue_message").await;
    let size = |sizes: &[rowmq_core::store::server::TableSize]| {
        sizes.iter().find(|size| size.name == "queue_message").unwrap().bytes
    };
    let after = table_sizes(&mut scene.conn, &TABLES).await.unwrap();
    assert!(size(&after) >= size(&sizes) + 2_000_000, "{} {}", size(&sizes), size(&after));
}
