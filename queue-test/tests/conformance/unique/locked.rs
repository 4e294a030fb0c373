//! Keys that a producer's open transaction has locked: which sessions wait for them, and which do
//! not.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::rescue::{Why, take_back};
use rowmq_core::store::{dedupe, prune};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{AsyncMysqlConnection, MsgId, NewMessage, Unique, enqueue_to};
use rowmq_test::until;

use super::{HOUR, KEYS, until_done};
use crate::rescue::claims_of;
use crate::scene::{Scene, all, claim_n, settle};

/// Opens a session whose transaction has locked the key.
async fn stranger(scene: &Scene, key: &str) -> AsyncMysqlConnection {
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN").await.unwrap();
    enqueue_to(&mut stranger, &scene.topic, &[until_done(key)]).await.unwrap();
    stranger
}

/// Another session's open transaction holds one key: the rest of the batch is settled nevertheless,
/// and that message once the transaction has ended.
#[tokio::test]
async fn a_key_that_a_stranger_has_locked_holds_up_only_its_own_message() {
    let mut scene = Scene::new().await;
    for key in ["a", "b", "c"] {
        scene.send(&until_done(key)).await;
    }
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN").await.unwrap();
    rowmq_core::enqueue_to(&mut stranger, &scene.topic, &[until_done("b")]).await.unwrap();
    let outcomes = worker.settle(all(&got, &Settlement::Ack)).await.unwrap();
    let settled = SettleOutcome::Settled;
    assert_eq!(outcomes, [settled, SettleOutcome::Deferred, settled]);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique WHERE unique_key = 'b'").await, 1);
    stranger.batch_execute("COMMIT").await.unwrap();
    until("the last is settled", async || scene.number(KEYS).await == 0).await;
    assert_eq!(scene.hot().await.0, 0);
}

/// If it waited, even a second per beat, the worker would claim and settle nothing else.
#[tokio::test]
async fn a_worker_never_waits_for_a_key_that_a_stranger_has_locked() {
    let mut scene = Scene::new().await;
    scene.send(&until_done("k")).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let mut stranger = stranger(&scene, "k").await;
    let beats = "SELECT beat_no FROM queue_worker";
    let watched = async {
        let from = scene.number(beats).await;
        until("some beats have gone by", async || {
            assert_eq!(scene.lock_waits().await, 0);
            scene.number(beats).await >= from + 3
        })
        .await;
    };
    let (outcomes, ()) = tokio::join!(worker.settle(all(&got, &Settlement::Ack)), watched);
    assert_eq!(outcomes.unwrap(), [SettleOutcome::Deferred]);
    assert_eq!(scene.number(KEYS).await, 1);
    stranger.batch_execute("COMMIT").await.unwrap();
    until("it is settled", async || scene.number(KEYS).await == 0).await;
}

/// Another message has taken the key over: the session holds nothing of this one.
#[tokio::test]
async fn a_message_without_its_key_does_not_wait_for_the_next_ones() {
    let mut scene = Scene::new().await;
    let replacing = || NewMessage::new("m").with_unique(Unique::replacing("k"));
    scene.send(&replacing()).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert!(scene.send(&replacing()).await.is_stored());
    let _stranger = stranger(&scene, "k").await;
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 1);
}

/// The crash counts nevertheless, or a message that kills its workers would run for ever.
#[tokio::test]
async fn a_rescue_waits_for_no_key_and_charges_the_crash() {
    let settings = TopicSettings { max_crashes: 1, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    scene.send(&until_done("k")).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    let claim = claims_of(&mut scene.conn, worker.id()).await.remove(0);
    let mut stranger = stranger(&scene, "k").await;
    let why = Why::Crashed { rows_held: 1 };
    let taken =
        transaction(&mut scene.conn, "rescue", async |conn| take_back(conn, &claim, why).await);
    let taken = taken.await.unwrap();
    assert_eq!((taken.freed, taken.dead_lettered, taken.left), (1, 0, 0));
    assert_eq!(scene.number("SELECT crashes FROM queue_message").await, 1);
    assert_eq!(scene.number("SELECT priority >= 100 FROM queue_message").await, 1);
    stranger.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(scene.number(KEYS).await, 1);
}

#[tokio::test]
async fn pruning_waits_for_no_id_and_no_key() {
    let settings = TopicSettings { dedupe_window: Some(HOUR), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let held = || NewMessage::new("m").with_unique(Unique::for_duration("a", HOUR));
    let ids = [MsgId::new(), MsgId::new()];
    let other = NewMessage::new("m").with_unique(Unique::for_duration("b", HOUR));
    scene.send(&held().with_msg_id(ids[0])).await;
    scene.send(&other.with_msg_id(ids[1])).await;
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN").await.unwrap();
    let again = [NewMessage::new("m").with_msg_id(ids[0]), held()];
    enqueue_to(&mut stranger, &scene.topic, &again).await.unwrap();
    // In a session that waits for no lock, and to which every row looks expired.
    scene.sql("SET time_zone = '+00:00', timestamp = UNIX_TIMESTAMP() + 7200").await;
    for pruned in [
        prune::dedupe(&mut scene.conn, 10).await.unwrap(),
        prune::unique(&mut scene.conn, 10).await.unwrap(),
    ] {
        assert_eq!((pruned.found, pruned.removed), (2, 1));
    }
    stranger.batch_execute("ROLLBACK").await.unwrap();
    for pruned in [
        prune::dedupe(&mut scene.conn, 10).await.unwrap(),
        prune::unique(&mut scene.conn, 10).await.unwrap(),
    ] {
        assert_eq!((pruned.found, pruned.removed), (1, 1));
    }
}

#[tokio::test]
async fn ids_are_taken_back_one_by_one() {
    let mut scene = Scene::new().await;
    let ids = [MsgId::new(), MsgId::new(), MsgId::new()];
    let topic = scene.topic.id;
    dedupe::enter(&mut scene.conn, topic, &ids, HOUR).await.unwrap();
    let mut stranger = scene.db.connect().await;
    stranger.batch_execute("BEGIN").await.unwrap();
    dedupe::enter(&mut stranger, topic, &ids[..1], HOUR).await.unwrap();
    dedupe::take_back(&mut scene.conn, topic, &ids[1..]).await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 1);
}
