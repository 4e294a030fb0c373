//! Moves between tables: by the keys of locked rows, never by a predicate twice.

use std::time::{Duration, Instant};

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::RowId;
use rowmq_core::store::moves;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::scheduled::{self, Due, Reach};
use rowmq_core::store::{floor, lookup, settle};
use rowmq_core::{AsyncMysqlConnection, Error, Moment, NewMessage, Priority, enqueue_all};
use rowmq_test::PATIENCE;

use crate::scene::{Scene, all, bodies, claim_n, numbers, retry, settle as settle_all};

/// Makes due messages ready, as a promoter does; returns how many.
pub(crate) async fn promote(conn: &mut AsyncMysqlConnection, limit: u32) -> usize {
    let start = Instant::now();
    loop {
        let moved = transaction(conn, "promote", async |conn| {
            let due = scheduled::lock_due(conn, Reach::All, limit).await?;
            if let Some(first) = due.first().copied() {
                let row = scheduled::promote(conn, &rows(&due)).await?;
                lookup::follow_promoted(conn, row, &due).await?;
                floor::publish(conn, first.topic, first.priority, row).await?;
            }
            Ok(due.len())
        });
        match moved.await {
            // Another session has held a lock for longer than a transaction waits.
            Err(error) if error.fault().is_conflict() && start.elapsed() < PATIENCE => {}
            moved => return moved.unwrap(),
        }
    }
}

fn rows(due: &[Due]) -> RowSet {
    due.iter().map(|due| due.row).collect()
}

impl Scene {
    /// Schedules `n` messages that are due `delay` from now; returns their ids in the scheduled
    /// table.
    async fn schedule(&mut self, n: usize, delay: Duration) {
        self.enqueue(n).await;
        let worker = self.worker().await;
        let got = claim_n(&worker, self.topic.id, n).await;
        settle_all(&worker, all(&got, &retry(delay))).await;
    }

    async fn scheduled(&mut self) -> i64 {
        self.number("SELECT COUNT(*) FROM queue_scheduled").await
    }
}

/// H1: two promoters, step by step: the second does not see what the first has locked.
#[tokio::test]
async fn two_promoters_move_each_due_message_once() {
    let mut scene = Scene::new().await;
    scene.schedule(2, Duration::ZERO).await;
    let (mut a, mut b) = (scene.db.connect().await, scene.db.connect().await);
    a.batch_execute("BEGIN").await.unwrap();
    b.batch_execute("BEGIN").await.unwrap();
    let due_a = scheduled::lock_due(&mut a, Reach::All, 10).await.unwrap();
    assert_eq!(due_a.len(), 2);
    assert_eq!(scheduled::lock_due(&mut b, Reach::All, 10).await.unwrap(), []);
    scheduled::promote(&mut a, &rows(&due_a)).await.unwrap();
    // The rows are moved but not committed.
    assert_eq!(scheduled::lock_due(&mut b, Reach::All, 10).await.unwrap(), []);
    b.batch_execute("COMMIT").await.unwrap();
    a.batch_execute("COMMIT").await.unwrap();
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (0, 2));
    assert_eq!(promote(&mut b, 10).await, 0);
}

/// H1, each with a share: neither waits for the other, in a table of four rows and in a large one.
#[tokio::test]
async fn two_promoters_with_a_share_each_do_not_wait_for_each_other() {
    for large in [0, 2000] {
        let mut scene = Scene::new().await;
        scene.schedule(4, Duration::ZERO).await;
        scene.schedule(large, Duration::from_secs(3600)).await;
        let (mut a, mut b) = (scene.db.connect().await, scene.db.connect().await);
        a.batch_execute("BEGIN").await.unwrap();
        b.batch_execute("BEGIN").await.unwrap();
        let due_a = scheduled::lock_due(&mut a, Reach::All, 2).await.unwrap();
        let due_b = scheduled::lock_due(&mut b, Reach::All, 2).await.unwrap();
        assert_eq!((due_a.len(), due_b.len()), (2, 2));
        // B promotes its rows first, then A, each while the other's transaction is open.
        scheduled::promote(&mut b, &rows(&due_b)).await.unwrap();
        scheduled::promote(&mut a, &rows(&due_a)).await.unwrap();
        a.batch_execute("COMMIT").await.unwrap();
        b.batch_execute("COMMIT").await.unwrap();
        let left = i64::try_from(large).unwrap();
        assert_eq!((scene.scheduled().await, scene.hot().await.0), (left, 4));
    }
}

/// H1, alternating rows: the lists interleave, and still neither promoter waits.
#[tokio::test]
async fn promoters_with_interleaved_rows_do_not_wait_for_each_other() {
    let mut scene = Scene::new().await;
    scene.schedule(6, Duration::ZERO).await;
    let (mut a, mut b) = (scene.db.connect().await, scene.db.connect().await);
    let ids = scheduled_ids(&mut scene).await;
    for (conn, parity) in [(&mut a, 0), (&mut b, 1)] {
        let own: RowSet = ids.iter().copied().filter(|id| id.0 % 2 == parity).collect();
        conn.batch_execute("BEGIN").await.unwrap();
        assert_eq!(own.len(), 3);
        scheduled::promote(conn, &own).await.unwrap();
    }
    a.batch_execute("COMMIT").await.unwrap();
    b.batch_execute("COMMIT").await.unwrap();
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (0, 6));
}

async fn scheduled_ids(scene: &mut Scene) -> Vec<RowId> {
    let ids = scene.text("SELECT GROUP_CONCAT(id ORDER BY id) FROM queue_scheduled").await;
    ids.split(',').map(|id| RowId(id.parse().unwrap())).collect()
}

