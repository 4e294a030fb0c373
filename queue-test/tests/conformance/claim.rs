//! Claims: ready rows become a worker's.

use std::collections::HashSet;
use std::task::Poll;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{Access, ClaimNo, DeliveryNo, Settlement};
use rowmq_core::store::claim::{Fence, Marks};
use rowmq_core::worker::ClaimStrategy;
use rowmq_core::{NewMessage, Priority, enqueue, enqueue_all, store};
use rowmq_test::until;

use crate::rescue::claims_of;
use crate::scene::{STRATEGIES, Scene, all, bodies, claim_n, numbers, settle};

#[tokio::test]
async fn an_empty_topic_gives_nothing_and_leaves_no_claim() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let worker = scene.worker_by(strategy).await;
        for _ in 0..3 {
            let claimed = worker.claim(scene.topic.id, 10).await.unwrap();
            assert!(claimed.deliveries.is_empty() && !claimed.suspect_waits);
        }
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn priorities_come_first_to_last_and_within_one_the_ids_in_order() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        // Enqueued last to first, two of each priority in turn.
        let mut messages = Vec::new();
        for round in 0..2 {
            for priority in Priority::all().collect::<Vec<_>>().into_iter().rev() {
                let body = format!("{priority}/{round}");
                messages.push(NewMessage::new(body).with_priority(priority));
            }
        }
        enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
        let worker = scene.worker_by(strategy).await;
        let mut got = Vec::new();
        while got.len() < messages.len() {
            let claimed = worker.claim(scene.topic.id, 100).await.unwrap().deliveries;
            // A claim has one priority: its key range is in one place.
            let priorities: HashSet<_> = claimed.iter().map(|d| d.priority).collect();
            assert!(priorities.len() <= 1, "{strategy:?}: {priorities:?}");
            got.extend(claimed);
        }
        let expected: Vec<_> = (0..10).flat_map(|p| [format!("{p}/0"), format!("{p}/1")]).collect();
        assert_eq!(bodies(&got), expected, "{strategy:?}");
    }
}

/// Not with the very next claim: a worker looks for urgent messages a few times a second.
#[tokio::test]
async fn a_message_of_higher_priority_overtakes_what_waits() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(5000).await;
        let worker = scene.worker_by(strategy).await;
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 2).await), numbers(0..2));
        let urgent = NewMessage::new("urgent").with_priority(Priority::FIRST);
        enqueue(&mut scene.conn, &scene.topic.name, &urgent).await.unwrap();
        for next in 2.. {
            assert!(next < 5000, "{strategy:?}: it was claimed last of all");
            let got = bodies(&claim_n(&worker, scene.topic.id, 1).await);
            if got == ["urgent"] {
                break;
            }
            assert_eq!(got, numbers(next..next + 1));
        }
    }
}

#[tokio::test]
async fn a_claim_writes_its_owner_into_its_rows_and_one_row_of_its_own() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(5).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        let row = store::worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
        let claims = claims_of(&mut scene.conn, worker.id()).await;
        let [claim] = claims.as_slice() else { panic!("one claim, not {claims:?}") };
        assert_eq!(claim.fence, Fence { worker: worker.id(), claim_no: got[0].claim_no });
        assert_eq!((claim.lo, claim.hi, claim.n), (got[0].row, got[2].row, 3));
        assert_eq!((claim.topic, claim.priority), (scene.topic.id, Priority::default()));
        assert_eq!(claim.conn, row.conn);
        let own = format!(
            "SELECT COUNT(*) FROM queue_message WHERE conn_id = {} AND worker_id = {} \
             AND claim_no = {} AND delivery_no = 1",
            row.conn, row.id, claim.fence.claim_no
        );
        assert_eq!(scene.number(&own).await, 3);
        // The other two are as they were.
        let ready = "SELECT COUNT(*) FROM queue_message \
             WHERE conn_id = 0 AND worker_id = 0 AND claim_no = 0 AND delivery_no = 0";
        assert_eq!(scene.number(ready).await, 2);
    }
}

