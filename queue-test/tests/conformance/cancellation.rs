//! Cancelling messages that no worker has begun, and messages of a worker that does not answer.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::model::found::StateWord;
use rowmq_core::model::{Limits, Sampling, Settlement, TopicSettings};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{NewMessage, Priority, Unique, enqueue_to, store};

use crate::rescue::crash_and_rescue;
use crate::scene::{Scene, all, claim_n, settle};

/// Creates a scene with a message that holds a unique key until it is done.
async fn with_a_key() -> (Scene, NewMessage) {
    let mut scene = Scene::new().await;
    let held = NewMessage::new("held").with_unique(Unique::until_done("k"));
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &scene.topic, std::slice::from_ref(&held)).await.unwrap();
    scene.sql("COMMIT").await;
    (scene, held)
}

/// The topic has a lookup, or none.
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
        let mut session = scene.db.session().await;
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
    let mut session = scene.db.session().await;
    let mut cancellation = Cancellation::new(&scene.topic, later.msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Waiting));
    let looks = [
        cancellation.attempt(&mut session, Claims::Ask).await.unwrap(),
        cancellation.attempt(&mut session, Claims::Ask).await.unwrap(),
    ];
    assert_eq!(looks, [Attempt::Locked, Attempt::Unknown], "one look may miss what moves");
}

/// The worker holds one message of three; its slot is free at once, its ack is fenced, its claim is
/// forgotten.
#[tokio::test]
async fn a_claim_that_is_taken_away_is_fenced_and_frees_its_slot() {
    let limits = Limits { max_running: std::num::NonZeroU32::new(3), ..Limits::default() };
    let mut scene = Scene::with(&TopicSettings { limits, ..TopicSettings::default() }).await;
    scene.enqueue(4).await;
    let (worker, other) = (scene.worker().await, scene.worker().await);
    let held = claim_n(&worker, scene.topic.id, 3).await;
    assert!(other.claim(scene.topic.id, 1).await.unwrap().deliveries.is_empty(), "none is free");
    let mut session = scene.db.session().await;
    let mut cancellation = Cancellation::new(&scene.topic, held[1].msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(worker.id()));
    let row = held[1].row;
    rowmq_test::until("the worker hears of it", async || worker.is_cancelled(row)).await;
    assert!(!worker.is_cancelled(held[0].row));
    let answer = cancellation.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    assert!(worker.is_cancelled(row), "its handler is still told to stop");
    claim_n(&other, scene.topic.id, 1).await;
    let outcomes = worker.settle(all(&held, &Settlement::Ack)).await.unwrap();
    let (settled, fenced) = (SettleOutcome::Settled, SettleOutcome::Fenced);
    assert_eq!(outcomes, [settled, fenced, settled]);
    assert_eq!(scene.hot().await, (1, 1, 1), "the other worker's");
    worker.stop().await.unwrap();
    other.stop().await.unwrap();
}

/// The worker had two messages, and it is unknown which one crashed it: neither was alone. A third
/// worker, which held one message and nothing else, did crash alone.
#[tokio::test]
async fn a_crash_is_not_lone_when_the_other_message_was_taken_away_before() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let (two, one) = (scene.worker().await, scene.worker().await);
    let cancelled = claim_n(&two, scene.topic.id, 1).await.remove(0);
    claim_n(&two, scene.topic.id, 1).await;
    claim_n(&one, scene.topic.id, 1).await;
    let mut session = scene.db.session().await;
    let topic = scene.topic.clone();
    let mut patient = Cancellation::new(&topic, cancelled.msg_id);
    let answer = patient.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(two.id()));
    let mut other = Cancellation::new(&topic, cancelled.msg_id);
    let answer = other.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    // A cancel that has only asked withdraws nothing of that.
    patient.give_up(&mut session).await.unwrap();
    let held = [(two, "1", "0/1"), (one, "2", "1/0")];
    for (worker, body, charges) in held {
        assert_eq!(crash_and_rescue(&mut scene, worker).await.freed, 1);
        let charged = format!(
            "SELECT CONCAT(crashes, '/', suspicions) FROM queue_message WHERE body = '{body}'"
        );
        assert_eq!(scene.text(&charged).await, charges);
    }
}

