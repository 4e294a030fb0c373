//! Workers: registration, sessions, the connection as a lease.

use std::time::{Duration, Instant};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{ClaimNo, Settlement, WorkerId};
use rowmq_core::rescue::Why;
use rowmq_core::store::claim::Fence;
use rowmq_core::store::rescue::zombie_claims;
use rowmq_core::store::worker::{self, Role, WorkerRow, lock_name};
use rowmq_core::worker::{Phase, SettleOutcome, Worker, WorkerOptions};
use rowmq_core::{AsyncMysqlConnection, Error, Fault};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{PATIENCE, TestDatabase, until};

use crate::rescue::{claims_of, declare_dead, take};
use crate::scene::{Scene, all, bodies, claim_n, failure, numbers, settle, text, threads};

async fn row(conn: &mut AsyncMysqlConnection, worker: &Worker) -> WorkerRow {
    worker::find(conn, worker.id()).await.unwrap().unwrap()
}

/// Returns the slot, the last word of the worker's client id.
fn slot_of(row: &WorkerRow, client: &str, worker: &Worker) -> u32 {
    let slot = row.client_id.strip_prefix(&format!("{client} {} ", worker.instance()));
    slot.unwrap_or_else(|| panic!("{}", row.client_id)).parse().unwrap()
}

#[tokio::test]
async fn a_worker_registers_with_what_it_says_of_itself() {
    let mut scene = Scene::new().await;
    let lease = Duration::from_secs(60);
    let worker = scene.worker_with(|options| {
        options.lease = lease;
        options.beat = lease / 4;
        options.client_id = "host/1".to_owned();
    });
    let worker = worker.await;
    let row = row(&mut scene.conn, &worker).await;
    assert_eq!(row.id, worker.id());
    let slot = slot_of(&row, "host/1", &worker);
    let other = scene.worker_with(|options| options.client_id = "host/2".to_owned()).await;
    let other_row = worker::find(&mut scene.conn, other.id()).await.unwrap().unwrap();
    assert!(slot_of(&other_row, "host/2", &other) > slot, "each has a slot of its process");
    other.stop().await.unwrap();
    assert_eq!((row.state.as_str(), row.lease, row.claims), ("alive", lease, 0));
    assert_eq!(row.account, scene.text("SELECT CURRENT_USER()").await);
    assert!(row.end_reason.is_none());
    let incarnation = worker::incarnation(&mut scene.conn).await.unwrap();
    assert!(row.incarnation.is_same(&incarnation));
    assert!(!row.incarnation.server_uid.is_empty());
    let workers = worker::alive(&mut scene.conn).await.unwrap();
    assert_eq!(workers.iter().map(|row| row.id).collect::<Vec<_>>(), [worker.id()]);
}

#[tokio::test]
async fn both_sessions_are_listed_and_each_holds_its_name_lock() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let row = row(&mut scene.conn, &worker).await;
    assert!(row.locked);
    assert_ne!(row.conn, row.life_conn);
    let listed = rowmq_core::store::process_list::show(&mut scene.conn).await.unwrap();
    assert!(listed.contains(&row.conn) && listed.contains(&row.life_conn));
    for (role, conn) in [(Role::Work, row.conn), (Role::Life, row.life_conn)] {
        let holder = format!("SELECT IS_USED_LOCK('{}')", lock_name(worker.instance(), role));
        assert_eq!(scene.text(&holder).await, conn.to_string(), "{role:?}");
    }
}

#[tokio::test]
async fn a_worker_that_stops_gives_everything_back_uncharged_and_signs_off() {
    let mut scene = Scene::new().await;
    scene.enqueue(5).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 2).await;
    claim_n(&worker, scene.topic.id, 2).await;
    worker.stop().await.unwrap();
    assert_eq!(scene.hot().await, (5, 0, 0));
    let row = row(&mut scene.conn, &worker).await;
    assert_eq!(row.state, "stopped");
    let other = scene.worker().await;
    let got = claim_n(&other, scene.topic.id, 5).await;
    assert_eq!(bodies(&got), numbers(0..5));
    assert!(got.iter().all(|d| d.failures == 0 && d.crashes == 0));
    until("its sessions are gone", async || {
        let threads = threads(&mut scene.conn).await;
        threads.iter().all(|thread| thread.id != row.conn.0 && thread.id != row.life_conn.0)
    })
    .await;
}

