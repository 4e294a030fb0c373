//! Histories that broke an earlier draft of the protocol, as far as they need a worker, a lost
//! reply or a decision between two sessions. The others are in the files of their nouns.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{ClaimNo, DeadCause, DeliveryNo, OnDone, Settlement};
use rowmq_core::store::claim::Fence;
use rowmq_core::store::worker::{self, Registration, Role, WorkerRow};
use rowmq_core::worker::{SettleOutcome, Settled, Worker};
use rowmq_core::{AsyncMysqlConnection, Error, NewMessage, enqueue};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::until;
use uuid::Uuid;

use crate::rescue::{claim_uncommitted, claims_of, strand_claim};
use crate::scene::{STRATEGIES, Scene, all, bodies, claim_n, numbers, retry, wait_for_locks};

/// A worker behind a proxy, which compares its claims often.
async fn behind_proxy(scene: &Scene) -> (FaultProxy, Worker) {
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let worker = scene.worker_with(|options| {
        options.url = url;
        options.beat = Duration::from_millis(500);
    });
    let worker = worker.await;
    (proxy, worker)
}

/// Registers a worker whose session has ended; returns its row.
async fn registered(scene: &mut Scene) -> (WorkerRow, Uuid) {
    let instance = Uuid::new_v4();
    let registration = Registration {
        instance,
        client_id: "test".to_owned(),
        version: "0".to_owned(),
        lease: Duration::from_secs(10),
    };
    let mut life = scene.db.connect().await;
    let incarnation = worker::incarnation(&mut life).await.unwrap();
    let id = worker::register(&mut life, &registration, &incarnation).await.unwrap();
    (worker::find(&mut scene.conn, id).await.unwrap().unwrap(), instance)
}

/// H3: the janitor decides first: the reconnecting worker finds itself dead for ever.
#[tokio::test]
async fn after_a_death_the_adoption_changes_nothing() {
    let mut scene = Scene::new().await;
    let (seen, instance) = registered(&mut scene).await;
    let conn = &mut scene.conn;
    assert_eq!(worker::declare_dead(conn, &seen, "missing").await.unwrap(), 1);
    for role in [Role::Life, Role::Work] {
        let adopted = worker::adopt(conn, seen.id, instance, role, &seen.incarnation).await;
        assert_eq!(adopted.unwrap(), 0);
    }
    assert_eq!(worker::beat(conn, seen.id, instance).await.unwrap(), 0);
    assert_eq!(worker::stop(conn, seen.id, instance).await.unwrap(), 0);
    // And the decision is made once.
    assert_eq!(worker::declare_dead(conn, &seen, "again").await.unwrap(), 0);
    let row = worker::find(conn, seen.id).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.end_reason.as_deref()), ("dead", Some("missing")));
}

/// H3: the worker reconnects first: the janitor, which has seen the old connection missing, decides
/// nothing.
#[tokio::test]
async fn after_an_adoption_the_death_changes_nothing() {
    for role in [Role::Life, Role::Work] {
        let mut scene = Scene::new().await;
        let (seen, instance) = registered(&mut scene).await;
        let mut reconnected = scene.db.connect().await;
        let adopted =
            worker::adopt(&mut reconnected, seen.id, instance, role, &seen.incarnation).await;
        assert_eq!(adopted.unwrap(), 1);
        let dead = worker::declare_dead(&mut scene.conn, &seen, "missing").await.unwrap();
        assert_eq!(dead, 0, "{role:?}");
        let row = worker::find(&mut scene.conn, seen.id).await.unwrap().unwrap();
        assert_eq!(row.state, "alive");
    }
}

