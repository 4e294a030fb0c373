//! Rescue: a dead worker's claims come back, row by row under its fence.

use std::time::{Duration, Instant};

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::{ClaimNo, ConnId, DeliveryNo, RowId, Settlement, TopicSettings, WorkerId};
use rowmq_core::rescue::{TakenBack, Why, rows_held, take_back};
use rowmq_core::store::claim::{Claim, Fence};
use rowmq_core::store::rescue::ZombieClaim;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::{claim, prune, rescue, worker};
use rowmq_core::worker::{SettleOutcome, Worker};
use rowmq_core::{AsyncMysqlConnection, NewMessage, Priority, enqueue};
use rowmq_test::{PATIENCE, until};

use crate::scene::{
    STRATEGIES, Scene, all, bodies, claim_n, claim_one_suspect, number, numbers, retry, settle,
    text,
};

/// Before the first claim.
const START: Fence = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };

/// Returns the claims of a worker.
pub(crate) async fn claims_of(conn: &mut AsyncMysqlConnection, id: WorkerId) -> Vec<Claim> {
    claim::of_worker(conn, id, ClaimNo(0)).await.unwrap()
}

/// Returns the claims whose workers are dead or have stopped, then those of unknown workers.
async fn zombies(conn: &mut AsyncMysqlConnection, after: Fence, limit: u32) -> Vec<ZombieClaim> {
    let mut zombies = rescue::zombie_claims(conn, after, limit).await.unwrap();
    zombies.extend(rescue::orphan_claims(conn, after, limit).await.unwrap());
    zombies
}

/// Takes one claim back, in a transaction.
pub(crate) async fn take(conn: &mut AsyncMysqlConnection, claim: &Claim, why: Why) -> TakenBack {
    let start = Instant::now();
    loop {
        let taken = transaction(conn, "rescue", async |conn| take_back(conn, claim, why).await);
        match taken.await {
            // Another session has held a lock for longer than a transaction waits.
            Err(error) if error.fault().is_conflict() && start.elapsed() < PATIENCE => {}
            taken => return taken.unwrap(),
        }
    }
}

/// Declares a worker dead, as soon as it does not beat at the same moment.
pub(crate) async fn declare_dead(conn: &mut AsyncMysqlConnection, id: WorkerId, reason: &str) {
    until("its death is decided", async || {
        let seen = worker::find(conn, id).await.unwrap().unwrap();
        worker::declare_dead(conn, &seen, reason).await.unwrap() == 1
    })
    .await;
}

/// Declares a worker dead and lets it end; returns the claims it leaves.
pub(crate) async fn crash(conn: &mut AsyncMysqlConnection, crashed: Worker) -> Vec<Claim> {
    let id = crashed.id();
    declare_dead(conn, id, "test").await;
    drop(crashed);
    claims_of(conn, id).await
}

/// Crashes a worker that holds everything it has claimed and rescues its rows.
pub(crate) async fn crash_and_rescue(scene: &mut Scene, crashed: Worker) -> TakenBack {
    let id = crashed.id();
    let claims = crash(&mut scene.conn, crashed).await;
    let why = Why::Crashed { rows_held: rows_held(&mut scene.conn, id).await.unwrap() };
    let mut sum = TakenBack::default();
    for claim in &claims {
        let taken = take(&mut scene.conn, claim, why).await;
        sum.freed += taken.freed;
        sum.dead_lettered += taken.dead_lettered;
        sum.left += taken.left;
    }
    sum
}

#[tokio::test]
async fn the_rows_of_a_dead_worker_are_claimed_again_in_order() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(5).await;
        let dying = scene.worker_by(strategy).await;
        claim_n(&dying, scene.topic.id, 3).await;
        let taken = crash_and_rescue(&mut scene, dying).await;
        assert_eq!(taken, TakenBack { freed: 3, dead_lettered: 0, left: 0 });
        assert_eq!(scene.hot().await, (5, 0, 0));
        let other = scene.worker_by(strategy).await;
        let got = claim_n(&other, scene.topic.id, 5).await;
        assert_eq!(bodies(&got), numbers(0..5));
        let counts: Vec<_> = got.iter().map(|d| d.delivery_no.0).collect();
        assert_eq!(counts, [2, 2, 2, 1, 1]);
        assert!(got.iter().all(|d| d.failures == 0 && d.crashes == 0));
    }
}