/// The stop leaves a row that another transaction has locked to the sweep, and its claim with it.
#[tokio::test]
async fn a_stop_does_not_wait_for_a_stranger() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 3).await;
    let mut stranger = scene.db.connect().await;
    let lock = "BEGIN; SELECT id FROM queue_message WHERE body = '1' FOR UPDATE";
    stranger.batch_execute(lock).await.unwrap();
    worker.stop().await.unwrap();
    assert_eq!(row(&mut scene.conn, &worker).await.state, "stopped");
    assert_eq!(scene.hot().await, (3, 1, 1));
    stranger.batch_execute("ROLLBACK").await.unwrap();
    let start = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };
    let zombies = zombie_claims(&mut scene.conn, start, 10).await.unwrap();
    assert!(!zombies[0].crashed);
    take(&mut scene.conn, &zombies[0].claim, Why::NotNeeded).await;
    assert_eq!(scene.hot().await, (3, 0, 0));
}

#[tokio::test]
async fn a_stopped_worker_does_nothing_more() {
    let scene = Scene::new().await;
    let worker = scene.worker().await;
    worker.stop().await.unwrap();
    let refused = worker.claim(scene.topic.id, 1).await.unwrap_err();
    let ended = matches!(refused, Error::WorkerStopped | Error::WorkerDead { .. });
    assert!(ended, "{refused}");
    assert!(worker.stop().await.is_err());
}

/// No worker is left to settle what it holds: the sweep takes it, uncharged, and it is no crash.
#[tokio::test]
async fn a_worker_whose_last_handle_is_dropped_signs_off_and_leaves_its_claims_to_the_rescue() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 2).await;
    let before = row(&mut scene.conn, &worker).await;
    let id = worker.id();
    drop(worker);
    until("its sessions are gone", async || {
        let threads = threads(&mut scene.conn).await;
        threads.iter().all(|thread| thread.id != before.conn.0 && thread.id != before.life_conn.0)
    })
    .await;
    let row = worker::find(&mut scene.conn, id).await.unwrap().unwrap();
    assert_eq!((row.state.as_str(), row.locked, row.claims), ("stopped", false, 1));
    assert_eq!(scene.hot().await, (2, 2, 1));
}

#[tokio::test]
async fn beats_rise_and_their_time_moves() {
    let mut scene = Scene::new().await;
    let beat = Duration::from_millis(100);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    let first = row(&mut scene.conn, &worker).await;
    until("three beats are through", async || {
        let now = row(&mut scene.conn, &worker).await;
        now.beat_no >= first.beat_no + 3 && now.beat_at > first.beat_at
    })
    .await;
}

/// A mere reconnect costs no second run: the worker keeps its row, its claims and its fence.
#[tokio::test]
async fn a_killed_work_session_is_taken_up_again_and_its_claims_are_settled() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let before = row(&mut scene.conn, &worker).await;
    scene.sql(&format!("KILL {}", before.conn)).await;
    settle(&worker, all(&got[..2], &Settlement::Ack)).await;
    let after = row(&mut scene.conn, &worker).await;
    assert_ne!(after.conn, before.conn);
    assert_eq!((after.state.as_str(), after.life_conn), ("alive", before.life_conn));
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["3"]);
    settle(&worker, all(&got[2..], &Settlement::Ack)).await;
    assert_eq!(scene.hot().await, (1, 1, 1));
}

#[tokio::test]
async fn a_killed_work_session_is_taken_up_again_though_nobody_asks_for_anything() {
    let mut scene = Scene::new().await;
    let beat = Duration::from_millis(200);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    let before = row(&mut scene.conn, &worker).await;
    scene.sql(&format!("KILL {}", before.conn)).await;
    until("the work session is taken up again", async || {
        row(&mut scene.conn, &worker).await.conn != before.conn
    })
    .await;
}

#[tokio::test]
async fn a_killed_life_session_is_taken_up_again_and_beats_go_on() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let beat = Duration::from_millis(200);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let before = row(&mut scene.conn, &worker).await;
    scene.sql(&format!("KILL {}", before.life_conn)).await;
    until("the life session is taken up again", async || {
        let now = row(&mut scene.conn, &worker).await;
        now.life_conn != before.life_conn && now.beat_no > before.beat_no + 2
    })
    .await;
    assert_eq!(worker.life().borrow().phase, Phase::Alive);
    settle(&worker, all(&got, &Settlement::Ack)).await;
}

