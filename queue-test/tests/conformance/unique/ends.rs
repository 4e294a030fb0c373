//! Every end of a message frees the key it holds, in the same transaction.

use rowmq_core::model::{DeadCause, OnDone, RowId, Settlement, TopicSettings};
use rowmq_core::rescue::{Why, take_back};
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::store::{self, settle, unique};
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{Delivery, Enqueued, NewMessage, Unique, cancel, dead};
use rowmq_test::session_at;

use super::{HOUR, KEYS, WAITING, until_done};
use crate::rescue::claims_of;
use crate::scene::{Scene, all, claim_n, number, retry, settle};

/// Creates a claimed message with the key `k`, and another with the key `other` that stays.
async fn claimed(scene: &mut Scene) -> (Worker, Vec<Delivery>) {
    assert!(scene.send(&until_done("k")).await.is_stored());
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(got[0].unique_key.as_deref(), Some(&b"k"[..]));
    scene.send(&until_done("other")).await;
    (worker, got)
}

async fn is_free(scene: &mut Scene) -> bool {
    assert_eq!(
        scene.number("SELECT COUNT(*) FROM queue_unique WHERE unique_key = 'other'").await,
        1
    );
    scene.number("SELECT COUNT(*) FROM queue_unique WHERE unique_key = 'k'").await == 0
}

fn dead_letter() -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() }
}

#[tokio::test]
async fn what_ends_a_message_frees_its_key_and_what_does_not_holds_it() {
    let discard = || Settlement::Discard { reason: "no".to_owned() };
    for on_done in [OnDone::Delete, OnDone::Keep(HOUR)] {
        for (settlement, frees) in [
            (Settlement::Ack, true),
            (Settlement::Repeated, true),
            (discard(), true),
            (dead_letter(), true),
            (Settlement::Release, false),
            (retry(HOUR), false),
            (Settlement::Snooze { delay: HOUR }, false),
        ] {
            let mut scene = Scene::new().await;
            let (worker, got) = claimed(&mut scene).await;
            assert!(!is_free(&mut scene).await);
            settle(&worker, vec![Settled::new(&got[0], settlement.clone(), on_done)]).await;
            assert_eq!(is_free(&mut scene).await, frees, "{settlement:?} {on_done:?}");
            let again = scene.send(&until_done("k")).await;
            assert_eq!(again.is_stored(), frees, "{settlement:?} {on_done:?}");
        }
    }
}

#[tokio::test]
async fn a_retried_message_holds_its_key_until_it_is_done_at_last() {
    let mut scene = Scene::new().await;
    let (worker, got) = claimed(&mut scene).await;
    settle(&worker, all(&got, &retry(std::time::Duration::ZERO))).await;
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    assert!(!scene.send(&until_done("k")).await.is_stored());
    let got = claim_n(&worker, scene.topic.id, 2).await;
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 0);
}

/// Acks of a whole claim use one range.
#[tokio::test]
async fn many_acks_with_keys_and_without_free_exactly_their_own() {
    let mut scene = Scene::new().await;
    for n in 0..40 {
        let message = if n % 4 == 0 { NewMessage::new("m") } else { until_done(&n.to_string()) };
        scene.send(&message).await;
    }
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 40).await;
    settle(&worker, all(got.iter().step_by(3), &Settlement::Ack)).await;
    let left = got.iter().enumerate().filter(|(n, d)| n % 3 != 0 && d.unique_key.is_some());
    assert_eq!(scene.number(KEYS).await, left.count() as i64);
    settle(
        &worker,
        all(got.iter().enumerate().filter(|(n, _)| n % 3 != 0).map(|(_, d)| d), &Settlement::Ack),
    )
    .await;
    assert_eq!(scene.number(KEYS).await, 0);
}

#[tokio::test]
async fn a_fenced_end_frees_nothing() {
    let mut scene = Scene::new().await;
    let (worker, got) = claimed(&mut scene).await;
    scene.sql(&format!("UPDATE queue_message SET worker_id = 0 WHERE id = {}", got[0].row)).await;
    for settlement in [Settlement::Ack, dead_letter()] {
        let outcomes = worker.settle(all(&got, &settlement)).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Fenced]);
        assert!(!is_free(&mut scene).await);
    }
}