/// H3: both at once, in either order: the one that gets the row's lock wins, and the other sees
/// what it did.
#[tokio::test]
async fn of_adoption_and_death_at_the_same_moment_exactly_one_happens() {
    for death_first in [true, false] {
        let mut scene = Scene::new().await;
        let (seen, instance) = registered(&mut scene).await;
        let (mut janitor, mut consumer) = (scene.db.connect().await, scene.db.connect().await);
        for conn in [&mut janitor, &mut consumer] {
            wait_for_locks(conn).await;
        }
        let adopt = async |conn: &mut AsyncMysqlConnection| {
            worker::adopt(conn, seen.id, instance, Role::Work, &seen.incarnation).await.unwrap()
        };
        let declare = async |conn: &mut AsyncMysqlConnection| {
            worker::declare_dead(conn, &seen, "missing").await.unwrap()
        };
        let mut end_first = async |conn: &mut AsyncMysqlConnection| {
            until("the other one waits", async || scene.lock_waits().await > 0).await;
            conn.batch_execute("COMMIT").await.unwrap();
        };
        let (death, adoption) = if death_first {
            janitor.batch_execute("BEGIN").await.unwrap();
            let death = declare(&mut janitor).await;
            let ((), adoption) = tokio::join!(end_first(&mut janitor), adopt(&mut consumer));
            (death, adoption)
        } else {
            consumer.batch_execute("BEGIN").await.unwrap();
            let adoption = adopt(&mut consumer).await;
            let ((), death) = tokio::join!(end_first(&mut consumer), declare(&mut janitor));
            (death, adoption)
        };
        assert_eq!((death == 1, adoption == 1), (death_first, !death_first));
    }
}

/// A failover that lost the worker's row may have given its number to another worker: the first one
/// must leave that row alone.
#[tokio::test]
async fn a_worker_does_not_touch_the_row_of_another_with_its_number() {
    let mut scene = Scene::new().await;
    let (row, _) = registered(&mut scene).await;
    let stranger = Uuid::new_v4();
    let conn = &mut scene.conn;
    for role in [Role::Life, Role::Work] {
        let adopted = worker::adopt(conn, row.id, stranger, role, &row.incarnation).await;
        assert_eq!(adopted.unwrap(), 0);
    }
    assert_eq!(worker::beat(conn, row.id, stranger).await.unwrap(), 0);
    assert_eq!(worker::stop(conn, row.id, stranger).await.unwrap(), 0);
    assert_eq!(worker::find(conn, row.id).await.unwrap().unwrap(), row);
}

/// H20: a worker that has beaten since it was last seen is alive, whatever its clock or the process
/// list said.
#[tokio::test]
async fn a_worker_that_has_beaten_since_it_was_seen_is_not_declared_dead() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let seen = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
    assert_eq!(worker::beat(&mut scene.conn, worker.id(), worker.instance()).await.unwrap(), 1);
    assert_eq!(worker::declare_dead(&mut scene.conn, &seen, "stale").await.unwrap(), 0);
    let now = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
    assert_eq!((now.state.as_str(), now.beat_no > seen.beat_no), ("alive", true));
}

/// H6, the reply to the claim's commit is lost: the rows come back as soon as the worker has
/// reconnected, and are handled once.
#[tokio::test]
async fn a_claim_whose_commit_had_no_answer_is_given_back_on_reconnecting() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let proxy = FaultProxy::start(scene.db.url()).await;
        let url = proxy.url(scene.db.url());
        let worker = scene.worker_with(|options| {
            options.url = url;
            options.strategy = strategy;
        });
        let worker = worker.await;
        proxy.drop_reply_after("COMMIT");
        let lost = worker.claim(scene.topic.id, 2).await.unwrap_err();
        assert!(matches!(lost, Error::UnknownOutcome { .. }), "{lost}");
        let got = claim_n(&worker, scene.topic.id, 3).await;
        assert_eq!(bodies(&got), numbers(0..3));
        let deliveries: Vec<_> = got.iter().map(|d| d.delivery_no).collect();
        assert_eq!(deliveries, [DeliveryNo(2), DeliveryNo(2), DeliveryNo(1)]);
        assert!(got.iter().all(|d| d.failures == 0 && d.crashes == 0));
        crate::scene::settle(&worker, all(&got, &Settlement::Ack)).await;
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