/// H2: a message that becomes due between the statements stays where it is.
#[tokio::test]
async fn a_message_that_becomes_due_during_a_promotion_is_not_lost() {
    let mut scene = Scene::new().await;
    scene.schedule(1, Duration::ZERO).await;
    let mut promoter = scene.db.connect().await;
    promoter.batch_execute("BEGIN").await.unwrap();
    let due = scheduled::lock_due(&mut promoter, Reach::All, 10).await.unwrap();
    scene.schedule(1, Duration::ZERO).await;
    scheduled::promote(&mut promoter, &rows(&due)).await.unwrap();
    scene.schedule(1, Duration::ZERO).await;
    promoter.batch_execute("COMMIT").await.unwrap();
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (2, 1));
    assert_eq!(promote(&mut promoter, 10).await, 2);
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (0, 3));
}

#[tokio::test]
async fn a_message_that_is_not_due_is_not_promoted() {
    let mut scene = Scene::new().await;
    scene.schedule(3, Duration::from_secs(3600)).await;
    let mut conn = scene.db.connect().await;
    assert_eq!(promote(&mut conn, 10).await, 0);
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (3, 0));
}

#[tokio::test]
async fn due_messages_are_promoted_in_order_of_their_time_and_keep_all_they_had() {
    let mut scene = Scene::new().await;
    let messages: Vec<_> = (0..5_u8)
        .map(|i| {
            NewMessage::new(i.to_string())
                .with_key([i, 255])
                .with_biz_id(format!("biz {i}"))
                .with_header("n", i.to_string())
                .with_priority(Priority::new(7).unwrap())
        })
        .collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 5).await;
    // The later the delivery, the sooner it is due.
    for (i, delivery) in got.iter().enumerate() {
        let delay = Duration::from_secs(50 - 10 * i as u64);
        settle_all(&worker, all([delivery], &retry(delay))).await;
    }
    scene.sql("UPDATE queue_scheduled SET due_at = due_at - INTERVAL 1 HOUR").await;
    let mut conn = scene.db.connect().await;
    assert_eq!(promote(&mut conn, 2).await, 2);
    assert_eq!(promote(&mut conn, 10).await, 3);
    let got = claim_n(&worker, scene.topic.id, 5).await;
    assert_eq!(bodies(&got), ["4", "3", "2", "1", "0"]);
    for delivery in &got {
        let sent = &messages[usize::from(delivery.body[0] - b'0')];
        assert_eq!((delivery.failures, delivery.delivery_no.0), (1, 2));
        assert_eq!(
            (&delivery.msg_id, &delivery.key, &delivery.biz_id, &delivery.headers),
            (&sent.msg_id, &sent.key, &sent.biz_id, &sent.headers)
        );
        assert_eq!(delivery.priority, sent.priority);
    }
}

#[tokio::test]
async fn a_move_whose_counts_differ_is_rolled_back_whole() {
    let mut scene = Scene::new().await;
    scene.schedule(2, Duration::ZERO).await;
    let ids = scheduled_ids(&mut scene).await;
    let wrong: RowSet = ids.iter().copied().chain([RowId(ids[1].0 + 5)]).collect();
    let mut conn = scene.db.connect().await;
    let mut runs = 0;
    let moved = transaction(&mut conn, "promote", async |conn| {
        runs += 1;
        scheduled::promote(conn, &wrong).await
    });
    let error = moved.await.unwrap_err();
    assert!(matches!(error, Error::Counts { expected: 3, found: 2, .. }), "{error}");
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (2, 0));
    assert!(runs >= 1);
}

#[tokio::test]
async fn a_settle_by_move_of_a_row_that_is_not_its_own_is_rolled_back_whole() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    scene.sql("UPDATE queue_message SET worker_id = 77 WHERE body = '1'").await;
    let fence = rowmq_core::store::claim::Fence { worker: worker.id(), claim_no: got[0].claim_no };
    let claimed = settle::ClaimedRows {
        fence,
        topic: scene.topic.id,
        priority: got[0].priority,
        rows: got.iter().map(|d| d.row).collect(),
    };
    let moved = transaction(&mut scene.conn, "settle", async |conn| {
        moves::to_scheduled(conn, &claimed, Moment::After(Duration::ZERO), Some("not yet")).await
    });
    let error = moved.await.unwrap_err();
    assert!(matches!(error, Error::Counts { expected: 3, found: 2, .. }), "{error}");
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (0, 3));
}

#[tokio::test]
async fn many_promoters_at_once_move_everything_once() {
    let mut scene = Scene::new().await;
    scene.schedule(500, Duration::ZERO).await;
    let promoters = (0..4).map(async |_| {
        let mut conn = scene.db.connect().await;
        let mut moved = 0;
        loop {
            match promote(&mut conn, 17).await {
                0 => return moved,
                n => moved += n,
            }
        }
    });
    let mut moved: usize = join_all(promoters).await.into_iter().sum();
    // A promoter that found everything locked may have ended early; the rest is still due.
    moved += promote(&mut scene.conn, 1000).await;
    assert_eq!(moved, 500);
    assert_eq!((scene.scheduled().await, scene.hot().await.0), (0, 500));
    let distinct = scene.number("SELECT COUNT(DISTINCT msg_id) FROM queue_message").await;
    assert_eq!(distinct, 500);
    let worker = scene.worker().await;
    let mut got = bodies(&claim_n(&worker, scene.topic.id, 500).await);
    got.sort_by_key(|body| body.parse::<usize>().unwrap());
    assert_eq!(got, numbers(0..500));
}