#[tokio::test]
async fn a_message_dead_lettered_by_its_crashes_frees_its_key() {
    let settings = TopicSettings { max_crashes: 1, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let (worker, _) = claimed(&mut scene).await;
    let claim = claims_of(&mut scene.conn, worker.id()).await.remove(0);
    let why = Why::Crashed { rows_held: 1 };
    let taken = rowmq_core::connection::transaction(&mut scene.conn, "rescue", async |conn| {
        take_back(conn, &claim, why).await
    });
    assert_eq!(taken.await.unwrap().dead_lettered, 1);
    assert!(is_free(&mut scene).await);
}

#[tokio::test]
async fn in_a_dead_letter_topic_a_message_holds_no_key() {
    let mut scene = Scene::new().await;
    let dead = scene.db.topic("dead").await;
    let settings =
        TopicSettings { dead_letter_topic: Some(dead.name.clone()), ..TopicSettings::default() };
    let name = scene.topic.name.clone();
    store::topic::set(&mut scene.conn, &name, &settings).await.unwrap();
    let (worker, got) = claimed(&mut scene).await;
    settle(&worker, all(&got, &dead_letter())).await;
    assert!(is_free(&mut scene).await);
    let there = claim_n(&worker, dead.id, 1).await;
    assert_eq!(there[0].unique_key, None);
}

#[tokio::test]
async fn a_cancelled_message_frees_its_key_by_itself() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    let plain = NewMessage::new("m").with_delay(HOUR);
    let message = until_done("k").with_delay(HOUR);
    scene.send(&until_done("other").with_delay(HOUR)).await;
    scene.send(&plain).await;
    scene.send(&message).await;
    // In autocommit.
    assert!(cancel(&mut scene.conn, &name, message.msg_id).await.unwrap());
    assert!(is_free(&mut scene).await);
    assert!(cancel(&mut scene.conn, &name, plain.msg_id).await.unwrap());
    assert!(!cancel(&mut scene.conn, &name, plain.msg_id).await.unwrap());
    let again = until_done("k").with_delay(HOUR);
    scene.send(&again).await;
    scene.sql(&format!("CALL queue_cancel('t', '{}')", again.msg_id)).await;
    assert_eq!(scene.number("SELECT @queue_cancelled").await, 1);
    assert!(is_free(&mut scene).await);
    assert_eq!(scene.number(WAITING).await, 1);
}

#[tokio::test]
async fn a_redriven_message_takes_its_key_again_if_it_is_free() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    // Two messages of one key died one after the other, and the key of a third one is held.
    for key in ["k", "k", "held"] {
        scene.send(&until_done(key)).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        settle(&worker, all(&got, &dead_letter())).await;
    }
    let holder = scene.send(&until_done("held")).await.msg_id();
    let mut session = session_at(scene.db.url(), HOUR).await;
    let redriven = dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, drop)
        .await
        .unwrap();
    assert_eq!(redriven, 3);
    assert!(!scene.send(&until_done("k")).await.is_stored());
    assert_eq!(scene.send(&until_done("held")).await.msg_id(), holder);
    let got = claim_n(&worker, scene.topic.id, 4).await;
    assert_eq!(got.iter().filter(|delivery| delivery.unique_key.is_some()).count(), 2);
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 0);
}

/// The message that it waited behind is gone, and so is its own row.
#[tokio::test]
async fn after_a_redrive_the_newest_word_is_stored_beside_the_redriven_one() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let unique = [Unique::replacing("k"), Unique::debounced("d", None)];
    let message =
        |unique: &Unique| NewMessage::new("m").with_delay(HOUR).with_unique(unique.clone());
    for unique in &unique {
        scene.send(&message(unique)).await;
    }
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 2);
    settle(&worker, all(&claim_n(&worker, scene.topic.id, 2).await, &dead_letter())).await;
    let mut session = session_at(scene.db.url(), HOUR).await;
    dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, drop).await.unwrap();
    for unique in &unique {
        let next = message(unique);
        assert_eq!(scene.send(&next).await, Enqueued::Stored(next.msg_id));
        assert_eq!(scene.send(&message(unique)).await, Enqueued::Replaced(next.msg_id));
    }
    assert_eq!(scene.number(WAITING).await, 4);
    settle(&worker, all(&claim_n(&worker, scene.topic.id, 2).await, &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 2, "they are the others' now");
}

/// What the statements delete and keep, among the claim's own rows.
#[tokio::test]
async fn a_release_touches_the_rows_of_its_own_claim_and_message_only() {
    let mut scene = Scene::new().await;
    let (worker, got) = claimed(&mut scene).await;
    let rows = settle::ClaimedRows {
        fence: store::claim::Fence { worker: worker.id(), claim_no: got[0].claim_no },
        topic: scene.topic.id,
        priority: got[0].priority,
        rows: [got[0].row, RowId(got[0].row.0 + 1)].into_iter().collect(),
    };
    assert_eq!(unique::lock(&mut scene.conn, &rows).await.unwrap().len(), 1);
    assert_eq!(unique::holding(&mut scene.conn, &rows).await.unwrap().len(), 1);
    // Another message takes the key over.
    scene
        .sql("UPDATE queue_unique SET msg_id = UNHEX(REPEAT('07', 16)) WHERE unique_key = 'k'")
        .await;
    assert_eq!(unique::lock(&mut scene.conn, &rows).await.unwrap().len(), 0);
    assert_eq!(unique::holding(&mut scene.conn, &rows).await.unwrap().len(), 0);
    assert_eq!(unique::release(&mut scene.conn, &rows).await.unwrap(), 0);
    assert_eq!(number(&mut scene.conn, KEYS).await, 2);
    let own = NewMessage::new("m").with_unique(Unique::for_duration("k2", HOUR));
    scene.send(&own).await;
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 3);
}