#[tokio::test]
async fn a_worker_survives_the_loss_of_both_sessions_at_once() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let worker = scene.worker_with(|options| options.url = url).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    for _ in 0..3 {
        let before = row(&mut scene.conn, &worker).await;
        proxy.reset();
        until("both sessions are taken up again", async || {
            // An empty settle makes the work session check its connection.
            worker.settle(Vec::new()).await.unwrap();
            let now = row(&mut scene.conn, &worker).await;
            now.life_conn != before.life_conn && now.conn != before.conn
        })
        .await;
    }
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["1"]);
}

/// H5: the worker finds its row dead, reports it, and does nothing more.
#[tokio::test]
async fn a_worker_that_was_declared_dead_finds_out_and_claims_nothing_more() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let beat = Duration::from_millis(200);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    declare_dead(&mut scene.conn, worker.id(), "silent").await;
    let claims = claims_of(&mut scene.conn, worker.id()).await;
    let why = Why::Crashed { rows_held: 1 };
    take(&mut scene.conn, &claims[0], why).await;
    let mut life = worker.life();
    let dead = life.wait_for(|life| matches!(life.phase, Phase::Dead { .. }));
    let phase = tokio::time::timeout(PATIENCE, dead).await.unwrap().unwrap();
    assert_eq!(phase.phase, Phase::Dead { reason: "silent".to_owned() });
    drop(phase);
    for refused in [
        worker.claim(scene.topic.id, 1).await.map(|_| ()),
        worker.claim_suspect(scene.topic.id).await.map(|_| ()),
        worker.settle(all(&got, &Settlement::Ack)).await.map(|_| ()),
    ] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, Error::WorkerDead { reason } if reason == "silent"),
            "{refused}"
        );
    }
    assert_eq!(scene.hot().await, (2, 0, 0));
}

/// The worker's row is gone: it is as dead as one that was declared dead.
#[tokio::test]
async fn a_worker_whose_row_is_gone_is_dead() {
    let mut scene = Scene::new().await;
    let beat = Duration::from_millis(200);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    scene.sql("DELETE FROM queue_worker").await;
    let mut life = worker.life();
    let dead = life.wait_for(|life| matches!(life.phase, Phase::Dead { .. }));
    tokio::time::timeout(PATIENCE, dead).await.unwrap().unwrap();
}

/// A dead worker cannot come back by reconnecting.
#[tokio::test]
async fn a_dead_worker_that_reconnects_stays_dead_and_settles_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let work = row(&mut scene.conn, &worker).await.conn;
    declare_dead(&mut scene.conn, worker.id(), "test").await;
    let claims = claims_of(&mut scene.conn, worker.id()).await;
    let why = Why::Crashed { rows_held: 2 };
    take(&mut scene.conn, &claims[0], why).await;
    scene.sql(&format!("KILL {work}")).await;
    match worker.settle(all(&got, &Settlement::Ack)).await {
        Err(Error::WorkerDead { .. }) => {}
        Ok(outcomes) => assert_eq!(outcomes, [SettleOutcome::Fenced]),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(scene.hot().await, (1, 0, 0));
}

#[tokio::test]
async fn a_worker_without_answers_falls_silent_before_its_lease_ends_and_comes_alive_again() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let worker = scene.worker_with(|options| {
        options.url = url;
        options.lease = Duration::from_secs(10);
        options.beat = Duration::from_millis(500);
    });
    let worker = worker.await;
    let mut life = worker.life();
    proxy.blackhole();
    let silent = life.wait_for(|life| life.phase == Phase::Silent);
    tokio::time::timeout(PATIENCE, silent).await.unwrap().unwrap();
    let nothing = worker.claim(scene.topic.id, 1).await;
    assert!(nothing.is_err() || nothing.is_ok_and(|claimed| claimed.deliveries.is_empty()));
    proxy.pass();
    let alive = life.wait_for(|life| life.phase == Phase::Alive);
    tokio::time::timeout(PATIENCE, alive).await.unwrap().unwrap();
    scene.enqueue(1).await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["0"]);
}

