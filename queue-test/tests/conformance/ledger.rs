//! The ledger: which biz ids it records, and for how long.

use std::time::Duration;

use rowmq_core::model::{DeadCause, OnDone, Settlement, TopicSettings};
use rowmq_core::store::{ledger, prune};
use rowmq_core::worker::{SettleOutcome, Settled};
use rowmq_core::{Delivery, NewMessage, enqueue_all};

use crate::scene::{Scene, claim_n, retry, settle};

const HOUR: Duration = Duration::from_secs(3600);

fn settings(on_done: OnDone) -> TopicSettings {
    TopicSettings { ledger_window: Some(HOUR), on_done, ..TopicSettings::default() }
}

async fn send(scene: &mut Scene, biz_ids: &[&str]) {
    let message = |biz_id: &&str| match *biz_id {
        "" => NewMessage::new("m"),
        biz_id => NewMessage::new("m").with_biz_id(biz_id),
    };
    let messages: Vec<_> = biz_ids.iter().map(message).collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
}

fn end(scene: &Scene, delivery: &Delivery, settlement: Settlement) -> Settled {
    Settled::in_topic(delivery, settlement, &scene.topic.settings)
}

async fn remembered(scene: &mut Scene) -> String {
    let ids = "SELECT GROUP_CONCAT(biz_id ORDER BY biz_id) FROM queue_ledger";
    scene.text(ids).await
}

#[tokio::test]
async fn what_is_acked_enters_the_ledger_and_nothing_else_does() {
    for on_done in [OnDone::Delete, OnDone::Keep(HOUR)] {
        let mut scene = Scene::with(&settings(on_done)).await;
        send(&mut scene, &["a", "", "b", "c", "d", "e", "f", "a"]).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 8).await;
        let error = || "no".to_owned();
        let ends = [
            Settlement::Ack,
            Settlement::Ack,
            Settlement::Ack,
            retry(HOUR),
            Settlement::DeadLetter { cause: DeadCause::Handler, error: error() },
            Settlement::Discard { reason: error() },
            Settlement::Release,
            Settlement::Ack,
        ];
        let batch = got.iter().zip(ends).map(|(d, settlement)| end(&scene, d, settlement));
        settle(&worker, batch.collect()).await;
        assert_eq!(remembered(&mut scene).await, "a,b", "{on_done:?}");
        let first = scene.text("SELECT HEX(msg_id) FROM queue_ledger WHERE biz_id = 'a'").await;
        let expected = got[0].msg_id.to_string().replace('-', "").to_uppercase();
        assert_eq!(first, expected, "the first message with it");
        let in_an_hour = "SELECT COUNT(*) FROM queue_ledger WHERE keep_until BETWEEN \
             UTC_TIMESTAMP(6) + INTERVAL 3500 SECOND AND UTC_TIMESTAMP(6) + INTERVAL 1 HOUR";
        assert_eq!(scene.number(in_an_hour).await, 2);
    }
}

/// A settle that the fence refuses in part records only what it has settled.
#[tokio::test]
async fn a_fenced_ack_enters_nothing() {
    for on_done in [OnDone::Delete, OnDone::Keep(HOUR)] {
        let mut scene = Scene::with(&settings(on_done)).await;
        send(&mut scene, &["a", "b", "c"]).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        let taken = format!("UPDATE queue_message SET worker_id = 0 WHERE id = {}", got[1].row);
        scene.sql(&taken).await;
        let batch = got.iter().map(|d| end(&scene, d, Settlement::Ack)).collect();
        let outcomes = worker.settle(batch).await.unwrap();
        let (settled, fenced) = (SettleOutcome::Settled, SettleOutcome::Fenced);
        assert_eq!(outcomes, [settled, fenced, settled]);
        assert_eq!(remembered(&mut scene).await, "a,c", "{on_done:?}");
    }
}

#[tokio::test]
async fn a_repeated_message_is_kept_as_such_and_prolongs_nothing() {
    let mut scene = Scene::with(&settings(OnDone::Keep(HOUR))).await;
    send(&mut scene, &["a", "a"]).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    settle(&worker, vec![end(&scene, &got[0], Settlement::Ack)]).await;
    let until = scene.text("SELECT keep_until FROM queue_ledger").await;
    settle(&worker, vec![end(&scene, &got[1], Settlement::Repeated)]).await;
    assert_eq!(scene.text("SELECT keep_until FROM queue_ledger").await, until);
    let outcomes = "SELECT GROUP_CONCAT(outcome ORDER BY id) FROM queue_archive";
    assert_eq!(scene.text(outcomes).await, "done,repeated");
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn the_ledger_is_asked_by_topic_and_pruned_piece_by_piece() {
    let mut scene = Scene::with(&settings(OnDone::Delete)).await;
    let other = scene.db.topic("other").await;
    let ids: Vec<String> = (0..700).map(|n| format!("b{n:03}")).collect();
    let values: Vec<_> = ids
        .iter()
        .map(|id| format!("({}, '{id}', '', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)", scene.topic.id.0))
        .collect();
    let insert = "INSERT INTO queue_ledger (topic_id, biz_id, msg_id, keep_until) VALUES ";
    scene.sql(&format!("{insert}{}", values.join(", "))).await;
    let late = "UPDATE queue_ledger SET keep_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND \
         WHERE biz_id < 'b300'";
    scene.sql(late).await;
    let mut asked: Vec<&[u8]> = ids.iter().map(String::as_bytes).collect();
    asked.push(b"unknown");
    let found = ledger::look(&mut scene.conn, scene.topic.id, &asked).await.unwrap();
    assert_eq!(found.len(), 700);
    assert_eq!(found.iter().filter(|entry| entry.expired).count(), 300);
    assert!(ledger::look(&mut scene.conn, other.id, &asked).await.unwrap().is_empty());
    let mut pieces = Vec::new();
    for _ in 0..4 {
        pieces.push(prune::ledger(&mut scene.conn, 120).await.unwrap());
    }
    assert_eq!(pieces, [120, 120, 60, 0]);
    let found = ledger::look(&mut scene.conn, scene.topic.id, &asked).await.unwrap();
    assert_eq!(found.len(), 400);
}

/// On a real server, what the simulation's handlers leave behind.
#[tokio::test]
async fn a_message_that_is_entered_by_itself_is_entered_once() {
    let mut scene = Scene::with(&settings(OnDone::Delete)).await;
    let (topic, id) = (scene.topic.id, rowmq_core::MsgId::new());
    ledger::enter_alone(&mut scene.conn, topic, id).await.unwrap();
    let again = ledger::enter_alone(&mut scene.conn, topic, id).await.unwrap_err();
    assert_eq!(again.fault(), rowmq_core::Fault::Duplicate);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_ledger").await, 1);
}