#[tokio::test]
async fn a_rescued_claim_is_fenced_for_the_one_who_made_it() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let stalled = scene.worker().await;
    let got = claim_n(&stalled, scene.topic.id, 2).await;
    let claims = claims_of(&mut scene.conn, stalled.id()).await;
    take(&mut scene.conn, &claims[0], Why::Crashed { rows_held: 2 }).await;
    let other = scene.worker().await;
    let again = claim_n(&other, scene.topic.id, 2).await;
    let outcomes = stalled.settle(all(&got, &Settlement::Ack)).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Fenced; 2]);
    assert_eq!(scene.hot().await, (2, 2, 1));
    settle(&other, all(&again, &Settlement::Ack)).await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn rescuing_twice_changes_nothing_the_second_time() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 3).await;
    let claims = crash(&mut scene.conn, dying).await;
    let other = scene.worker().await;
    let why = Why::Crashed { rows_held: 3 };
    assert_eq!(take(&mut scene.conn, &claims[0], why).await.freed, 3);
    claim_n(&other, scene.topic.id, 3).await;
    assert_eq!(take(&mut scene.conn, &claims[0], why).await, TakenBack::default());
    assert_eq!(scene.hot().await, (3, 3, 1));
}

/// H22: a crash of a worker that held many rows says little about each of them. The first time all
/// come back together, the second time each is isolated, and none is charged a crash or a failure.
#[tokio::test]
async fn rows_that_were_held_together_are_suspected_and_at_the_second_crash_isolated() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let charges = "SELECT GROUP_CONCAT(CONCAT_WS('/', priority, failures, crashes, suspicions) \
         ORDER BY body) FROM queue_message";
    for expected in ["5/0/0/1,5/0/0/1,5/0/0/1,5/0/0/0", "105/0/0/2,105/0/0/2,105/0/0/2,5/0/0/0"] {
        let dying = scene.worker().await;
        let held = dying.claim(scene.topic.id, 3).await.unwrap().deliveries;
        assert_eq!(bodies(&held), numbers(0..3));
        assert_eq!(crash_and_rescue(&mut scene, dying).await.freed, 3);
        assert_eq!(scene.text(charges).await, expected);
    }
    // The ordinary claim skips them; each is claimed alone.
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["3"]);
    let suspect = claim_one_suspect(&worker, scene.topic.id).await;
    assert_eq!((suspect.body.as_slice(), suspect.delivery_no), (&b"0"[..], DeliveryNo(3)));
}

/// H22: only a crash of a worker that held the message alone counts; after `max_crashes` of them
/// the message is dead-lettered with its body, and its neighbours are not.
#[tokio::test]
async fn a_message_that_crashes_its_worker_alone_too_often_is_dead_lettered_with_its_body() {
    let mut scene = Scene::with(&TopicSettings { max_crashes: 3, ..Default::default() }).await;
    let poison = NewMessage::new([7, 0, 255]).with_key("k").with_header("h", "v");
    enqueue(&mut scene.conn, &scene.topic.name, &poison).await.unwrap();
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    crash_and_rescue(&mut scene, dying).await;
    for crash in 2..=3 {
        let dying = scene.worker().await;
        let suspect = claim_one_suspect(&dying, scene.topic.id).await;
        assert_eq!((&suspect.body, suspect.crashes), (&poison.body, crash - 1));
        let taken = crash_and_rescue(&mut scene, dying).await;
        assert_eq!(taken.dead_lettered, usize::from(crash == 3));
    }
    let dead = "SELECT CONCAT_WS('/', HEX(body), ordering_key, headers, cause, crashes, failures, \
         priority, delivery_no) FROM queue_dead";
    assert_eq!(scene.text(dead).await, "0700FF/k/{\"h\":\"v\"}/crashes/3/0/5/3");
    assert!(scene.text("SELECT last_error FROM queue_dead").await.contains("crashed 3 times"));
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["0"]);
    assert!(worker.claim_suspect(scene.topic.id).await.unwrap().deliveries.is_empty());
}

