//! Checkpoints, under their fence.

use std::time::Duration;

use rowmq_core::enqueue_to;
use rowmq_core::model::{Checkpoint, DeadCause, Percent, Settlement};
use rowmq_core::store::checkpoint;

use crate::scene::{Scene, all, claim_n, settle};

#[tokio::test]
async fn only_the_claim_that_has_the_message_saves_one() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let (worker, other) = (scene.worker().await, scene.worker().await);
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let place = Checkpoint::new("a").at(Percent::new(40));
    assert_eq!(checkpoint::save(&mut scene.conn, other.id(), &held[0], &place).await.unwrap(), 0);
    assert!(checkpoint::save(&mut scene.conn, worker.id(), &held[0], &place).await.unwrap() > 0);
    let read = checkpoint::read(&mut scene.conn, &held[0]).await.unwrap();
    let saved = read.expect("a checkpoint");
    assert_eq!((saved.checkpoint, saved.delivery_no), (place, held[0].delivery_no));
    settle(&worker, all(&held, &Settlement::Release)).await;
    let late = Checkpoint::new("late");
    assert_eq!(checkpoint::save(&mut scene.conn, worker.id(), &held[0], &late).await.unwrap(), 0);
    let again = claim_n(&other, scene.topic.id, 1).await;
    let second = Checkpoint::new("b");
    assert!(checkpoint::save(&mut scene.conn, other.id(), &again[0], &second).await.unwrap() > 0);
    assert_eq!(scene.text("SELECT CONVERT(state USING utf8mb4) FROM queue_checkpoint").await, "b");
    worker.stop().await.unwrap();
    other.stop().await.unwrap();
}

/// The statement itself checks this, whatever its caller has checked before.
#[tokio::test]
async fn an_earlier_delivery_replaces_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let save = Checkpoint::new("first").at(Percent::new(10));
    checkpoint::save(&mut scene.conn, worker.id(), &held[0], &save).await.unwrap();
    scene.sql("UPDATE queue_checkpoint SET delivery_no = 5, state = 'later', progress = 90").await;
    checkpoint::save(&mut scene.conn, worker.id(), &held[0], &save).await.unwrap();
    let read = checkpoint::read(&mut scene.conn, &held[0]).await.unwrap();
    let saved = read.expect("a checkpoint");
    assert_eq!(saved.checkpoint, Checkpoint::new("later").at(Percent::new(90)));
    assert_eq!(saved.delivery_no.0, 5);
    worker.stop().await.unwrap();
}

/// The producer sends the same id again, after the dead letter with it was purged.
#[tokio::test]
async fn a_later_message_with_the_id_begins_anew() {
    let mut scene = Scene::new().await;
    let message = scene.enqueue(1).await.remove(0);
    let worker = scene.worker().await;
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let save = Checkpoint::new("page 900");
    checkpoint::save(&mut scene.conn, worker.id(), &held[0], &save).await.unwrap();
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    settle(&worker, all(&held, &dead)).await;
    scene.sql("DELETE FROM queue_dead; UPDATE queue_checkpoint SET delivery_no = 16").await;
    enqueue_to(&mut scene.conn, &scene.topic, &[message]).await.unwrap();
    let again = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(again[0].msg_id, held[0].msg_id);
    assert_eq!(checkpoint::read(&mut scene.conn, &again[0]).await.unwrap(), None);
    let first = Checkpoint::new("page 1");
    assert!(checkpoint::save(&mut scene.conn, worker.id(), &again[0], &first).await.unwrap() > 0);
    let read = checkpoint::read(&mut scene.conn, &again[0]).await.unwrap().expect("a checkpoint");
    assert_eq!((read.checkpoint, read.delivery_no.0), (first, 1));
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_whose_message_never_came_to_an_end_is_pruned() {
    let mut scene = Scene::new().await;
    scene
        .sql(
            "INSERT INTO queue_checkpoint VALUES \
             (1, 'a', NOW(), 1, UTC_TIMESTAMP(6) - INTERVAL 2 HOUR, NULL, ''), \
             (1, 'b', NOW(), 1, UTC_TIMESTAMP(6), NULL, '')",
        )
        .await;
    let pruned = checkpoint::prune(&mut scene.conn, Duration::from_secs(3600), 10).await;
    assert_eq!(pruned.unwrap(), 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_checkpoint").await, 1);
}