/// H6 as it was found: the socket is cut while the claim's commit is still in flight. The new
/// session ends the old one first; whichever comes first, that end or the commit, every row is
/// handled once and none is stranded under a live worker.
#[tokio::test]
async fn a_claim_whose_commit_is_late_is_given_back_or_never_happens() {
    for arrives in [true, false] {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let (proxy, worker) = behind_proxy(&scene).await;
        proxy.strand("COMMIT");
        worker.claim(scene.topic.id, 2).await.unwrap_err();
        proxy.sprung().await;
        if arrives {
            proxy.release();
        }
        let mut got = Vec::new();
        until("the rows are claimed anew", async || {
            let claimed = worker.claim(scene.topic.id, 2).await;
            got.extend(claimed.map_or_else(|_| vec![], |claimed| claimed.deliveries));
            got.len() == 2
        })
        .await;
        assert_eq!(bodies(&got), numbers(0..2));
        proxy.release();
        crate::scene::settle(&worker, all(&got, &Settlement::Ack)).await;
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

/// H6, the last line of defence: the worker compares its claims in the database with what it holds
/// and gives the rest back, although no loss was ever reported.
#[tokio::test]
async fn a_claim_the_worker_does_not_know_of_is_given_back_within_a_lease() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker_with(|options| options.beat = Duration::from_millis(300)).await;
    let known = claim_n(&worker, scene.topic.id, 1).await;
    let fence = Fence { worker: worker.id(), claim_no: ClaimNo(1_000_000) };
    strand_claim(&mut scene, fence, 2).await;
    until("the strange claim is given back", async || scene.hot().await == (3, 1, 1)).await;
    let claims = claims_of(&mut scene.conn, worker.id()).await;
    assert_eq!(claims[0].fence.claim_no, known[0].claim_no);
}

/// P7, H6 in a Galera cluster: each node has its own name locks, so a worker's new session does not
/// end what its old one has sent to another node, and that claim is committed after all.
#[tokio::test]
async fn a_claim_that_another_node_commits_after_the_reconnect_is_given_back() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let other = scene.db.topic("other").await;
    enqueue(&mut scene.conn, &other.name, &NewMessage::new("m")).await.unwrap();
    let worker = scene.worker_with(|options| options.beat = Duration::from_millis(300)).await;
    // The number of a claim that the worker has made, and knows to be over.
    let got = claim_n(&worker, other.id, 1).await;
    crate::scene::settle(&worker, all(&got, &Settlement::Ack)).await;
    let fence = Fence { worker: worker.id(), claim_no: got[0].claim_no };
    let mut node = scene.db.connect().await;
    claim_uncommitted(&mut node, &scene, fence, 2).await;
    let old = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap().conn;
    scene.sql(&format!("KILL {old}")).await;
    // The worker claims nothing on a session that has not been compared.
    until("reconnected", async || {
        let claimed = worker.claim(other.id, 1).await.is_ok();
        let row = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
        claimed && row.conn != old
    })
    .await;
    node.batch_execute("COMMIT").await.unwrap();
    until("given back", async || scene.hot().await == (2, 0, 0)).await;
}

fn ends() -> [Settlement; 6] {
    let (error, reason) = ("never".to_owned(), "old".to_owned());
    [
        Settlement::Ack,
        retry(Duration::from_secs(60)),
        Settlement::Snooze { delay: Duration::from_secs(60) },
        Settlement::DeadLetter { cause: DeadCause::Handler, error },
        Settlement::Discard { reason },
        Settlement::Release,
    ]
}

/// H12: the reply to the settle's commit is lost. The second look finds no row under the claim:
/// that is reported as unknown, never as fenced, and nothing happens twice.
#[tokio::test]
async fn a_settle_whose_commit_had_no_answer_is_unknown_and_not_fenced() {
    for end in ends() {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let (proxy, worker) = behind_proxy(&scene).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        proxy.drop_reply_after("COMMIT");
        let outcomes = worker.settle(all(&got, &end)).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Unknown; 2], "{end:?}");
        let settled = (3 - if end == Settlement::Release { 0 } else { 2 }, 0, 0);
        assert_eq!(scene.hot().await, settled, "{end:?}");
        let moved = "SELECT (SELECT COUNT(*) FROM queue_scheduled) \
             + (SELECT COUNT(*) FROM queue_dead) + (SELECT COUNT(*) FROM queue_archive)";
        let moves = !matches!(end, Settlement::Ack | Settlement::Release);
        assert_eq!(scene.number(moved).await, if moves { 2 } else { 0 }, "{end:?}");
        // The worker continues normally.
        claim_n(&worker, scene.topic.id, 1).await;
    }
}