#[tokio::test]
async fn no_claim_number_is_used_twice() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(20).await;
        let worker = scene.worker_by(strategy).await;
        let mut seen = HashSet::new();
        for _ in 0..10 {
            let got = claim_n(&worker, scene.topic.id, 2).await;
            assert!(seen.insert(got[0].claim_no) && got[1].claim_no == got[0].claim_no);
            settle(&worker, all(&got, &Settlement::Release)).await;
        }
    }
}

#[tokio::test]
async fn the_delivery_number_rises_with_every_claim_and_nothing_lowers_it() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(1).await;
        let worker = scene.worker_by(strategy).await;
        for n in 1..=5 {
            let got = claim_n(&worker, scene.topic.id, 1).await;
            assert_eq!((got[0].delivery_no, got[0].failures), (DeliveryNo(n), 0));
            settle(&worker, all(&got, &Settlement::Release)).await;
        }
        // Another worker, which knows nothing of the earlier deliveries, continues the count.
        let other = scene.worker_by(strategy).await;
        assert_eq!(claim_n(&other, scene.topic.id, 1).await[0].delivery_no, DeliveryNo(6));
    }
}

#[tokio::test]
async fn topics_do_not_mix() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let other = scene.db.topic("T").await;
        for i in 0..6 {
            let name = if i % 2 == 0 { &scene.topic.name } else { &other.name };
            enqueue(&mut scene.conn, name, &NewMessage::new(i.to_string())).await.unwrap();
        }
        let worker = scene.worker_by(strategy).await;
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 3).await), ["0", "2", "4"]);
        assert!(worker.claim(scene.topic.id, 9).await.unwrap().deliveries.is_empty());
        assert_eq!(bodies(&claim_n(&worker, other.id, 3).await), ["1", "3", "5"]);
    }
}

#[tokio::test]
async fn workers_share_a_topic_without_sharing_a_row() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(300).await;
        let mut claiming = Vec::new();
        for _ in 0..3 {
            let worker = scene.worker_by(strategy).await;
            let topic = scene.topic.id;
            claiming.push(tokio::spawn(async move {
                let mut rows = Vec::new();
                for _ in 0..10 {
                    let got = claim_n(&worker, topic, 10).await;
                    rows.extend(got.into_iter().map(|d| d.row));
                }
                (rows, worker)
            }));
        }
        let (mut rows, mut workers) = (Vec::new(), Vec::new());
        for claiming in claiming {
            let (own, worker) = claiming.await.unwrap();
            rows.extend(own);
            workers.push(worker);
        }
        let distinct: HashSet<_> = rows.iter().collect();
        assert_eq!((rows.len(), distinct.len()), (300, 300), "{strategy:?}");
    }
}

/// Before its first probe, a worker did not know of the pause and claimed for up to 0.2 s.
#[tokio::test]
async fn a_worker_that_starts_claims_nothing_of_a_topic_that_was_paused_before() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let name = scene.topic.name.clone();
    store::topic::set_access(&mut scene.conn, &name, Access::WriteOnly).await.unwrap();
    let worker = scene.worker().await;
    assert_eq!(worker.claim(scene.topic.id, 1).await.unwrap().deliveries, []);
}

#[tokio::test]
async fn a_paused_topic_keeps_its_messages_and_goes_on_where_it_stopped() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(4).await;
        let worker = scene.worker_by(strategy).await;
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 2).await), numbers(0..2));
        let name = scene.topic.name.clone();
        store::topic::set_access(&mut scene.conn, &name, Access::WriteOnly).await.unwrap();
        let life = worker.life();
        until("the worker hears of the pause", async || {
            life.borrow().pulse.paused.contains(&scene.topic.id)
        })
        .await;
        assert!(worker.claim(scene.topic.id, 9).await.unwrap().deliveries.is_empty());
        store::topic::set_access(&mut scene.conn, &name, Access::ReadWrite).await.unwrap();
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 2).await), numbers(2..4));
    }
}

