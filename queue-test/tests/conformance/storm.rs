//! Everything at once: many workers, every kind of end, no injected fault.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use rowmq_core::model::{DeliveryNo, MsgId, Settlement};
use rowmq_core::worker::{ClaimStrategy, SettleOutcome};
use rowmq_core::{Delivery, NewMessage, enqueue_all};

use crate::moves::promote;
use crate::scene::{Scene, all, retry, wait_for_locks};

const MESSAGES: usize = 5_000;
const WORKERS: usize = 8;

/// Returns the end of a delivery: a third of the messages is retried or released once.
fn end_of(delivery: &Delivery) -> Settlement {
    match (delivery.delivery_no, delivery.body[0] % 6) {
        (DeliveryNo(1), 0) => retry(Duration::ZERO),
        (DeliveryNo(1), 1) => Settlement::Release,
        _ => Settlement::Ack,
    }
}

/// Each message is acked once, no delivery is seen twice, no message is seen more often than it was
/// given back, no call fails but for locks, and nothing is left over.
async fn storm(strategy: ClaimStrategy) {
    let mut scene = Scene::new().await;
    let messages: Vec<_> =
        (0..MESSAGES).map(|i| NewMessage::new([(i % 251) as u8, (i / 251) as u8])).collect();
    let acked: RefCell<HashMap<MsgId, usize>> = RefCell::default();
    let seen: RefCell<HashMap<(MsgId, DeliveryNo), usize>> = RefCell::default();
    let done = Cell::new(0);
    let workers = (0..WORKERS).map(async |n| {
        let worker = scene.worker_by(strategy).await;
        let mut limit = 1 + n as u32 * 7;
        while done.get() < MESSAGES {
            limit = limit * 5 % 61 + 1;
            let got = match worker.claim(scene.topic.id, limit).await {
                // Another session has held a lock for longer than a claim waits.
                Err(error) if error.fault().is_conflict() => Vec::new(),
                claimed => claimed.unwrap().deliveries,
            };
            if got.is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let batch: Vec<_> = got.iter().flat_map(|d| all([d], &end_of(d))).collect();
            let n = batch.len();
            let outcomes = worker.settle(batch).await.unwrap();
            // What is deferred because of a lock is settled by the worker's end.
            let settled =
                |o: &SettleOutcome| matches!(o, SettleOutcome::Settled | SettleOutcome::Deferred);
            assert!(outcomes.len() == n && outcomes.iter().all(settled), "{outcomes:?}");
            for delivery in &got {
                let token = (delivery.msg_id, delivery.delivery_no);
                *seen.borrow_mut().entry(token).or_default() += 1;
                if end_of(delivery) == Settlement::Ack {
                    *acked.borrow_mut().entry(delivery.msg_id).or_default() += 1;
                    done.set(done.get() + 1);
                }
            }
        }
        worker.stop().await.unwrap();
    });
    let producers = messages.chunks(MESSAGES / 4).map(async |share| {
        let mut conn = scene.db.connect().await;
        wait_for_locks(&mut conn).await;
        for chunk in share.chunks(125) {
            enqueue_all(&mut conn, &scene.topic.name, chunk).await.unwrap();
        }
    });
    let promoters = (0..2).map(async |_| {
        let mut conn = scene.db.connect().await;
        while done.get() < MESSAGES {
            if promote(&mut conn, 50).await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    tokio::join!(join_all(workers), join_all(producers), join_all(promoters));
    let acked = acked.into_inner();
    assert_eq!(acked.len(), MESSAGES);
    assert!(acked.values().all(|n| *n == 1));
    let seen = seen.into_inner();
    assert!(seen.values().all(|n| *n == 1), "a delivery was handed out twice");
    assert!(seen.keys().all(|(_, delivery)| delivery.0 <= 2));
    assert_eq!(scene.hot().await, (0, 0, 0));
    for table in ["queue_scheduled", "queue_dead", "queue_archive"] {
        assert_eq!(scene.number(&format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
    let ended = "SELECT COUNT(*) FROM queue_worker WHERE state = 'stopped'";
    assert_eq!(scene.number(ended).await, WORKERS as i64);
}

#[tokio::test]
async fn eight_workers_by_skip_locked_handle_every_message_once() {
    storm(ClaimStrategy::SkipLocked).await;
}

#[tokio::test]
async fn eight_workers_by_update_then_select_handle_every_message_once() {
    storm(ClaimStrategy::UpdateThenSelect).await;
}

#[tokio::test]
async fn eight_workers_by_update_limit_handle_every_message_once() {
    storm(ClaimStrategy::UpdateLimit).await;
}
