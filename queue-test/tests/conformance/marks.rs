//! H24: a row below a worker's low-water mark is found again, whatever brought it there.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::{Access, Settlement};
use rowmq_core::rescue::Why;
use rowmq_core::store::duty::{is_held, take_office};
use rowmq_core::store::installation::Office;
use rowmq_core::store::scheduled::Reach;
use rowmq_core::store::{claim, floor, worker};
use rowmq_core::worker::{ClaimStrategy, Worker};
use rowmq_core::{NewMessage, Priority, enqueue, store};
use rowmq_test::until;

use crate::rescue::{claims_of, crash, take};
use crate::scene::{STRATEGIES, Scene, all, bodies, claim_n, numbers, retry, settle};

/// Returns a worker whose mark lies beyond the topic's ten rows, and the worker that has claimed
/// them all.
async fn beyond(strategy: ClaimStrategy) -> (Scene, Worker, Worker) {
    let mut scene = Scene::new().await;
    scene.enqueue(10).await;
    let holder = scene.worker_by(strategy).await;
    claim_n(&holder, scene.topic.id, 10).await;
    enqueue(&mut scene.conn, &scene.topic.name, &NewMessage::new("tail")).await.unwrap();
    let watcher = scene.worker_by(strategy).await;
    assert_eq!(bodies(&claim_n(&watcher, scene.topic.id, 1).await), ["tail"]);
    assert!(watcher.claim(scene.topic.id, 10).await.unwrap().deliveries.is_empty());
    (scene, holder, watcher)
}

/// H24.
#[tokio::test]
async fn a_released_row_below_the_mark_is_found() {
    for strategy in STRATEGIES {
        let (mut scene, holder, watcher) = beyond(strategy).await;
        let claims = claims_of(&mut scene.conn, holder.id()).await;
        let got = claim_row(&mut scene, &holder, claims[0].lo.0 + 3).await;
        settle(&holder, vec![got]).await;
        let found = claim_n(&watcher, scene.topic.id, 1).await;
        assert_eq!(bodies(&found), ["3"], "{strategy:?}");
    }
}

/// Builds the release of one row that the worker holds.
async fn claim_row(scene: &mut Scene, holder: &Worker, row: u64) -> rowmq_core::worker::Settled {
    let claims = claims_of(&mut scene.conn, holder.id()).await;
    rowmq_core::worker::Settled {
        topic: scene.topic.id,
        priority: Priority::default(),
        row: rowmq_core::model::RowId(row),
        claim_no: claims[0].fence.claim_no,
        settlement: Settlement::Release,
        on_done: scene.topic.settings.on_done,
        ledger_window: None,
        is_unique: false,
        has_checkpoint: false,
        position: None,
        traced: None,
    }
}

#[tokio::test]
async fn rescued_rows_below_the_mark_are_found() {
    for strategy in STRATEGIES {
        let (mut scene, holder, watcher) = beyond(strategy).await;
        let claims = crash(&mut scene.conn, holder).await;
        take(&mut scene.conn, &claims[0], Why::Crashed { rows_held: 10 }).await;
        let found = claim_n(&watcher, scene.topic.id, 10).await;
        assert_eq!(bodies(&found), numbers(0..10), "{strategy:?}");
    }
}

#[tokio::test]
async fn rows_a_stopping_worker_gives_back_are_found() {
    for strategy in STRATEGIES {
        let (scene, holder, watcher) = beyond(strategy).await;
        holder.stop().await.unwrap();
        let found = claim_n(&watcher, scene.topic.id, 10).await;
        assert_eq!(bodies(&found), numbers(0..10), "{strategy:?}");
    }
}