#[tokio::test]
async fn skip_locked_passes_over_rows_that_another_session_has_locked() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let mut other = scene.db.connect().await;
    // READ COMMITTED releases the locks of rows that do not match.
    let lock = "BEGIN; SELECT id FROM queue_message WHERE body IN ('0', '2') FOR UPDATE";
    other.batch_execute(lock).await.unwrap();
    let worker = scene.worker_by(ClaimStrategy::SkipLocked).await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 2).await), ["1", "3"]);
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 2).await), ["0", "2"]);
}

/// No bell rings when the other transaction ends.
#[tokio::test]
async fn a_claim_that_finds_only_locked_rows_says_that_more_may_be_ready() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut other = scene.db.connect().await;
    other.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
    let worker = scene.worker_by(ClaimStrategy::SkipLocked).await;
    let claimed = worker.claim(scene.topic.id, 1).await.unwrap();
    assert!(claimed.deliveries.is_empty() && claimed.more_later);
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["0"]);
    until("a look finds nothing", async || {
        let claimed = worker.claim(scene.topic.id, 1).await.unwrap();
        assert!(claimed.deliveries.is_empty());
        !claimed.more_later
    })
    .await;
}

#[tokio::test]
async fn an_update_that_comes_first_waits_for_rows_that_another_session_has_locked() {
    for strategy in [ClaimStrategy::UpdateThenSelect, ClaimStrategy::UpdateLimit] {
        let mut scene = Scene::new().await;
        scene.enqueue(4).await;
        let mut other = scene.db.connect().await;
        other.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
        let worker = scene.worker_by(strategy).await;
        let topic = scene.topic.id;
        let claiming = tokio::spawn(async move { (claim_n(&worker, topic, 4).await, worker) });
        // It may get 1205 in the meantime: that is retried and costs nothing.
        until("the claim waits", async || scene.lock_waits().await > 0).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(bodies(&claiming.await.unwrap().0), numbers(0..4));
    }
}

#[tokio::test]
async fn a_suspect_is_claimed_only_when_asked_for_and_alone() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        scene.sql("UPDATE queue_message SET priority = priority + 100 WHERE body < '2'").await;
        let worker = scene.worker_by(strategy).await;
        let claimed = worker.claim(scene.topic.id, 10).await.unwrap();
        assert_eq!(bodies(&claimed.deliveries), ["2"]);
        assert!(claimed.suspect_waits);
        settle(&worker, all(&claimed.deliveries, &Settlement::Ack)).await;
        until("the worker says that a suspect waits", async || {
            let claimed = worker.claim(scene.topic.id, 10).await.unwrap();
            assert!(claimed.deliveries.is_empty());
            claimed.suspect_waits
        })
        .await;
        for body in ["0", "1"] {
            let got = worker.claim_suspect(scene.topic.id).await.unwrap().deliveries;
            assert_eq!(bodies(&got), [body]);
            assert!(got[0].priority.is_suspect());
            assert_eq!(got[0].priority.level(), 5);
            settle(&worker, all(&got, &Settlement::Ack)).await;
        }
        assert!(worker.claim_suspect(scene.topic.id).await.unwrap().deliveries.is_empty());
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn a_claim_whose_caller_has_gone_gives_its_rows_back() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(20).await;
        let worker = scene.worker_by(strategy).await;
        let mut gone = 0;
        while gone < 20 {
            // Polled once, so that the claim is under way, then dropped.
            let mut claiming = Box::pin(worker.claim(scene.topic.id, 1));
            match futures_util::poll!(claiming.as_mut()) {
                Poll::Pending => gone += 1,
                // The worker's thread was quicker than this one: its caller is still here.
                Poll::Ready(claimed) => {
                    let got = claimed.unwrap().deliveries;
                    settle(&worker, all(&got, &Settlement::Release)).await;
                }
            }
        }
        until("every row is ready again", async || {
            // Commands run one after the other, so this one runs after the twenty.
            worker.settle(Vec::new()).await.unwrap();
            scene.hot().await == (20, 0, 0)
        })
        .await;
        let mut got = bodies(&claim_n(&worker, scene.topic.id, 20).await);
        got.sort_by_key(|body| body.parse::<usize>().unwrap());
        assert_eq!(got, numbers(0..20));
    }
}

