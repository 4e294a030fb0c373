//! Which rows a statement locks: its own and no other, whatever the table's size and the rows'
//! pattern. A statement that waits for another transaction's row waits for that one's disk, or for
//! a user's open transaction.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{ClaimNo, DeadCause, OnDone, RowId, WorkerId};
use rowmq_core::store::claim::Fence;
use rowmq_core::store::rescue::Charge;
use rowmq_core::store::row_set::RowSet;
use rowmq_core::store::settle::{self, ClaimedRows};
use rowmq_core::store::{claim, moves, rescue, scheduled};
use rowmq_core::{AsyncMysqlConnection, Error, Fault, Moment, Priority};

use crate::inspect::rows_read;
use crate::scene::{STRATEGIES, Scene, bodies, claim_n, numbers};

/// Sizes of the table, from one at which every plan looks cheap.
const SIZES: [usize; 5] = [2, 3, 5, 9, 40];

/// Returns patterns of own rows among `n`.
fn patterns(n: usize) -> Vec<(&'static str, Vec<usize>)> {
    vec![
        ("the first", vec![0]),
        ("the last", vec![n - 1]),
        ("the first half", (0..n / 2).collect()),
        ("the second half", (n / 2..n).collect()),
        ("the even ones", (0..n).step_by(2).collect()),
        ("all but the first", (1..n).collect()),
        ("all but the last", (0..n - 1).collect()),
        ("all but the middle", (0..n).filter(|i| *i != n / 2).collect()),
        ("both ends", vec![0, n - 1]),
    ]
}

/// Runs the statements of a transaction; returns how many rows they touched.
async fn statements(conn: &mut AsyncMysqlConnection, own: &ClaimedRows, what: &str) -> usize {
    let step = async |conn: &mut AsyncMysqlConnection| -> Result<usize, Error> {
        let zero = std::time::Duration::ZERO;
        match what {
            "lock own" => Ok(settle::lock_own(conn, own).await?.len()),
            "read own" => Ok(settle::read_own(conn, own).await?.len()),
            "ack" => settle::ack(conn, own).await,
            "release" => settle::release(conn, own).await,
            "free" => rescue::free(conn, own, own.priority, Charge::Crash).await,
            "free as suspects" => {
                rescue::free(conn, own, own.priority.suspect(), Charge::Suspicion).await
            }
            "retry" | "snooze" => {
                let failure = (what == "retry").then_some("");
                let moved = moves::to_scheduled(conn, own, Moment::After(zero), failure).await;
                moved.map(|()| own.rows.len())
            }
            "dead-letter" => {
                let moved = moves::to_dead(conn, own, DeadCause::Handler, "").await;
                moved.map(|()| own.rows.len())
            }
            _ => {
                let moved =
                    moves::to_archive(conn, own, moves::Outcome::Done, OnDone::Keep(zero)).await;
                moved.map(|()| own.rows.len())
            }
        }
    };
    step(conn).await.unwrap_or_else(|error| panic!("{what} of {:?}: {error}", own.rows))
}

