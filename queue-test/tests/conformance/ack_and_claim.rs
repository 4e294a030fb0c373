//! Acks and the claim behind them: one transaction, unless one of the two fails.

use std::sync::Arc;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::Delivery;
use rowmq_core::model::Settlement;
use rowmq_core::worker::{SettleOutcome, Worker};
use rowmq_test::until;

use crate::scene::{STRATEGIES, Scene, all, claim_n};

/// Acks a message, then another, then claims one, while the claim cannot be recorded. Returns
/// whether the second ack waited with the claim. The first one keeps the worker's session busy
/// until the other two wait behind it.
async fn ack_waits_for_the_claim(scene: &mut Scene, worker: &Arc<Worker>) -> bool {
    let topic = scene.topic.id;
    scene.enqueue(3).await;
    let mut acks = Vec::new();
    for _ in 0..2 {
        acks.push(claim_n(worker, topic, 1).await);
    }
    let mut keeper = scene.db.connect().await;
    let next = acks[1][0].claim_no.0 + 1;
    let record = format!(
        "BEGIN; INSERT INTO queue_claim \
         (worker_id, claim_no, topic_id, priority, lo, hi, n, conn_id, claimed_at) \
         VALUES ({}, {next}, {}, 5, 1, 1, 1, 1, UTC_TIMESTAMP(6))",
        worker.id(),
        topic.0
    );
    keeper.batch_execute(&record).await.unwrap();
    let settling: Vec<_> = acks
        .iter()
        .map(|deliveries| {
            let (worker, batch) = (Arc::clone(worker), all(deliveries, &Settlement::Ack));
            tokio::spawn(async move { worker.settle(batch).await.unwrap() })
        })
        .collect();
    let claiming = tokio::spawn({
        let worker = Arc::clone(worker);
        async move { worker.claim(topic, 1).await.unwrap_or_default().deliveries }
    });
    // It waits twice for a second: who looks late sees nothing, and the next round shows more.
    until("the claim waits", async || claiming.is_finished() || scene.lock_waits().await > 0).await;
    let waits = !settling[1].is_finished();
    keeper.batch_execute("ROLLBACK").await.unwrap();
    for settled in settling {
        assert_eq!(settled.await.unwrap(), [SettleOutcome::Settled]);
    }
    let claimed = claiming.await.unwrap();
    worker.settle(all(&claimed, &Settlement::Ack)).await.unwrap();
    waits
}

#[tokio::test]
async fn acks_and_the_claim_behind_them_are_one_transaction() {
    let mut scene = Scene::new().await;
    let worker = Arc::new(scene.worker().await);
    // A round shows nothing if the session takes the second ack before the claim has been sent.
    for _ in 0..10 {
        if ack_waits_for_the_claim(&mut scene, &worker).await {
            return;
        }
    }
    panic!("each ack was committed before the claim behind it began");
}

/// Acks both deliveries and claims a message, all at once.
async fn ack_both_and_claim(
    scene: &Scene,
    worker: &Worker,
    got: &[Delivery],
) -> ([SettleOutcome; 2], Vec<Delivery>) {
    let (first, second, claimed) = tokio::join!(
        worker.settle(all(&got[..1], &Settlement::Ack)),
        worker.settle(all(&got[1..], &Settlement::Ack)),
        worker.claim(scene.topic.id, 1),
    );
    ([first.unwrap()[0], second.unwrap()[0]], claimed.unwrap().deliveries)
}

#[tokio::test]
async fn a_fenced_ack_does_not_hold_up_the_claim() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        let row = got[1].row.0;
        scene.sql(&format!("UPDATE queue_message SET claim_no = 1000 WHERE id = {row}")).await;
        let (outcomes, claimed) = ack_both_and_claim(&scene, &worker, &got).await;
        assert_eq!(outcomes, [SettleOutcome::Settled, SettleOutcome::Fenced]);
        assert_eq!(claimed.len(), 1);
        assert_eq!(scene.hot().await, (2, 2, 1));
    }
}

#[tokio::test]
async fn acks_are_settled_when_nothing_is_left_to_claim() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        let (outcomes, claimed) = ack_both_and_claim(&scene, &worker, &got).await;
        assert_eq!(outcomes, [SettleOutcome::Settled; 2]);
        assert_eq!(claimed, []);
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}