/// The store's own claim, in the caller's transaction: nothing is claimed unless it commits.
#[tokio::test]
async fn a_claim_that_is_rolled_back_has_claimed_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let fence = Fence { worker: worker.id(), claim_no: ClaimNo(1000) };
    let topic = scene.topic.id;
    scene.sql("BEGIN").await;
    let got = store::claim::lock_ready(
        &mut scene.conn,
        topic,
        Marks::START.position(Priority::default()),
        2,
        fence.claim_no,
    );
    let got = got.await.unwrap();
    assert_eq!(got[0].delivery_no, DeliveryNo(1));
    let rows = got.iter().map(|d| d.row).collect();
    let priority = Priority::default();
    let owned = store::claim::own(&mut scene.conn, fence, topic, priority, &rows).await.unwrap();
    assert_eq!(owned, 2);
    store::claim::record(&mut scene.conn, fence, topic, priority, &rows).await.unwrap();
    scene.sql("ROLLBACK").await;
    assert_eq!(scene.hot().await, (3, 0, 0));
    let got = claim_n(&worker, topic, 3).await;
    assert!(got.iter().all(|d| d.delivery_no == DeliveryNo(1)));
}

/// Simultaneous claims of neighbouring rows: neither waits for the other's commit.
#[tokio::test]
async fn a_claim_does_not_wait_for_the_claim_of_the_rows_after_it() {
    let mut scene = Scene::new().await;
    scene.enqueue(6).await;
    let topic = scene.topic.id;
    let (mut a, mut b) = (scene.db.connect().await, scene.db.connect().await);
    a.batch_execute("BEGIN").await.unwrap();
    b.batch_execute("BEGIN").await.unwrap();
    let (no_a, no_b) = (ClaimNo(1), ClaimNo(1));
    let got_a = store::claim::lock_ready(
        &mut a,
        topic,
        Marks::START.position(Priority::default()),
        3,
        no_a,
    )
    .await
    .unwrap();
    let got_b = store::claim::lock_ready(
        &mut b,
        topic,
        Marks::START.position(Priority::default()),
        3,
        no_b,
    )
    .await
    .unwrap();
    assert_eq!((bodies(&got_a), bodies(&got_b)), (numbers(0..3), numbers(3..6)));
    for (conn, worker, got) in [(&mut b, 2, &got_b), (&mut a, 1, &got_a)] {
        let fence = Fence { worker: rowmq_core::model::WorkerId(worker), claim_no: ClaimNo(1) };
        let rows = got.iter().map(|d| d.row).collect();
        let priority = Priority::default();
        assert_eq!(store::claim::own(conn, fence, topic, priority, &rows).await.unwrap(), 3);
        store::claim::record(conn, fence, topic, priority, &rows).await.unwrap();
    }
    a.batch_execute("COMMIT").await.unwrap();
    b.batch_execute("COMMIT").await.unwrap();
    assert_eq!(scene.hot().await, (6, 6, 2));
}

#[tokio::test]
async fn a_claim_of_nothing_claims_nothing() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let worker = scene.worker_by(strategy).await;
        assert!(worker.claim(scene.topic.id, 0).await.unwrap().deliveries.is_empty());
        assert_eq!(scene.hot().await, (2, 0, 0));
    }
}

/// Rescue reads a claim's whole key range, so that range must not span the backlog.
#[tokio::test]
async fn rows_far_apart_are_claimed_apart() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        scene.sql("ALTER TABLE queue_message AUTO_INCREMENT = 1000000").await;
        scene.enqueue(2).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 4).await;
        assert_eq!(bodies(&got), ["0", "1", "0", "1"], "{strategy:?}");
        for claim in claims_of(&mut scene.conn, worker.id()).await {
            assert!(claim.hi.0 - claim.lo.0 < 100_000, "{claim:?}");
        }
    }
}