/// A request belongs to a row, whichever worker has it: a released row keeps the request. Both
/// callers get the truth: no handler has stopped.
#[tokio::test]
async fn the_patient_one_of_two_hears_that_the_other_has_taken_the_message_away() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let held = claim_n(&worker, scene.topic.id, 1).await.remove(0);
    let mut session = scene.db.session().await;
    let mut patient = Cancellation::new(&scene.topic, held.msg_id);
    let answer = patient.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(worker.id()));
    let mut other = Cancellation::new(&scene.topic, held.msg_id);
    let answer = other.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
    let mut answer = Attempt::Locked;
    while answer == Attempt::Locked {
        answer = patient.attempt(&mut session, Claims::Ask).await.unwrap();
    }
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
}

#[tokio::test]
async fn whoever_claims_next_hears_of_the_request_too() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let (worker, other) = (scene.worker().await, scene.worker().await);
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let mut session = scene.db.session().await;
    let mut cancellation = Cancellation::new(&scene.topic, held[0].msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!(answer, Attempt::Asked(worker.id()));
    settle(&worker, all(&held, &Settlement::Release)).await;
    let again = claim_n(&other, scene.topic.id, 1).await;
    let row = again[0].row;
    rowmq_test::until("the other hears of it", async || other.is_cancelled(row)).await;
    cancellation.give_up(&mut session).await.unwrap();
    rowmq_test::until("nobody asks any more", async || !other.is_cancelled(row)).await;
    worker.stop().await.unwrap();
    other.stop().await.unwrap();
}

#[tokio::test]
async fn a_request_whose_maker_has_gone_is_pruned() {
    let mut scene = Scene::new().await;
    scene
        .sql(
            "INSERT INTO queue_cancellation (row_id, requested_at) \
         VALUES (1, UTC_TIMESTAMP(6) - INTERVAL 2 HOUR), (2, UTC_TIMESTAMP(6))",
        )
        .await;
    let pruned = store::cancel::prune(&mut scene.conn, Duration::from_secs(3600), 10).await;
    assert_eq!(pruned.unwrap(), 1);
    assert_eq!(scene.number("SELECT row_id FROM queue_cancellation").await, 2);
}

/// Its worker may have to be declared dead long after the cancel: until then no sweeper was
/// running.
#[tokio::test]
async fn what_was_taken_away_is_remembered_until_its_worker_has_outlived_it() {
    let mut scene = Scene::new().await;
    scene
        .sql(
            "INSERT INTO queue_worker (id, instance, client_id, version, account, server_uid, \
               server_started_at, lease_ms, beat_at, registered_at) \
             VALUES (7, 'w', 'w', '', '', '', 0, 60000, NOW(), NOW())",
        )
        .await;
    for (beat, state, left) in [(90, "alive", 1), (0, "alive", 0), (90, "dead", 0)] {
        scene
            .sql(&format!(
                "REPLACE INTO queue_cancellation (row_id, requested_at, worker_id) \
                   VALUES (1, UTC_TIMESTAMP(6) - INTERVAL 100 SECOND, 7); \
                 UPDATE queue_worker SET state = '{state}', \
                   beat_at = UTC_TIMESTAMP(6) - INTERVAL {beat} SECOND"
            ))
            .await;
        store::cancel::prune(&mut scene.conn, Duration::from_secs(60), 10).await.unwrap();
        let rows = scene.number("SELECT COUNT(*) FROM queue_cancellation").await;
        assert_eq!(rows, left, "a beat {beat} s ago, {state}");
    }
}

/// A suspect has another priority than the one it was enqueued with.
#[tokio::test]
async fn a_suspect_is_cancelled_ready_and_claimed() {
    let mut scene = Scene::new().await;
    let messages = scene.enqueue(2).await;
    scene.sql("UPDATE queue_message SET priority = priority + 100 WHERE topic_id > 0").await;
    let mut session = scene.db.session().await;
    let worker = scene.worker().await;
    let held = worker.claim_suspect(scene.topic.id).await.unwrap().deliveries;
    assert_eq!(held[0].msg_id, messages[0].msg_id);
    for (message, claims, was) in
        [(&messages[0], Claims::TakeAway, Was::Fenced), (&messages[1], Claims::Ask, Was::Ready)]
    {
        let mut cancellation = Cancellation::new(&scene.topic, message.msg_id);
        let answer = cancellation.attempt(&mut session, claims).await.unwrap();
        assert_eq!(answer, Attempt::Cancelled(was));
    }
    let outcomes = worker.settle(all(&held, &Settlement::Ack)).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Fenced]);
    assert_eq!(scene.hot().await, (0, 0, 0));
    worker.stop().await.unwrap();
}

