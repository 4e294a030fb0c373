//! Cancelling what nobody has begun, and what a worker holds that does not answer.

use std::time::Duration;

use queue_core::cancellation::{Attempt, Cancellation, Claims, Was};
use queue_core::connection::{Session, SessionKind};
use queue_core::message::Settlement;
use queue_core::topic::{Limits, Sampling, TopicSettings};
use queue_core::worker::SettleOutcome;
use queue_core::{NewMessage, Priority, Unique, enqueue_to, store};

use crate::scene::{Scene, all, claim_n, settle};

async fn session(scene: &Scene) -> Session {
    let deadline = Duration::from_secs(30);
    Session::open(scene.db.url(), SessionKind::Plain, deadline).await.unwrap()
}

/// A message that holds a unique key, in a topic with a lookup and without.
#[tokio::test]
async fn a_ready_message_is_cancelled_with_the_key_it_holds() {
    for searchable in [None, Some(Duration::from_secs(3600))] {
        let settings =
            TopicSettings { searchable, trace: Sampling::ALL, ..TopicSettings::default() };
        let mut scene = Scene::with(&settings).await;
        scene.enqueue(30).await;
        let held = NewMessage::new("held")
            .with_priority(Priority::new(7).unwrap())
            .with_unique(Unique::until_done("k"));
        scene.sql("BEGIN").await;
        enqueue_to(&mut scene.conn, &scene.topic, std::slice::from_ref(&held)).await.unwrap();
        scene.sql("COMMIT").await;
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 1);
        let mut session = session(&scene).await;
        let mut cancellation = Cancellation::new(&scene.topic, held.msg_id);
        let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
        assert_eq!(answer, Attempt::Cancelled(Was::Ready));
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 0);
        assert_eq!(scene.hot().await, (30, 0, 0));
        let kept = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'discarded'";
        assert_eq!(scene.number(kept).await, 1);
        let told =
            "SELECT COUNT(*) FROM queue_trace WHERE event = 'settled' AND outcome = 'discard'";
        assert_eq!(scene.number(told).await, 1);
    }
}

#[tokio::test]
async fn what_waits_is_cancelled_and_what_was_never_there_is_unknown() {
    let mut scene = Scene::new().await;
    let later = NewMessage::new("later").with_delay(Duration::from_secs(600));
    enqueue_to(&mut scene.conn, &scene.topic, std::slice::from_ref(&later)).await.unwrap();
    let mut session = session(&scene).await;
    let mut cancellation = Cancellation::new(&scene.topic, later.msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Waiting));
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Unknown);
}

/// The worker holds one of three; its slot is free at once, its ack is fenced, its claim forgotten.
#[tokio::test]
async fn a_claim_that_is_taken_away_is_fenced_and_frees_its_slot() {
    let limits = Limits { max_running: std::num::NonZeroU32::new(3), ..Limits::default() };
    let mut scene = Scene::with(&TopicSettings { limits, ..TopicSettings::default() }).await;
    scene.enqueue(4).await;
    let (worker, other) = (scene.worker().await, scene.worker().await);
    let held = claim_n(&worker, scene.topic.id, 3).await;
    assert!(other.claim(scene.topic.id, 1).await.unwrap().deliveries.is_empty(), "none is free");
    let mut session = session(&scene).await;
    let mut cancellation = Cancellation::new(&scene.topic, held[1].msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(worker.id()));
    let row = held[1].row;
    queue_test::until("the worker hears of it", async || worker.is_cancelled(row)).await;
    assert!(!worker.is_cancelled(held[0].row));
    let answer = cancellation.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_cancellation").await, 0);
    claim_n(&other, scene.topic.id, 1).await;
    let outcomes = worker.settle(all(&held, &Settlement::Ack)).await.unwrap();
    let (settled, fenced) = (SettleOutcome::Settled, SettleOutcome::Fenced);
    assert_eq!(outcomes, [settled, fenced, settled]);
    assert_eq!(scene.hot().await, (1, 1, 1), "the other worker's");
    worker.stop().await.unwrap();
    other.stop().await.unwrap();
}

/// A request is for a row, whoever has it: one that is released keeps it.
#[tokio::test]
async fn whoever_claims_next_hears_of_the_request_too() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let (worker, other) = (scene.worker().await, scene.worker().await);
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let mut session = session(&scene).await;
    let mut cancellation = Cancellation::new(&scene.topic, held[0].msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(worker.id()));
    settle(&worker, all(&held, &Settlement::Release)).await;
    let again = claim_n(&other, scene.topic.id, 1).await;
    let row = again[0].row;
    queue_test::until("the other hears of it", async || other.is_cancelled(row)).await;
    cancellation.give_up(&mut session).await.unwrap();
    queue_test::until("nobody asks any more", async || !other.is_cancelled(row)).await;
    worker.stop().await.unwrap();
    other.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_whose_maker_has_gone_is_pruned() {
    let mut scene = Scene::new().await;
    scene.sql("INSERT INTO queue_cancellation VALUES (1, UTC_TIMESTAMP(6) - INTERVAL 2 HOUR), (2, UTC_TIMESTAMP(6))").await;
    let pruned = store::cancel::prune(&mut scene.conn, Duration::from_secs(3600), 10).await;
    assert_eq!(pruned.unwrap(), 1);
    assert_eq!(scene.number("SELECT row_id FROM queue_cancellation").await, 2);
}
