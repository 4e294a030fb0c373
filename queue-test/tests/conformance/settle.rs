//! Settles: the end of a delivery, always fenced.

use std::time::Duration;

use chrono::Utc;
use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{DeadCause, DeliveryNo, OnDone, Settlement, TopicSettings};
use rowmq_core::worker::{SettleOutcome, Settled};
use rowmq_core::{NewMessage, Priority, enqueue, enqueue_all, store};
use rowmq_test::{PATIENCE, until};

use crate::scene::{STRATEGIES, Scene, all, bodies, claim_n, numbers, retry, settle};

fn dead() -> Settlement {
    Settlement::DeadLetter { cause: DeadCause::Handler, error: "never".to_owned() }
}

fn discard() -> Settlement {
    Settlement::Discard { reason: "too old".to_owned() }
}

/// Returns every kind of settlement.
fn every() -> [Settlement; 7] {
    let minute = Duration::from_secs(60);
    [
        Settlement::Ack,
        retry(minute),
        Settlement::RetryAt { at: Utc::now() + minute, error: "not yet".to_owned() },
        Settlement::Snooze { delay: minute },
        dead(),
        discard(),
        Settlement::Release,
    ]
}

/// The columns that every table of messages has, to compare a message before and after a move.
const CARRIED: &str = "SELECT GROUP_CONCAT(CONCAT_WS('|', HEX(msg_id), topic_id, priority % 100, \
     delivery_no, enqueued_at, HEX(ordering_key), HEX(biz_id), HEX(headers), HEX(body)) \
     ORDER BY msg_id) FROM";

fn full_message() -> NewMessage {
    NewMessage::new([0, 1, 254, 255])
        .with_key([0, 255])
        .with_biz_id("biz")
        .with_header("name", "value")
        .with_priority(Priority::new(2).unwrap())
}

#[tokio::test]
async fn an_acked_message_is_gone_and_its_claim_goes_with_the_last_row() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        settle(&worker, all(&got[1..2], &Settlement::Ack)).await;
        assert_eq!(scene.hot().await, (2, 2, 1));
        settle(&worker, all(&got[..1], &Settlement::Ack)).await;
        assert_eq!(scene.hot().await, (1, 1, 1));
        settle(&worker, all(&got[2..], &Settlement::Ack)).await;
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

/// H11: the range of a batch is used only for rows that are all settled.
#[tokio::test]
async fn acking_1_to_100_while_51_still_runs_leaves_51() {
    let mut scene = Scene::new().await;
    scene.enqueue(100).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 100).await;
    let done = got.iter().filter(|d| d.body != b"50");
    settle(&worker, all(done, &Settlement::Ack)).await;
    assert_eq!(scene.hot().await, (1, 1, 1));
    assert_eq!(scene.text("SELECT body FROM queue_message").await, "50");
    worker.stop().await.unwrap();
    let other = scene.worker().await;
    assert_eq!(bodies(&claim_n(&other, scene.topic.id, 1).await), ["50"]);
}

#[tokio::test]
async fn an_acked_message_of_a_topic_that_keeps_them_moves_to_the_archive_whole() {
    let keep = OnDone::Keep(Duration::from_secs(3600));
    let mut scene = Scene::with(&TopicSettings { on_done: keep, ..Default::default() }).await;
    enqueue(&mut scene.conn, &scene.topic.name, &full_message()).await.unwrap();
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let before = scene.text(&format!("{CARRIED} queue_message")).await;
    settle(&worker, vec![Settled::new(&got[0], Settlement::Ack, keep)]).await;
    assert_eq!(scene.text(&format!("{CARRIED} queue_archive")).await, before);
    let as_done = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'done' AND reason IS NULL \
         AND keep_until = settled_at + INTERVAL 3600 SECOND";
    assert_eq!(scene.number(as_done).await, 1);
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn a_retried_message_waits_with_one_more_failure_and_comes_back_at_the_tail() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let before = scene.text(&format!("{CARRIED} queue_message WHERE body = '0'")).await;
        settle(&worker, all(&got, &retry(Duration::ZERO))).await;
        assert_eq!(scene.text(&format!("{CARRIED} queue_scheduled")).await, before);
        let charged = "SELECT COUNT(*) FROM queue_scheduled WHERE failures = 1 AND crashes = 0 \
             AND last_error = 'not yet' AND due_at <= UTC_TIMESTAMP(6)";
        assert_eq!(scene.number(charged).await, 1);
        crate::moves::promote(&mut scene.conn, 10).await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        assert_eq!(bodies(&got), ["1", "2", "0"], "{strategy:?}");
        assert_eq!((got[2].failures, got[2].delivery_no), (1, DeliveryNo(2)));
    }
}

