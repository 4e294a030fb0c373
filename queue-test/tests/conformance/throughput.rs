//! Workers' throughput: reported soon, counted by topic, and never decreasing.

use std::time::Duration;

use rowmq_core::model::{DeadCause, Settlement, Throughput, TopicId};
use rowmq_core::store::throughput::{TOPICS_AT_ONCE, by_topic};
use rowmq_core::throughput::fold;
use rowmq_test::until;

use crate::scene::{Scene, retry};
use crate::sql_consumer::SqlConsumer;

/// Returns the sums of the scene's topic.
async fn sums(scene: &mut Scene) -> Throughput {
    let all = by_topic(&mut scene.conn).await.unwrap();
    assert!(all.len() < 2, "{all:?}");
    all.first().map_or_else(Throughput::default, |(topic, sums)| {
        assert_eq!(*topic, scene.topic.id);
        *sums
    })
}

#[tokio::test]
async fn totals_are_told_soon_and_their_sums_never_shrink() {
    let mut scene = Scene::new().await;
    let (one, two) = (scene.worker().await, scene.worker().await);
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    for settlement in [Settlement::Ack, Settlement::Repeated, dead, Settlement::Release] {
        one.counter().settled(scene.topic.id, &settlement);
    }
    one.counter().picked_up(scene.topic.id, Duration::from_millis(5));
    let waited = Duration::from_millis(5);
    let first = Throughput { done: 2, failed: 1, picked_up: 1, waited };
    until("it is told", async || sums(&mut scene).await == first).await;
    two.counter().settled(scene.topic.id, &retry(Duration::ZERO));
    two.counter().picked_up(scene.topic.id, Duration::from_millis(7));
    two.stop().await.unwrap();
    let waited = Duration::from_millis(12);
    let both = Throughput { done: 2, failed: 2, picked_up: 2, waited };
    assert_eq!(sums(&mut scene).await, both, "a worker that stops tells what is left");
    assert_eq!(fold(&mut scene.conn, 10).await.unwrap(), 0, "both have a row");
    for done in [2, 3] {
        scene.sql("DELETE FROM queue_worker WHERE state = 'stopped'").await;
        scene.sql("START TRANSACTION").await;
        let folded = fold(&mut scene.conn, 10).await.unwrap();
        scene.sql("COMMIT").await;
        assert_eq!(folded, 1);
        assert_eq!(sums(&mut scene).await, Throughput { done, ..both });
        assert_eq!(fold(&mut scene.conn, 10).await.unwrap(), 0);
        if done == 2 {
            one.counter().settled(scene.topic.id, &Settlement::Ack);
            one.stop().await.unwrap();
        }
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_throughput").await, 1);
}

#[tokio::test]
async fn a_worker_that_stops_tells_of_all_its_topics() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    // Enough for three statements, each with the most topics that one reports.
    let topics = 2 * TOPICS_AT_ONCE as u32 + 1;
    (1..=topics).for_each(|topic| worker.counter().settled(TopicId(topic), &Settlement::Ack));
    worker.stop().await.unwrap();
    let told = scene.number("SELECT COUNT(*) FROM queue_throughput WHERE done = 1").await;
    assert_eq!(told, i64::from(topics));
}

#[tokio::test]
async fn what_is_settled_by_sql_counts_with_its_transaction() {
    let mut scene = Scene::new().await;
    scene.enqueue(5).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let claimed = consumer.claim_n(5).await;
    for (delivery, verdict) in claimed.iter().zip(["ack", "discard", "dead-letter", "release"]) {
        consumer.settle(delivery, verdict).await;
    }
    consumer.run("START TRANSACTION").await;
    consumer.settle(&claimed[4], "ack").await;
    consumer.run("ROLLBACK").await;
    let wanted = Throughput { done: 2, failed: 1, ..Throughput::default() };
    assert_eq!(sums(&mut scene).await, wanted);
}