/// H12, the other half: the commit never reached the server, so the second try settles.
#[tokio::test]
async fn a_settle_whose_commit_was_cut_off_before_it_arrived_is_settled_by_the_second_try() {
    for end in ends() {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let (proxy, worker) = behind_proxy(&scene).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        proxy.cut_before("COMMIT");
        let outcomes = worker.settle(all(&got, &end)).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Settled; 2], "{end:?}");
        assert_eq!(scene.hot().await.2, 0, "{end:?}");
    }
}

/// H12, the worst moment: the commit is still in flight when the worker has reconnected. The old
/// session is ended before the worker looks, so what it finds is final.
#[tokio::test]
async fn a_settle_whose_commit_is_late_is_done_once() {
    for arrives in [true, false] {
        let mut scene = Scene::new().await;
        scene.enqueue(1).await;
        let (proxy, worker) = behind_proxy(&scene).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        proxy.strand("COMMIT");
        let batch = vec![Settled::new(&got[0], retry(Duration::from_secs(60)), OnDone::Delete)];
        let settling = {
            let worker = worker.clone();
            tokio::spawn(async move { worker.settle(batch).await.unwrap() })
        };
        proxy.sprung().await;
        if arrives {
            proxy.release();
        }
        let outcomes = settling.await.unwrap();
        let done = [SettleOutcome::Settled, SettleOutcome::Unknown];
        assert!(done.contains(&outcomes[0]), "{outcomes:?}");
        proxy.release();
        until("the old session has ended", async || scene.transactions().await.is_empty()).await;
        assert_eq!(scene.hot().await, (0, 0, 0));
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 1);
    }
}

/// Another session holds a row that the worker changes before it settles on a new session. That
/// refuses no ack, so the acks wait for the session and are not put off.
#[tokio::test]
async fn acks_wait_for_a_session_that_cannot_be_reopened_yet() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    // Only a new session compares the claims before the test is over.
    let worker = scene.worker_with(|options| {
        (options.lease, options.beat) = (Duration::from_secs(120), Duration::from_secs(30));
    });
    let worker = worker.await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let fence = Fence { worker: worker.id(), claim_no: ClaimNo(1_000_000) };
    strand_claim(&mut scene, fence, 2).await;
    let mut other = scene.db.connect().await;
    let lock = "BEGIN; SELECT worker_id FROM queue_claim WHERE claim_no = 1000000 FOR UPDATE";
    other.batch_execute(lock).await.unwrap();
    let old = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap().conn;
    scene.sql(&format!("KILL {old}")).await;
    let settling = {
        let (worker, batch) = (worker.clone(), all(&got, &Settlement::Ack));
        tokio::spawn(async move { worker.settle(batch).await.unwrap() })
    };
    // Two tries of two seconds each would put them off.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!settling.is_finished(), "{:?}", settling.await);
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(settling.await.unwrap(), [SettleOutcome::Settled]);
    assert_eq!(scene.hot().await, (2, 0, 0));
}

/// H9: a beat has its own session, so no lock that a settle waits for delays it.
#[tokio::test]
async fn beats_go_on_while_a_settle_waits_for_a_lock() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let beat = Duration::from_millis(100);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let mut other = scene.db.connect().await;
    other.batch_execute("BEGIN; SELECT id FROM queue_message FOR UPDATE").await.unwrap();
    let settling = {
        let (worker, batch) = (worker.clone(), all(&got, &Settlement::Ack));
        tokio::spawn(async move { worker.settle(batch).await.unwrap() })
    };
    // It waits twice for a second, then not again: who looks late sees it settled or put off.
    until("the settle waits", async || settling.is_finished() || scene.lock_waits().await > 0)
        .await;
    let first = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap().beat_no;
    until("five beats are through", async || {
        let row = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
        row.beat_no >= first + 5
    })
    .await;
    other.batch_execute("ROLLBACK").await.unwrap();
    settling.await.unwrap();
    until("the row is settled", async || scene.hot().await == (0, 0, 0)).await;
}