#[tokio::test]
async fn a_dead_letter_keeps_its_body_its_cause_and_its_error() {
    for cause in [DeadCause::Attempts, DeadCause::Crashes, DeadCause::Handler, DeadCause::Decode] {
        let mut scene = Scene::new().await;
        enqueue(&mut scene.conn, &scene.topic.name, &full_message()).await.unwrap();
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let before = scene.text(&format!("{CARRIED} queue_message")).await;
        let dead = Settlement::DeadLetter { cause, error: "it says: never".to_owned() };
        settle(&worker, all(&got, &dead)).await;
        assert_eq!(scene.text(&format!("{CARRIED} queue_dead")).await, before);
        let why = scene.text("SELECT CONCAT(cause, '/', last_error) FROM queue_dead").await;
        assert_eq!(why, format!("{cause}/it says: never"));
        let charged = scene.text("SELECT CONCAT(failures, '/', crashes) FROM queue_dead").await;
        assert_eq!(charged, if cause == DeadCause::Crashes { "0/1" } else { "1/0" });
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn a_discarded_message_leaves_its_reason_even_where_the_topic_keeps_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    settle(&worker, all(&got, &discard())).await;
    let kept = "SELECT CONCAT(body, '/', outcome, '/', reason) FROM queue_archive";
    assert_eq!(scene.text(kept).await, "0/discarded/too old");
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn a_released_message_is_ready_at_its_place_and_charged_nothing() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        scene.enqueue(3).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        settle(&worker, all(&got, &Settlement::Release)).await;
        assert_eq!(scene.hot().await, (3, 0, 0));
        let got = claim_n(&worker, scene.topic.id, 3).await;
        assert!(got.iter().all(|d| d.failures == 0 && d.crashes == 0));
        let mut order = bodies(&got);
        order.sort();
        assert_eq!(order, numbers(0..3));
    }
}

#[tokio::test]
async fn one_batch_may_hold_every_settlement_of_several_claims_priorities_and_topics() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    let worker = scene.worker().await;
    let mut batch = Vec::new();
    for topic in [&scene.topic, &other] {
        for priority in [Priority::FIRST, Priority::LAST] {
            let message = |i: usize| NewMessage::new(i.to_string()).with_priority(priority);
            let messages: Vec<_> = (0..14).map(message).collect();
            enqueue_all(&mut scene.conn, &topic.name, &messages).await.unwrap();
        }
        let got = claim_n(&worker, topic.id, 28).await;
        let pairs = got.iter().zip(every().into_iter().cycle());
        batch.extend(pairs.map(|(d, end)| Settled::new(d, end, OnDone::Delete)));
    }
    assert_eq!(batch.len(), 56);
    // In arbitrary order.
    batch.sort_by_key(|one| one.row.0 * 7919 % 59);
    settle(&worker, batch).await;
    assert_eq!(scene.hot().await, (8, 0, 0));
    for (table, n) in [("queue_scheduled", 24), ("queue_dead", 8), ("queue_archive", 8)] {
        assert_eq!(scene.number(&format!("SELECT COUNT(*) FROM {table}")).await, n, "{table}");
    }
}

#[tokio::test]
async fn a_claim_that_was_taken_back_settles_nothing_whatever_the_settlement() {
    for settlement in every() {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 2).await;
        // Another worker has them now.
        scene.sql("UPDATE queue_message SET worker_id = 77, claim_no = 7, conn_id = 7").await;
        let outcomes = worker.settle(all(&got, &settlement)).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Fenced; 2], "{settlement:?}");
        let theirs = "SELECT COUNT(*) FROM queue_message WHERE worker_id = 77 AND claim_no = 7";
        assert_eq!(scene.number(theirs).await, 2);
        let moved = "SELECT (SELECT COUNT(*) FROM queue_scheduled) \
             + (SELECT COUNT(*) FROM queue_dead) + (SELECT COUNT(*) FROM queue_archive)";
        assert_eq!(scene.number(moved).await, 0);
    }
}

#[tokio::test]
async fn of_a_batch_that_is_partly_taken_back_the_rest_is_settled() {
    for settlement in every() {
        let mut scene = Scene::new().await;
        scene.enqueue(5).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 5).await;
        scene.sql("UPDATE queue_message SET worker_id = 77 WHERE body IN ('1', '3')").await;
        let outcomes = worker.settle(all(&got, &settlement)).await.unwrap();
        let (done, lost) = (SettleOutcome::Settled, SettleOutcome::Fenced);
        assert_eq!(outcomes, [done, lost, done, lost, done], "{settlement:?}");
        let theirs = "SELECT COUNT(*) FROM queue_message WHERE worker_id = 77";
        assert_eq!(scene.number(theirs).await, 2);
        assert_eq!(scene.hot().await.2, 0, "the claim is forgotten: nothing of it is left");
    }
}