#[tokio::test]
async fn settles_and_rescues_lock_their_own_rows_and_wait_for_no_other() {
    for n in SIZES {
        let mut scene = Scene::new().await;
        scene.enqueue(n).await;
        let ids = ids(&mut scene, "queue_message").await;
        let (mut own_conn, mut other) = (scene.db.connect().await, scene.db.connect().await);
        for (name, own) in patterns(n) {
            let rows: RowSet = own.iter().map(|i| ids[*i]).collect();
            let list = own.iter().map(|i| ids[*i].to_string()).collect::<Vec<_>>().join(",");
            scene.sql("UPDATE queue_message SET worker_id = 8, claim_no = 8").await;
            let mark = format!(
                "UPDATE queue_message SET worker_id = 7, claim_no = 7 WHERE id IN ({list})"
            );
            scene.sql(&mark).await;
            other.batch_execute("BEGIN").await.unwrap();
            for id in ids.iter().enumerate().filter(|(i, _)| !own.contains(i)).map(|(_, id)| id) {
                // One at a time, by the whole key, so that nothing else is locked.
                let lock = format!(
                    "SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = {} \
                     AND priority = 5 AND id = {id} FOR UPDATE",
                    scene.topic.id.0
                );
                other.batch_execute(&lock).await.unwrap();
            }
            let fence = Fence { worker: WorkerId(7), claim_no: ClaimNo(7) };
            let (topic, priority) = (scene.topic.id, Priority::default());
            let claimed = ClaimedRows { fence, topic, priority, rows };
            for what in [
                "lock own",
                "read own",
                "ack",
                "release",
                "free",
                "free as suspects",
                "retry",
                "snooze",
                "dead-letter",
                "archive",
            ] {
                own_conn.batch_execute("BEGIN").await.unwrap();
                let touched = statements(&mut own_conn, &claimed, what).await;
                assert_eq!(touched, own.len(), "{what}, {name} of {n}");
                own_conn.batch_execute("ROLLBACK").await.unwrap();
            }
            other.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

#[tokio::test]
async fn claims_lock_their_own_rows_and_wait_for_no_other() {
    for n in SIZES {
        let mut scene = Scene::new().await;
        scene.enqueue(n).await;
        let ids = ids(&mut scene, "queue_message").await;
        let (mut own_conn, mut other) = (scene.db.connect().await, scene.db.connect().await);
        for (name, own) in patterns(n) {
            other.batch_execute("BEGIN").await.unwrap();
            for id in ids.iter().enumerate().filter(|(i, _)| !own.contains(i)).map(|(_, id)| id) {
                let lock = format!(
                    "SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = {} \
                     AND priority = 5 AND id = {id} FOR UPDATE",
                    scene.topic.id.0
                );
                other.batch_execute(&lock).await.unwrap();
            }
            own_conn.batch_execute("BEGIN").await.unwrap();
            let topic = scene.topic.id;
            let start = claim::Marks::START.position(Priority::default());
            let got = claim::lock_ready(&mut own_conn, topic, start, 100, ClaimNo(1)).await;
            let got = got.unwrap();
            assert_eq!(bodies(&got), numbers(own.clone()), "{name} of {n}");
            let rows: RowSet = got.iter().map(|d| d.row).collect();
            let fence = Fence { worker: WorkerId(7), claim_no: ClaimNo(1) };
            let priority = Priority::default();
            let owned = claim::own(&mut own_conn, fence, topic, priority, &rows).await;
            let owned = owned.unwrap_or_else(|error| panic!("own {name} of {n}: {error}"));
            assert_eq!(owned, own.len());
            own_conn.batch_execute("ROLLBACK").await.unwrap();
            other.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

#[tokio::test]
async fn promotions_lock_their_own_rows_and_wait_for_no_other() {
    for n in SIZES {
        let mut scene = Scene::new().await;
        schedule(&mut scene, n).await;
        let ids = ids(&mut scene, "queue_scheduled").await;
        let (mut own_conn, mut other) = (scene.db.connect().await, scene.db.connect().await);
        for (name, own) in patterns(n) {
            other.batch_execute("BEGIN").await.unwrap();
            for id in ids.iter().enumerate().filter(|(i, _)| !own.contains(i)).map(|(_, id)| id) {
                let lock = format!(
                    "SELECT s.id FROM (SELECT due_at, id FROM queue_scheduled WHERE id = {id}) k \
                     STRAIGHT_JOIN queue_scheduled s FORCE INDEX (PRIMARY) \
                     ON s.due_at = k.due_at AND s.id = k.id FOR UPDATE"
                );
                other.batch_execute(&lock).await.unwrap();
            }
            own_conn.batch_execute("BEGIN").await.unwrap();
            let rows: RowSet = own.iter().map(|i| ids[*i]).collect();
            let promoted = scheduled::promote(&mut own_conn, &rows).await;
            promoted.unwrap_or_else(|error| panic!("{name} of {n}: {error}"));
            own_conn.batch_execute("ROLLBACK").await.unwrap();
            other.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

#[tokio::test]
async fn forgetting_a_claim_waits_for_no_other() {
    let mut scene = Scene::new().await;
    let (mut own_conn, mut other) = (scene.db.connect().await, scene.db.connect().await);
    for n in SIZES {
        for (name, own) in patterns(n) {
            scene.sql("DELETE FROM queue_claim").await;
            for i in 0..n {
                let worker = if own.contains(&i) { 7 } else { 8 };
                let insert = format!(
                    "INSERT INTO queue_claim VALUES (7, {i}, 1, 5, 1, 1, 1, {worker}, UTC_TIMESTAMP(6))"
                );
                scene.sql(&insert).await;
            }
            other.batch_execute("BEGIN").await.unwrap();
            for i in (0..n).filter(|i| !own.contains(i)) {
                let lock = format!(
                    "SELECT n FROM queue_claim WHERE worker_id = 7 AND claim_no = {i} FOR UPDATE"
                );
                other.batch_execute(&lock).await.unwrap();
            }
            own_conn.batch_execute("BEGIN").await.unwrap();
            let claims: Vec<_> = own.iter().map(|i| ClaimNo(*i as u64)).collect();
            let forgotten = claim::forget(&mut own_conn, WorkerId(7), &claims).await;
            let forgotten = forgotten.unwrap_or_else(|error| panic!("{name} of {n}: {error}"));
            assert_eq!(forgotten, own.len(), "{name} of {n}");
            own_conn.batch_execute("ROLLBACK").await.unwrap();
            other.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// Enqueueing within the caller's own transaction is the purpose of the queue, and such a
/// transaction may take its time: its row, and the place after the last row, delay only a claimer
/// by `update-limit` on MariaDB.
#[tokio::test]
async fn an_open_transaction_of_a_producer_holds_up_no_claim() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let other = scene.db.topic("other").await;
        scene.enqueue(3).await;
        let mut open = Vec::new();
        for (topic, priority) in
            [(&scene.topic, 5), (&scene.topic, 4), (&scene.topic, 6), (&other, 0), (&other, 9)]
        {
            let mut producer = scene.db.connect().await;
            producer.batch_execute("BEGIN").await.unwrap();
            let message =
                rowmq_core::NewMessage::new("open").with_priority(Priority::new(priority).unwrap());
            rowmq_core::enqueue(&mut producer, &topic.name, &message).await.unwrap();
            open.push(producer);
        }
        let worker = scene.worker_by(strategy).await;
        let claimed = worker.claim(scene.topic.id, 10).await;
        let waits = scene.waits_for_producers(strategy).await;
        if waits {
            assert_eq!(claimed.unwrap_err().fault(), Fault::LockWait);
        } else {
            let claimed = claimed.unwrap_or_else(|error| panic!("{strategy:?}: {error}"));
            assert_eq!(bodies(&claimed.deliveries), numbers(0..3), "{strategy:?}");
            assert!(worker.claim(scene.topic.id, 10).await.unwrap().deliveries.is_empty());
        }
        for mut producer in open {
            producer.batch_execute("COMMIT").await.unwrap();
        }
        claim_n(&worker, scene.topic.id, if waits { 6 } else { 3 }).await;
    }
}

/// Long lists are split; on MariaDB a list of a thousand becomes a join that reads everything.
#[tokio::test]
async fn settling_every_other_row_of_many_reads_about_as_many_rows() {
    let mut scene = Scene::new().await;
    scene.enqueue(20_000).await;
    let own =
        "UPDATE queue_message SET worker_id = 7, claim_no = 7 WHERE id % 2 = 0 AND id <= 3000";
    scene.sql(own).await;
    let claimed = ClaimedRows {
        fence: Fence { worker: WorkerId(7), claim_no: ClaimNo(7) },
        topic: scene.topic.id,
        priority: Priority::default(),
        rows: (1..=1500).map(|i| RowId(2 * i)).collect(),
    };
    for what in
        ["lock own", "read own", "ack", "release", "free", "retry", "dead-letter", "archive"]
    {
        scene.sql("BEGIN").await;
        let before = rows_read(&mut scene.conn).await;
        assert_eq!(statements(&mut scene.conn, &claimed, what).await, 1500, "{what}");
        let read = rows_read(&mut scene.conn).await - before;
        // Read once to copy and once to delete, with one look at the next row each time.
        assert!(read <= 4 * 1500 + 100, "{what}: {read} rows read");
        scene.sql("ROLLBACK").await;
    }
}

async fn ids(scene: &mut Scene, table: &str) -> Vec<RowId> {
    scene.sql("SET SESSION group_concat_max_len = 1000000").await;
    let ids = scene.text(&format!("SELECT GROUP_CONCAT(id ORDER BY id) FROM {table}")).await;
    ids.split(',').map(|id| RowId(id.parse().unwrap())).collect()
}

/// Inserts due messages directly into the table of scheduled messages.
async fn schedule(scene: &mut Scene, n: usize) {
    for _ in 0..n {
        scene
            .sql(
                "INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, \
                 failures, crashes, suspicions, enqueued_at, body) SELECT UTC_TIMESTAMP(6), id, 5, \
                 UNHEX(REPLACE(UUID(), '-', '')), 1, 1, 0, 0, UTC_TIMESTAMP(6), 'b' FROM queue_topic LIMIT 1",
            )
            .await;
    }
}