#[tokio::test]
async fn promoted_rows_are_found_though_others_with_higher_ids_were_claimed_meanwhile() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        if scene.waits_for_producers(strategy).await {
            continue;
        }
        scene.enqueue(2).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        settle(&worker, all(&got, &retry(Duration::ZERO))).await;
        // The promoted rows have their ids, and their transaction is still open.
        let mut promoter = scene.db.connect().await;
        promoter.batch_execute("BEGIN").await.unwrap();
        let due = store::scheduled::lock_due(&mut promoter, Reach::All, 10).await.unwrap();
        let rows = due.iter().map(|due| due.row).collect();
        let first = store::scheduled::promote(&mut promoter, &rows).await.unwrap();
        let later = NewMessage::new("later");
        enqueue(&mut scene.conn, &scene.topic.name, &later).await.unwrap();
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["later"]);
        let priority = Priority::default();
        floor::publish(&mut promoter, scene.topic.id, priority, first).await.unwrap();
        promoter.batch_execute("COMMIT").await.unwrap();
        let found = claim_n(&worker, scene.topic.id, 2).await;
        assert_eq!(bodies(&found), numbers(0..2), "{strategy:?}");
    }
}

#[tokio::test]
async fn a_row_that_commits_late_is_found_though_nobody_publishes_it() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let worker = scene.worker_by(strategy).await;
        let mut late = scene.db.connect().await;
        late.batch_execute("BEGIN").await.unwrap();
        enqueue(&mut late, &scene.topic.name, &NewMessage::new("late")).await.unwrap();
        scene.enqueue(20).await;
        assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 20).await), numbers(0..20));
        late.batch_execute("COMMIT").await.unwrap();
        let found = claim_n(&worker, scene.topic.id, 1).await;
        assert_eq!(bodies(&found), ["late"], "{strategy:?}");
    }
}

/// A late row is found while the claims of a busy topic never come back empty.
#[tokio::test]
async fn a_row_that_commits_late_is_found_under_load() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let worker = scene.worker_by(strategy).await;
        let mut late = scene.db.connect().await;
        late.batch_execute("BEGIN").await.unwrap();
        enqueue(&mut late, &scene.topic.name, &NewMessage::new("late")).await.unwrap();
        scene.enqueue(10).await;
        claim_n(&worker, scene.topic.id, 10).await;
        late.batch_execute("COMMIT").await.unwrap();
        until("the late row is found", async || {
            // There is always a message to claim beyond the mark.
            scene.enqueue(2).await;
            let got = claim_n(&worker, scene.topic.id, 1).await;
            settle(&worker, all(&got, &Settlement::Ack)).await;
            got[0].body == b"late"
        })
        .await;
    }
}

/// A worker that is far behind the others skips what they have claimed; rows that become ready
/// there are found nevertheless.
#[tokio::test]
async fn a_row_released_behind_the_frontier_of_all_claims_is_found() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(600).await;
        let (watcher, holder) = (scene.worker_by(strategy).await, scene.worker_by(strategy).await);
        claim_n(&watcher, scene.topic.id, 1).await;
        let held = claim_n(&holder, scene.topic.id, 400).await;
        assert_eq!(bodies(&claim_n(&watcher, scene.topic.id, 1).await), numbers(401..402));
        let more = claim_n(&holder, scene.topic.id, 10).await;
        let frontier = claim::frontier(&mut scene.conn, scene.topic.id, Priority::default()).await;
        assert_eq!(frontier.unwrap(), more.last().map(|last| last.row), "{strategy:?}");
        settle(&holder, all(&held[7..8], &Settlement::Release)).await;
        let mut found = bodies(&claim_n(&watcher, scene.topic.id, 189).await);
        found.sort_by_key(|body| body.parse::<u32>().unwrap());
        let expected: Vec<_> = numbers(8..9).into_iter().chain(numbers(412..600)).collect();
        assert_eq!(found, expected, "{strategy:?}");
    }
}