#[tokio::test]
async fn settling_twice_is_fenced_the_second_time() {
    let mut scene = Scene::new().await;
    scene.enqueue(every().len()).await;
    let worker = scene.worker().await;
    for settlement in every() {
        let got = claim_n(&worker, scene.topic.id, 1).await;
        let batch = all(&got, &settlement);
        settle(&worker, batch.clone()).await;
        assert_eq!(worker.settle(batch).await.unwrap(), [SettleOutcome::Fenced], "{settlement:?}");
        scene.sql("DELETE FROM queue_message WHERE delivery_no > 0").await;
    }
}

#[tokio::test]
async fn an_empty_batch_is_settled_at_once() {
    let scene = Scene::new().await;
    assert!(scene.worker().await.settle(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_reason_longer_than_its_column_is_cut_at_a_character() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let error = format!("x{}", "é".repeat(10_000));
    let ends = [
        Settlement::Retry { delay: Duration::ZERO, error: error.clone() },
        Settlement::DeadLetter { cause: DeadCause::Handler, error: error.clone() },
        Settlement::Discard { reason: error },
    ];
    let pairs = got.iter().zip(ends);
    settle(&worker, pairs.map(|(d, end)| Settled::new(d, end, OnDone::Delete)).collect()).await;
    for (table, column) in [
        ("queue_scheduled", "last_error"),
        ("queue_dead", "last_error"),
        ("queue_archive", "reason"),
    ] {
        let n = format!("SELECT LENGTH({column}) FROM {table}");
        assert_eq!(scene.number(&n).await, 8191, "{table}");
        let text = format!("SELECT CONVERT({column} USING utf8mb4) FROM {table}");
        assert!(scene.text(&text).await.ends_with('é'));
    }
}

/// The server's calendar ends with the year 9999; a settle that the server refuses would be retried
/// for ever and block every claim of the worker.
#[tokio::test]
async fn a_delay_beyond_the_calendar_is_settled_all_the_same() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 4).await;
    let ages = Duration::from_secs(20_000 * 365 * 24 * 3600);
    let batch = vec![
        Settled::new(&got[0], retry(ages), OnDone::Delete),
        Settled::new(&got[1], retry(Duration::MAX), OnDone::Delete),
        Settled::new(&got[2], Settlement::Ack, OnDone::Keep(ages)),
        Settled::new(&got[3], discard(), OnDone::Keep(Duration::MAX)),
    ];
    let settling = tokio::time::timeout(PATIENCE, worker.settle(batch));
    let outcomes = settling.await.expect("it is not tried for ever").unwrap();
    assert_eq!(outcomes, [SettleOutcome::Settled; 4]);
    let far = "SELECT (SELECT COUNT(*) FROM queue_scheduled WHERE due_at > UTC_TIMESTAMP() + INTERVAL 9 YEAR) \
         + (SELECT COUNT(*) FROM queue_archive WHERE keep_until > UTC_TIMESTAMP() + INTERVAL 9 YEAR)";
    assert_eq!(scene.number(far).await, 4);
}