#[tokio::test]
async fn a_suspect_that_fails_without_a_crash_is_none_any_more() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    claim_n(&dying, scene.topic.id, 1).await;
    crash_and_rescue(&mut scene, dying).await;
    let worker = scene.worker().await;
    let suspect = claim_one_suspect(&worker, scene.topic.id).await;
    settle(&worker, all([&suspect], &retry(Duration::ZERO))).await;
    crate::moves::promote(&mut scene.conn, 10).await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!((got[0].priority, got[0].failures), (Priority::default(), 1));
    let charges = "SELECT CONCAT(crashes, '/', suspicions) FROM queue_message";
    assert_eq!(scene.text(charges).await, "1/0");
}

#[tokio::test]
async fn what_is_given_back_without_a_crash_is_charged_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    for held in [1, 3] {
        let worker = scene.worker().await;
        claim_n(&worker, scene.topic.id, held).await;
        let claims = claims_of(&mut scene.conn, worker.id()).await;
        let taken = take(&mut scene.conn, &claims[0], Why::NotNeeded).await;
        assert_eq!(taken, TakenBack { freed: held, dead_lettered: 0, left: 0 });
        let charged = "SELECT COUNT(*) FROM queue_message \
             WHERE priority <> 5 OR failures + crashes + suspicions > 0";
        assert_eq!(scene.number(charged).await, 0);
    }
}

/// A settle that is in flight when the rescue comes wins or loses as a whole: its rows, and the
/// claim, are left for the next sweep.
#[tokio::test]
async fn rows_that_a_settle_under_way_has_locked_are_left_for_the_next_sweep() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    for (end, freed) in [("COMMIT", 0), ("ROLLBACK", 1)] {
        let worker = scene.worker().await;
        claim_n(&worker, scene.topic.id, 3).await;
        let claims = claims_of(&mut scene.conn, worker.id()).await;
        let mut settling = scene.db.connect().await;
        let ack = format!(
            "BEGIN; DELETE FROM queue_message WHERE topic_id = {} AND priority = 5 AND id = {}",
            scene.topic.id.0, claims[0].lo
        );
        settling.batch_execute(&ack).await.unwrap();
        let why = Why::Crashed { rows_held: 3 };
        let taken = take(&mut scene.conn, &claims[0], why).await;
        assert_eq!((taken.freed, taken.left), (2, 1));
        assert_eq!(claims_of(&mut scene.conn, worker.id()).await.len(), 1);
        settling.batch_execute(end).await.unwrap();
        let taken = take(&mut scene.conn, &claims[0], why).await;
        assert_eq!((taken.freed, taken.left), (freed, 0), "after {end}");
        assert!(claims_of(&mut scene.conn, worker.id()).await.is_empty());
    }
    assert_eq!(scene.hot().await, (3, 0, 0));
}

/// H7: claims of unknown, dead and stopped workers are found; those of live workers are not.
#[tokio::test]
async fn claims_of_unknown_dead_and_stopped_workers_are_found_and_no_others() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        let worker = scene.worker().await;
        claim_n(&worker, scene.topic.id, 1).await;
        workers.push(worker);
    }
    let ids: Vec<_> = workers.iter().map(Worker::id).collect();
    scene.sql(&format!("DELETE FROM queue_worker WHERE id = {}", ids[0])).await;
    let end = |id, state| format!("UPDATE queue_worker SET state = '{state}' WHERE id = {id}");
    scene.sql(&end(ids[1], "dead")).await;
    scene.sql(&end(ids[2], "stopped")).await;
    let zombies = zombies(&mut scene.conn, START, 100).await;
    let found: Vec<_> = zombies.iter().map(|z| (z.claim.fence.worker, z.crashed)).collect();
    assert_eq!(found, [(ids[1], true), (ids[2], false), (ids[0], false)]);
    // In steps, each continuing from the last claim seen.
    let first = rescue::zombie_claims(&mut scene.conn, START, 1).await.unwrap();
    let rest = rescue::zombie_claims(&mut scene.conn, first[0].claim.fence, 9).await.unwrap();
    assert_eq!((first.as_slice(), rest.as_slice()), (&zombies[..1], &zombies[1..2]));
    let orphan = zombies[2].claim.fence;
    assert_eq!(rescue::orphan_claims(&mut scene.conn, orphan, 9).await.unwrap(), []);
    for ZombieClaim { claim, crashed } in zombies {
        let why = if crashed { Why::Crashed { rows_held: 2 } } else { Why::NotNeeded };
        assert_eq!(take(&mut scene.conn, &claim, why).await.freed, 1);
    }
    assert_eq!(scene.hot().await, (4, 1, 1));
}