/// A record of an earlier message with the id, or of one in another topic, is not this message.
#[tokio::test]
async fn a_later_message_with_the_id_is_the_one_that_is_cancelled() {
    for searchable in [None, Some(Duration::from_secs(3600))] {
        let mut scene =
            Scene::with(&TopicSettings { searchable, ..TopicSettings::default() }).await;
        let other = scene.db.topic("u").await;
        let message = scene.enqueue(1).await.remove(0);
        let mut session = scene.db.session().await;
        let mut cancellation = Cancellation::new(&scene.topic, message.msg_id);
        let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
        assert_eq!(answer, Attempt::Cancelled(Was::Ready));
        let again = std::slice::from_ref(&message);
        let there = message.clone().with_delay(Duration::from_secs(600));
        enqueue_to(&mut scene.conn, &other, &[there]).await.unwrap();
        enqueue_to(&mut scene.conn, &scene.topic, again).await.unwrap();
        let worker = scene.worker().await;
        let held = claim_n(&worker, scene.topic.id, 1).await;
        let mut cancellation = Cancellation::new(&scene.topic, message.msg_id);
        let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
        assert_eq!(answer, Attempt::Asked(worker.id()), "{searchable:?}");
        settle(&worker, all(&held, &Settlement::Ack)).await;
        let answer = loop {
            match cancellation.attempt(&mut session, Claims::Ask).await.unwrap() {
                Attempt::Locked => {}
                answer => break answer,
            }
        };
        assert_eq!(answer, Attempt::Over(StateWord::Discarded), "the earlier one was");
        let waits = "SELECT COUNT(*) FROM queue_scheduled";
        assert_eq!(scene.number(waits).await, 1, "the other topic's is another message");
        worker.stop().await.unwrap();
    }
}

/// Its producer's transaction has the key: the cancel does not wait for it, and changes nothing.
#[tokio::test]
async fn a_message_whose_key_is_locked_is_tried_again() {
    let (mut scene, held) = with_a_key().await;
    let mut sender = scene.db.connect().await;
    let lock = "BEGIN; SELECT * FROM queue_unique FOR UPDATE";
    sender.batch_execute(lock).await.unwrap();
    let mut session = scene.db.session().await;
    let topic = scene.topic.clone();
    let mut cancellation = Cancellation::new(&topic, held.msg_id);
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!((answer, scene.hot().await), (Attempt::Locked, (1, 0, 0)));
    sender.batch_execute("ROLLBACK").await.unwrap();
    let answer = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert_eq!((answer, scene.hot().await), (Attempt::Cancelled(Was::Ready), (0, 0, 0)));
}

/// The same for a claimed message that is to be taken away: its worker is not asked either.
#[tokio::test]
async fn a_claim_whose_key_is_locked_is_left_alone() {
    let (mut scene, held) = with_a_key().await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let mut sender = scene.db.connect().await;
    sender.batch_execute("BEGIN; SELECT * FROM queue_unique FOR UPDATE").await.unwrap();
    let mut session = scene.db.session().await;
    let topic = scene.topic.clone();
    let mut cancellation = Cancellation::new(&topic, held.msg_id);
    let answer = cancellation.attempt(&mut session, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Locked);
    sender.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_cancellation").await, 0);
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

/// The caller that asked is gone: hours later the request discards nothing.
#[tokio::test]
async fn a_request_that_is_not_made_again_ends_by_itself() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let held = claim_n(&worker, scene.topic.id, 1).await;
    let mut session = scene.db.session().await;
    let mut cancellation = Cancellation::new(&scene.topic, held[0].msg_id);
    cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    let row = held[0].row;
    rowmq_test::until("the worker hears of it", async || worker.is_cancelled(row)).await;
    scene.sql("UPDATE queue_cancellation SET requested_at = requested_at - INTERVAL 1 HOUR").await;
    rowmq_test::until("nobody asks any more", async || !worker.is_cancelled(row)).await;
    worker.stop().await.unwrap();
}