#[tokio::test]
async fn the_mark_of_one_priority_hides_no_row_of_another() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        if scene.waits_for_producers(strategy).await {
            continue;
        }
        let worker = scene.worker_by(strategy).await;
        let mut late = Vec::new();
        for priority in Priority::all() {
            let mut conn = scene.db.connect().await;
            conn.batch_execute("BEGIN").await.unwrap();
            let message = NewMessage::new(priority.to_string()).with_priority(priority);
            enqueue(&mut conn, &scene.topic.name, &message).await.unwrap();
            late.push(conn);
            let message = NewMessage::new("early").with_priority(priority);
            enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
        }
        // All ten priorities have their marks up; the late rows lie just below each.
        for _ in 0..10 {
            claim_n(&worker, scene.topic.id, 1).await;
        }
        for (priority, mut conn) in late.into_iter().enumerate().rev() {
            conn.batch_execute("COMMIT").await.unwrap();
            let found = claim_n(&worker, scene.topic.id, 1).await;
            assert_eq!(bodies(&found), [priority.to_string()], "{strategy:?}");
        }
    }
}

#[tokio::test]
async fn a_floor_is_published_with_its_transaction_and_counts_up() {
    let mut scene = Scene::new().await;
    let (topic, priority) = (scene.topic.id, Priority::default());
    for (row, seq) in [(50, 1), (70, 2), (40, 3)] {
        let row = rowmq_core::model::RowId(row);
        let published = transaction(&mut scene.conn, "publish", async |conn| {
            floor::publish(conn, topic, priority, row).await
        });
        published.await.unwrap();
        let pulse = floor::pulse(&mut scene.conn).await.unwrap();
        let [floor] = pulse.floors.as_slice() else { panic!("{pulse:?}") };
        assert_eq!((floor.topic, floor.priority), (topic, priority));
        assert_eq!((floor.row, floor.seq), (row, seq));
    }
    scene.sql("BEGIN").await;
    let row = rowmq_core::model::RowId(1);
    floor::publish(&mut scene.conn, topic, priority, row).await.unwrap();
    scene.sql("ROLLBACK").await;
    assert_eq!(floor::pulse(&mut scene.conn).await.unwrap().floors[0].seq, 3);
}

#[tokio::test]
async fn a_session_can_hold_two_offices_and_nobody_else_gets_them_until_it_ends() {
    let mut scene = Scene::new().await;
    let mut holder = scene.db.connect().await;
    for office in [Office::Janitor, Office::Sweeper] {
        assert!(!is_held(&mut scene.conn, office).await.unwrap());
        assert!(take_office(&mut holder, office).await.unwrap());
        // Taking it again does not stack the lock.
        assert!(take_office(&mut holder, office).await.unwrap());
    }
    for office in [Office::Janitor, Office::Sweeper] {
        assert!(is_held(&mut scene.conn, office).await.unwrap());
        assert!(!take_office(&mut scene.conn, office).await.unwrap());
    }
    drop(holder);
    for office in [Office::Janitor, Office::Sweeper] {
        until("it is free", async || !is_held(&mut scene.conn, office).await.unwrap()).await;
    }
}

#[tokio::test]
async fn a_worker_hears_of_floors_pauses_and_sweepers_with_its_pulse() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let life = worker.life();
    until("nobody sweeps", async || life.borrow().pulse.unswept).await;
    let mut sweeper = scene.db.connect().await;
    assert!(take_office(&mut sweeper, Office::Sweeper).await.unwrap());
    until("somebody sweeps", async || !life.borrow().pulse.unswept).await;
    drop(sweeper);
    until("nobody sweeps again", async || life.borrow().pulse.unswept).await;

    store::topic::set_access(&mut scene.conn, &scene.topic.name, Access::WriteOnly).await.unwrap();
    floor::publish(&mut scene.conn, scene.topic.id, Priority::LAST, rowmq_core::model::RowId(9))
        .await
        .unwrap();
    until("the worker hears of the pause and the floor", async || {
        let pulse = life.borrow().pulse.clone();
        pulse.paused == [scene.topic.id] && pulse.floors.len() == 1
    })
    .await;
    assert_eq!(life.borrow().pulse.floors[0].priority, Priority::LAST);
    let row = worker::find(&mut scene.conn, worker.id()).await.unwrap().unwrap();
    assert_eq!(row.state, "alive");
}