/// H7: a worker's row is removed only when it has no claim left, so that a late claim finds it.
#[tokio::test]
async fn a_worker_is_pruned_only_once_no_claim_of_it_is_left() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let dying = scene.worker().await;
    let id = dying.id();
    claim_n(&dying, scene.topic.id, 1).await;
    let claims = crash(&mut scene.conn, dying).await;
    assert_eq!(prune::workers(&mut scene.conn, Duration::ZERO, 10).await.unwrap(), 0);
    take(&mut scene.conn, &claims[0], Why::Crashed { rows_held: 1 }).await;
    let hour = Duration::from_secs(3600);
    assert_eq!(prune::workers(&mut scene.conn, hour, 10).await.unwrap(), 0);
    scene.sql("UPDATE queue_worker SET ended_at = ended_at - INTERVAL 2 HOUR").await;
    let alive = scene.worker().await;
    assert_eq!(prune::workers(&mut scene.conn, hour, 10).await.unwrap(), 1);
    assert_eq!(worker::find(&mut scene.conn, id).await.unwrap(), None);
    assert!(worker::find(&mut scene.conn, alive.id()).await.unwrap().is_some());
}

/// H7: a claim that commits after its worker was pruned is found nevertheless.
#[tokio::test]
async fn a_claim_that_commits_after_its_worker_is_gone_is_rescued() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let fence = Fence { worker: WorkerId(4711), claim_no: ClaimNo(1) };
    strand_claim(&mut scene, fence, 2).await;
    let zombies = zombies(&mut scene.conn, START, 10).await;
    assert_eq!(zombies.len(), 1);
    assert!(!zombies[0].crashed);
    assert_eq!(take(&mut scene.conn, &zombies[0].claim, Why::NotNeeded).await.freed, 2);
    assert_eq!(scene.hot().await, (2, 0, 0));
}

/// Commits a claim of `n` rows under `fence` on its own connection: the state that a claim with a
/// lost reply leaves behind.
pub(crate) async fn strand_claim(scene: &mut Scene, fence: Fence, n: u32) {
    let mut conn = scene.db.connect().await;
    claim_uncommitted(&mut conn, scene, fence, n).await;
    conn.batch_execute("COMMIT").await.unwrap();
}

/// Does the same up to the COMMIT.
pub(crate) async fn claim_uncommitted(
    conn: &mut AsyncMysqlConnection,
    scene: &Scene,
    fence: Fence,
    n: u32,
) {
    let topic = scene.topic.id;
    conn.batch_execute("BEGIN").await.unwrap();
    let got = claim::lock_ready(
        conn,
        topic,
        claim::Marks::START.position(Priority::default()),
        n,
        fence.claim_no,
    );
    let rows: RowSet = got.await.unwrap().iter().map(|d| d.row).collect();
    let priority = Priority::default();
    let owned = claim::own(conn, fence, topic, priority, &rows).await.unwrap();
    assert_eq!(owned, n as usize);
    claim::record(conn, fence, topic, priority, &rows).await.unwrap();
}