/// H9: exact lists never touch a row that another worker's transaction has locked, and so never
/// wait for it, even in a table so small that a plan might read all of it.
#[tokio::test]
async fn settling_never_waits_for_a_row_of_another_worker() {
    for settlement in every() {
        let mut scene = Scene::new().await;
        scene.enqueue(5).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 5).await;
        // Rows 1 and 3 become worker 77's, whose open transaction locks them.
        scene.sql("UPDATE queue_message SET worker_id = 77 WHERE body IN ('1', '3')").await;
        let mut other = scene.db.connect().await;
        let lock = "BEGIN; SELECT id FROM queue_message FORCE INDEX (PRIMARY) \
             WHERE worker_id = 77 FOR UPDATE";
        other.batch_execute(lock).await.unwrap();
        let own = all([&got[0], &got[2], &got[4]], &settlement);
        let rows = own.iter().map(|one| one.row).collect();
        // With the store's own statements and the shortest lock wait timeout.
        let mut conn = scene.db.connect().await;
        conn.batch_execute("SET innodb_lock_wait_timeout = 1; BEGIN").await.unwrap();
        let fence = store::claim::Fence { worker: worker.id(), claim_no: got[0].claim_no };
        let priority = got[0].priority;
        let claimed = store::settle::ClaimedRows { fence, topic: scene.topic.id, priority, rows };
        let locked = store::settle::lock_own(&mut conn, &claimed).await.unwrap();
        assert_eq!(locked.len(), 3);
        let n = match settlement {
            Settlement::Release => store::settle::release(&mut conn, &claimed).await.unwrap(),
            _ => store::settle::ack(&mut conn, &claimed).await.unwrap(),
        };
        assert_eq!(n, 3);
        conn.batch_execute("ROLLBACK").await.unwrap();
        // And through the worker, as in normal use.
        settle(&worker, own).await;
        assert_eq!(scene.lock_waits().await, 0);
        other.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// Another session's lock on one row, such as an open transaction in a user's shell, delays nothing
/// else: the row is set aside and settled once it is free.
#[tokio::test]
async fn a_row_that_a_stranger_has_locked_is_set_aside_and_settled_later() {
    // All at once: each waits for a lock first.
    let each = every().into_iter().map(async |settlement| {
        let mut scene = Scene::new().await;
        scene.enqueue(4).await;
        let beat = Duration::from_millis(200);
        let worker = scene.worker_with(|options| options.beat = beat).await;
        let got = claim_n(&worker, scene.topic.id, 3).await;
        let mut stranger = scene.db.connect().await;
        let lock = "BEGIN; SELECT id FROM queue_message WHERE body = '1' FOR UPDATE";
        stranger.batch_execute(lock).await.unwrap();
        let outcomes = worker.settle(all(&got, &settlement)).await.unwrap();
        let (done, later) = (SettleOutcome::Settled, SettleOutcome::Deferred);
        assert_eq!(outcomes, [done, later, done], "{settlement:?}");
        // The worker continues in the meantime.
        claim_n(&worker, scene.topic.id, 1).await;
        stranger.batch_execute("ROLLBACK").await.unwrap();
        let still_held = format!(
            "SELECT COUNT(*) FROM queue_message WHERE body = '1' AND worker_id = {} \
             AND claim_no = {}",
            worker.id(),
            got[1].claim_no
        );
        until("the row is settled", async || scene.number(&still_held).await == 0).await;
        until("its claim is forgotten", async || scene.hot().await.2 == 1).await;
    });
    futures_util::future::join_all(each).await;
}

#[tokio::test]
async fn the_same_delivery_twice_in_a_batch_is_settled_once() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let mut batch = all(&got, &retry(Duration::ZERO));
    batch.extend(all(&got[..1], &retry(Duration::ZERO)));
    settle(&worker, batch).await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 2);
    assert_eq!(scene.hot().await, (0, 0, 0));
}

/// H9: a range reads one row beyond its end. Another worker's claim or settle may have that row
/// locked while it waits for the disk: no settle may wait for it.
#[tokio::test]
async fn settling_consecutive_rows_does_not_wait_for_the_row_after_them() {
    for settlement in every() {
        let mut scene = Scene::new().await;
        scene.enqueue(6).await;
        let worker = scene.worker().await;
        let got = claim_n(&worker, scene.topic.id, 4).await;
        let neighbour = scene.worker().await;
        claim_n(&neighbour, scene.topic.id, 2).await;
        let mut other = scene.db.connect().await;
        let lock = format!(
            "BEGIN; DELETE FROM queue_message WHERE topic_id = {} AND priority = 5 \
             AND worker_id = {}",
            scene.topic.id.0,
            neighbour.id()
        );
        other.batch_execute(&lock).await.unwrap();
        let fence = store::claim::Fence { worker: worker.id(), claim_no: got[0].claim_no };
        for rows in [0..1, 1..3, 1..4] {
            let claimed = store::settle::ClaimedRows {
                fence,
                topic: scene.topic.id,
                priority: got[0].priority,
                rows: got[rows].iter().map(|d| d.row).collect(),
            };
            let mut conn = scene.db.connect().await;
            conn.batch_execute("BEGIN").await.unwrap();
            let own = store::settle::lock_own(&mut conn, &claimed).await.unwrap();
            assert_eq!(own.len(), claimed.rows.len());
            let n = store::settle::release(&mut conn, &claimed).await.unwrap();
            assert_eq!(n, claimed.rows.len());
            conn.batch_execute("ROLLBACK; BEGIN").await.unwrap();
            let n = store::settle::ack(&mut conn, &claimed).await.unwrap();
            assert_eq!(n, claimed.rows.len());
            conn.batch_execute("ROLLBACK").await.unwrap();
        }
        settle(&worker, all(&got, &settlement)).await;
        other.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(
            scene.number("SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0").await,
            2
        );
    }
}