/// The server drops a session that is silent for the lease; an idle session is not silent.
#[tokio::test]
async fn an_idle_worker_keeps_its_sessions_for_longer_than_its_lease() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker_with(|options| {
        options.lease = Duration::from_secs(10);
        options.beat = Duration::from_millis(500);
    });
    let worker = worker.await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let before = row(&mut scene.conn, &worker).await;
    let now = "SELECT UNIX_TIMESTAMP()";
    let end = scene.number(now).await + 11;
    until("the lease is over", async || scene.number(now).await > end).await;
    let after = row(&mut scene.conn, &worker).await;
    assert_eq!((after.conn, after.life_conn), (before.conn, before.life_conn));
    settle(&worker, all(&got, &Settlement::Ack)).await;
}

#[tokio::test]
async fn workers_of_one_name_are_two_workers() {
    let mut scene = Scene::new().await;
    let (a, b) = (scene.worker().await, scene.worker().await);
    assert_ne!((a.id(), a.instance()), (b.id(), b.instance()));
    assert_eq!(worker::alive(&mut scene.conn).await.unwrap().len(), 2);
    let latest = worker::latest(&mut scene.conn, 1).await.unwrap();
    assert_eq!(latest[0].id, b.id());
}

/// The server may not have noticed yet that a session has ended. The new session ends the old one
/// before it does anything else, so that no statement of the old one can commit afterwards.
#[tokio::test]
async fn a_new_session_ends_the_old_one_that_still_holds_its_name_lock() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    // No beat takes the lock again before the other session has it.
    let worker = scene.worker_with(|options| {
        (options.lease, options.beat) = (Duration::from_secs(240), Duration::from_secs(60));
    });
    let worker = worker.await;
    let before = row(&mut scene.conn, &worker).await;
    // Another session stands in for the old one, in the middle of a transaction.
    let lock = lock_name(worker.instance(), Role::Work);
    let mut old = scene.db.connect().await;
    scene.sql(&format!("KILL {}", before.conn)).await;
    until("the stranger has the lock", async || {
        text(&mut old, &format!("SELECT GET_LOCK('{lock}', 1)")).await == "1"
    })
    .await;
    old.batch_execute("BEGIN; UPDATE queue_message SET conn_id = 4711").await.unwrap();
    until("the worker claims again", async || {
        worker.claim(scene.topic.id, 1).await.is_ok_and(|claimed| !claimed.deliveries.is_empty())
    })
    .await;
    let gone = failure(&mut old, "COMMIT").await;
    assert_eq!(Fault::of(&gone), Fault::Gone, "{gone}");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message WHERE conn_id = 4711").await, 0);
}

#[tokio::test]
async fn a_lease_or_beat_that_cannot_work_is_refused() {
    let scene = Scene::new().await;
    let second = Duration::from_secs(1);
    for (lease, beat) in
        [(second, second / 4), (10 * second, 3 * second), (10 * second, Duration::ZERO)]
    {
        let mut options = WorkerOptions::new(scene.db.url().clone(), "conformance");
        (options.lease, options.beat) = (lease, beat);
        let refused = Worker::start(options).await.map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Setting { .. }), "{refused}");
    }
}

async fn start_error(url: &str) -> Error {
    let options = WorkerOptions::new(ServerUrl::new(url).unwrap(), "conformance");
    let start = Instant::now();
    loop {
        let error = Worker::start(options.clone()).await.map(|_| ()).unwrap_err();
        // A busy server may not greet in time.
        if !error.to_string().contains("no answer within") || start.elapsed() > PATIENCE {
            return error;
        }
    }
}

#[tokio::test]
async fn a_worker_that_cannot_start_says_why_in_one_sentence() {
    let scene = Scene::new().await;
    let wrong_password = scene.db.url_as("queue", "wrong");
    let error = start_error(wrong_password.expose()).await;
    assert_eq!(error.fault(), Fault::Denied, "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");

    let nowhere = scene.db.url().with_database("queue_test_nowhere").unwrap();
    let error = start_error(nowhere.expose()).await;
    assert_eq!(error.fault(), Fault::Schema, "{error}");

    let bare = TestDatabase::empty_on(scene.db.url()).await;
    let error = start_error(bare.url().expose()).await;
    assert_eq!(error.fault(), Fault::Schema, "{error}");

    let error = start_error("mysql://queue:queue@127.0.0.1:1/queue").await;
    assert_eq!(error.fault(), Fault::Gone, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