/// The sweeper decides by its own clock how long a claim has been held: the server's may step.
#[tokio::test]
async fn claims_of_topics_that_bound_their_runs_are_found_whatever_the_clock_says() {
    let settings =
        TopicSettings { max_run_time: Some(Duration::from_secs(60)), ..Default::default() };
    let mut scene = Scene::with(&settings).await;
    scene.enqueue(2).await;
    let patient = scene.db.topic("patient").await;
    enqueue(&mut scene.conn, &patient.name, &NewMessage::new("m")).await.unwrap();
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    claim_n(&worker, patient.id, 1).await;
    claim_n(&worker, scene.topic.id, 1).await;
    for shift in ["- INTERVAL 1 DAY", "+ INTERVAL 1 DAY"] {
        scene.sql(&format!("UPDATE queue_claim SET claimed_at = claimed_at {shift}")).await;
        let found = rescue::timed_claims(&mut scene.conn, START, 10).await.unwrap();
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|timed| timed.claim.topic == scene.topic.id));
        assert!(
            found.iter().all(|timed| timed.may_take == Duration::from_secs(60) + worker.lease())
        );
        let rest = rescue::timed_claims(&mut scene.conn, found[0].claim.fence, 10).await.unwrap();
        assert_eq!(rest, found[1..]);
    }
}

#[tokio::test]
async fn a_longest_run_of_ages_is_no_error() {
    let settings = TopicSettings { max_run_time: Some(Duration::MAX), ..Default::default() };
    let mut scene = Scene::with(&settings).await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    let found = rescue::timed_claims(&mut scene.conn, START, 10).await.unwrap();
    assert!(found[0].may_take > Duration::from_secs(86_400 * 3650));
}

#[tokio::test]
async fn several_rescuers_at_once_free_each_row_once() {
    let mut scene = Scene::new().await;
    scene.enqueue(200).await;
    let dying = scene.worker().await;
    for _ in 0..10 {
        claim_n(&dying, scene.topic.id, 20).await;
    }
    let claims = crash(&mut scene.conn, dying).await;
    let rescuers = (0..4).map(async |_| {
        let mut conn = scene.db.connect().await;
        let mut freed = 0;
        for claim in &claims {
            freed += take(&mut conn, claim, Why::Crashed { rows_held: 200 }).await.freed;
        }
        freed
    });
    let freed: usize = futures_util::future::join_all(rescuers).await.into_iter().sum();
    // Each sweeper skipped what another had locked, and none freed a row twice.
    assert_eq!(freed, 200);
    // Two sweepers that shared a claim each saw rows of it left; the next sweep forgets it.
    for claim in &claims {
        let taken = take(&mut scene.conn, claim, Why::Crashed { rows_held: 200 }).await;
        assert_eq!(taken, TakenBack::default());
    }
    assert_eq!(scene.hot().await, (200, 0, 0));
    assert_eq!(scene.number("SELECT SUM(suspicions) FROM queue_message").await, 200);
}

#[tokio::test]
async fn a_rescue_publishes_the_lowest_row_it_made_ready() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let dying = scene.worker().await;
    let got = claim_n(&dying, scene.topic.id, 3).await;
    settle(&dying, all(&got[..1], &Settlement::Ack)).await;
    crash_and_rescue(&mut scene, dying).await;
    let floor = "SELECT CONCAT_WS('/', topic_id, priority, floor, seq) FROM queue_floor";
    assert_eq!(scene.text(floor).await, format!("{}/5/{}/1", scene.topic.id.0, got[1].row));
}

/// A claim's connection is information for operators and decides nothing.
#[tokio::test]
async fn a_claim_tells_which_connection_made_it() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    claim_n(&worker, scene.topic.id, 1).await;
    let claims = claims_of(&mut scene.conn, worker.id()).await;
    let row = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
    assert_eq!(claims[0].conn, row.conn);
    assert_ne!(claims[0].conn, ConnId(0));
    assert_eq!(row.claims, 1);
    let conn_id = number(&mut scene.conn, "SELECT conn_id FROM queue_message").await;
    assert_eq!(u64::try_from(conn_id).unwrap(), row.conn.0);
    assert_eq!(text(&mut scene.conn, "SELECT body FROM queue_message").await, "0");
    assert_eq!(claims[0].lo, RowId(claims[0].hi.0));
}
