//! The defects of the documents the project grew from, shown to be absent here.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::model::{ClaimNo, ConnId, DeadCause, RowId, Settlement, WorkerId};
use rowmq_core::rescue::Why;
use rowmq_core::store::claim::{self, Claim, Fence, Marks};
use rowmq_core::store::{floor, moves, process_list, rescue, settle, worker};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{AsyncMysqlConnection, Moment, NewMessage, Priority, enqueue, enqueue_all};
use rowmq_test::{TestQueue, until};

use crate::rescue::{claims_of, take};
use crate::scene::{
    STRATEGIES, Scene, all, bodies, claim_n, failure, lasting_transactions_of, number, numbers,
    retry, settle as settle_all,
};

/// S1: nothing wrote the claim's time, so no zombie was ever released. Here the statement itself
/// writes every time, and a row without one is refused.
#[tokio::test]
async fn s1_the_times_of_claims_and_beats_are_always_written() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let beat = Duration::from_millis(100);
    let worker = scene.worker_with(|options| options.beat = beat).await;
    claim_n(&worker, scene.topic.id, 1).await;
    let now = "ABS(TIMESTAMPDIFF(SECOND, claimed_at, UTC_TIMESTAMP(6)))";
    assert!(scene.number(&format!("SELECT {now} FROM queue_claim")).await < 20);
    let claimed_at = scene.text("SELECT claimed_at FROM queue_claim").await;
    // A change of another column does not move it.
    scene.sql("UPDATE queue_claim SET n = n + 1").await;
    assert_eq!(scene.text("SELECT claimed_at FROM queue_claim").await, claimed_at);
    let beat_at = scene.text("SELECT beat_at FROM queue_worker").await;
    until("the next beat", async || scene.text("SELECT beat_at FROM queue_worker").await > beat_at)
        .await;
    // With the old behaviour of TIMESTAMP and with the new one.
    for explicit in ["ON", "OFF"] {
        let mut conn = scene.db.connect().await;
        let set = format!("SET SESSION explicit_defaults_for_timestamp = {explicit}");
        if conn.batch_execute(&set).await.is_err() {
            continue;
        }
        let silent = "INSERT INTO queue_claim (worker_id, claim_no, topic_id, priority, lo, hi, n, \
             conn_id) VALUES (9, 9, 9, 5, 1, 1, 1, 1)";
        failure(&mut conn, silent).await;
    }
}

/// S2: claimed rows that the reader's filter left out were stranded under a live connection.
#[tokio::test]
async fn s2_a_claim_returns_exactly_the_rows_it_has_claimed() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let other = scene.db.topic("other").await;
        for i in 0..60_u8 {
            let name = if i % 3 == 0 { &other.name } else { &scene.topic.name };
            let message =
                NewMessage::new(i.to_string()).with_priority(Priority::new(i % 10).unwrap());
            enqueue(&mut scene.conn, name, &message).await.unwrap();
        }
        let worker = scene.worker_by(strategy).await;
        let mut total = 0;
        while total < 40 {
            let got = worker.claim(scene.topic.id, 7).await.unwrap().deliveries;
            for delivery in &got {
                let theirs = format!(
                    "SELECT COUNT(*) FROM queue_message WHERE id = {} AND worker_id = {} \
                     AND claim_no = {}",
                    delivery.row,
                    worker.id(),
                    delivery.claim_no
                );
                assert_eq!(scene.number(&theirs).await, 1);
            }
            total += got.len();
            let claimed = "SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0";
            assert_eq!(scene.number(claimed).await, i64::try_from(total).unwrap(), "{strategy:?}");
        }
        let strange = format!(
            "SELECT COUNT(*) FROM queue_message WHERE worker_id <> 0 AND topic_id = {}",
            other.id.0
        );
        assert_eq!(scene.number(&strange).await, 0);
    }
}

/// S3: a claim of ten behind a hundred thousand finished rows locked them all.
#[tokio::test]
async fn s3_a_claim_locks_about_as_many_rows_as_it_claims() {
    let mut scene = Scene::new().await;
    scene.enqueue(10_100).await;
    scene.sql("UPDATE queue_message SET worker_id = 7, claim_no = 7 ORDER BY id LIMIT 10000").await;
    let topic = scene.topic.id;
    let mut claimer = scene.db.connect().await;
    let id = u64::try_from(number(&mut claimer, "SELECT CONNECTION_ID()").await).unwrap();
    let fence = Fence { worker: WorkerId(9), claim_no: ClaimNo(1) };
    let start = Marks::START.position(Priority::default());
    for strategy in ["skip locked", "update then select"] {
        claimer.batch_execute("BEGIN").await.unwrap();
        if strategy == "skip locked" {
            // From the start, past all claimed rows.
            let got = claim::lock_ready(&mut claimer, topic, start, 10, ClaimNo(1)).await;
            assert_eq!(bodies(&got.unwrap()), numbers(10_000..10_010));
        } else {
            let walk = claim::walk(&mut claimer, topic).await.unwrap();
            let place = walk.first.unwrap();
            let owned = claim::own_ready(&mut claimer, fence, topic, place, 10).await;
            assert_eq!(owned.unwrap(), 10);
        }
        let open = scene.transactions().await;
        let locks = open.iter().find(|open| open.thread == id).unwrap().row_locks;
        assert!((10..=50).contains(&locks), "{strategy}: {locks} row locks");
        claimer.batch_execute("ROLLBACK").await.unwrap();
    }
}

/// S4: without ORDER BY the order was an accident of the plan.
#[tokio::test]
async fn s4_one_consumer_sees_messages_in_the_order_they_were_committed() {
    for strategy in STRATEGIES {
        let scene = Scene::new().await;
        let worker = scene.worker_by(strategy).await;
        let mut producers = Vec::new();
        for _ in 0..4 {
            producers.push(scene.db.connect().await);
        }
        let mut got = Vec::new();
        for i in 0..60 {
            let message = NewMessage::new(i.to_string());
            enqueue(&mut producers[i % 4], &scene.topic.name, &message).await.unwrap();
            if i % 7 == 0 {
                let one = worker.claim(scene.topic.id, 3).await.unwrap().deliveries;
                settle_all(&worker, all(&one, &Settlement::Ack)).await;
                got.extend(bodies(&one));
            }
        }
        while got.len() < 60 {
            let one = worker.claim(scene.topic.id, 1).await.unwrap().deliveries;
            settle_all(&worker, all(&one, &Settlement::Ack)).await;
            got.extend(bodies(&one));
        }
        assert_eq!(got, numbers(0..60), "{strategy:?}");
    }
}

/// S5: after a 1213 in the ack the same connection claimed the same rows again: 550 of 16,000
/// messages ran twice without any crash.
#[tokio::test]
async fn s5_after_a_deadlock_in_the_ack_nothing_is_picked_up_twice() {
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let heavy = scene.db.topic("heavy").await;
        scene.enqueue(5).await;
        let worker = scene.worker_by(strategy).await;
        let got = claim_n(&worker, scene.topic.id, 5).await;
        // Another session locks the last row and then wants the first, crosswise to the ack. It has
        // changed so many rows that the server makes the ack the victim.
        let mut stranger = scene.db.connect().await;
        stranger.batch_execute("SET innodb_lock_wait_timeout = 20; BEGIN").await.unwrap();
        let messages: Vec<_> = (0..200).map(|_| NewMessage::new("x")).collect();
        enqueue_all(&mut stranger, &heavy.name, &messages).await.unwrap();
        let lock = |row: RowId| {
            format!(
                "SELECT id FROM queue_message FORCE INDEX (PRIMARY) WHERE topic_id = {} \
                 AND priority = 5 AND id = {row} FOR UPDATE",
                scene.topic.id.0
            )
        };
        let (first, last) = (lock(got[0].row), lock(got[4].row));
        stranger.batch_execute(&last).await.unwrap();
        let settling = {
            let (worker, batch) = (worker.clone(), all(&got, &Settlement::Ack));
            tokio::spawn(async move { worker.settle(batch).await.unwrap() })
        };
        // It waits twice for a second, then not again: who looks late sees it put off.
        until("the ack waits", async || settling.is_finished() || scene.lock_waits().await > 0)
            .await;
        // Granted only because the ack was rolled back: the row still exists.
        stranger.batch_execute(&first).await.unwrap();
        stranger.batch_execute("ROLLBACK").await.unwrap();
        let outcomes = settling.await.unwrap();
        let done =
            |o: &SettleOutcome| matches!(o, SettleOutcome::Settled | SettleOutcome::Deferred);
        assert!(outcomes.iter().all(done), "{outcomes:?}");
        for _ in 0..10 {
            assert_eq!(bodies(&worker.claim(scene.topic.id, 9).await.unwrap().deliveries).len(), 0);
        }
        until("the ack is through", async || scene.hot().await == (0, 0, 0)).await;
    }
}

/// S6: a stalled consumer whose name was reused acked a claim that was no longer its own.
#[tokio::test]
async fn s6_a_stalled_consumer_cannot_ack_the_claim_of_its_namesake() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let name = "the same name";
    let stalled = scene.worker_with(|options| options.client_id = name.to_owned()).await;
    let got = claim_n(&stalled, scene.topic.id, 2).await;
    let claims = claims_of(&mut scene.conn, stalled.id()).await;
    take(&mut scene.conn, &claims[0], Why::Crashed { rows_held: 2 }).await;
    let namesake = scene.worker_with(|options| options.client_id = name.to_owned()).await;
    let again = claim_n(&namesake, scene.topic.id, 2).await;
    assert_eq!(got[0].msg_id, again[0].msg_id);
    for end in [Settlement::Ack, Settlement::Release, retry(Duration::ZERO)] {
        let outcomes = stalled.settle(all(&got, &end)).await.unwrap();
        assert_eq!(outcomes, [SettleOutcome::Fenced; 2], "{end:?}");
    }
    assert_eq!(scene.hot().await, (2, 2, 1));
    settle_all(&namesake, all(&again, &Settlement::Ack)).await;
}

/// S6, the same worker: its own earlier claim of the row is as invalid as another worker's.
#[tokio::test]
async fn s6_an_earlier_claim_of_the_same_worker_settles_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let first = claim_n(&worker, scene.topic.id, 1).await;
    settle_all(&worker, all(&first, &Settlement::Release)).await;
    let second = claim_n(&worker, scene.topic.id, 1).await;
    assert_ne!(first[0].claim_no, second[0].claim_no);
    let outcomes = worker.settle(all(&first, &Settlement::Ack)).await.unwrap();
    assert_eq!(outcomes, [SettleOutcome::Fenced]);
    assert_eq!(scene.hot().await, (1, 1, 1));
    settle_all(&worker, all(&second, &Settlement::Ack)).await;
}

/// S7: a handler that took longer than a minute ran twice at once. Here a claim lives as long as
/// its worker, for any number of leases.
#[tokio::test]
async fn s7_a_long_run_is_never_started_twice() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let short = |options: &mut rowmq_core::worker::WorkerOptions| {
        options.lease = Duration::from_secs(10);
        options.beat = Duration::from_millis(500);
    };
    let (busy, idle) = (scene.worker_with(short).await, scene.worker_with(short).await);
    let got = claim_n(&busy, scene.topic.id, 1).await;
    let end = scene.number("SELECT UNIX_TIMESTAMP()").await + 11;
    until("more than a lease is over", async || {
        assert!(idle.claim(scene.topic.id, 1).await.unwrap().deliveries.is_empty());
        scene.number("SELECT UNIX_TIMESTAMP()").await > end
    })
    .await;
    settle_all(&busy, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

/// S8: `NOT IN ()` was a syntax error, and one NULL in the list silenced the janitor for ever. Our
/// statements never build a list into their text, and empty lists cause no error.
#[tokio::test]
async fn s8_empty_lists_and_missing_values_are_no_error_and_hide_nothing() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let conn = &mut scene.conn;
    let nobody = WorkerId(4711);
    let start = Fence { worker: WorkerId(0), claim_no: ClaimNo(0) };
    assert_eq!(rescue::zombie_claims(conn, start, 10).await.unwrap(), []);
    assert_eq!(rescue::orphan_claims(conn, start, 10).await.unwrap(), []);
    assert_eq!(rescue::timed_claims(conn, start, 10).await.unwrap(), []);
    assert_eq!(claim::of_worker(conn, nobody, ClaimNo(0)).await.unwrap(), []);
    assert_eq!(claim::forget(conn, nobody, &[]).await.unwrap(), 0);
    assert_eq!(worker::alive(conn).await.unwrap(), []);
    assert_eq!(worker::find(conn, nobody).await.unwrap(), None);
    assert!(!process_list::show(conn).await.unwrap().is_empty(), "its own connection");
    let fence = Fence { worker: nobody, claim_no: ClaimNo(1) };
    let nothing = settle::ClaimedRows {
        fence,
        topic: scene.topic.id,
        priority: Priority::default(),
        rows: [].into_iter().collect(),
    };
    assert_eq!(settle::ack(conn, &nothing).await.unwrap(), 0);
    assert_eq!(settle::release(conn, &nothing).await.unwrap(), 0);
    assert!(settle::lock_own(conn, &nothing).await.unwrap().is_empty());
    moves::to_scheduled(conn, &nothing, Moment::After(Duration::ZERO), None).await.unwrap();
    moves::to_dead(conn, &nothing, DeadCause::Handler, "").await.unwrap();
    let claim = Claim {
        fence,
        topic: scene.topic.id,
        priority: Priority::default(),
        lo: RowId(1),
        hi: RowId(u64::MAX),
        n: 0,
        conn: ConnId(0),
    };
    assert_eq!(take(conn, &claim, Why::Crashed { rows_held: 0 }).await.freed, 0);
    // Workers with NULL in optional columns are found like any other.
    let insert = "INSERT INTO queue_worker (id, instance, client_id, version, account, server_uid, \
         server_started_at, lease_ms, beat_at, registered_at, state) VALUES \
         (5, REPEAT('x', 16), '', '', '', '', 0, 0, UTC_TIMESTAMP(), UTC_TIMESTAMP(), 'dead')";
    scene.sql(insert).await;
    scene.sql("INSERT INTO queue_claim VALUES (5, 1, 1, 5, 1, 1, 1, 0, UTC_TIMESTAMP())").await;
    let zombies = rescue::zombie_claims(&mut scene.conn, start, 10).await.unwrap();
    assert_eq!(zombies.len(), 1);
}

/// S9: ids were cut to 32 bits.
#[tokio::test]
async fn s9_ids_beyond_32_and_63_bits_make_the_whole_round() {
    for first in ["4294967300", "9223372036854775900"] {
        for strategy in STRATEGIES {
            let mut scene = Scene::new().await;
            for table in ["queue_message", "queue_scheduled", "queue_worker", "queue_dead"] {
                // InnoDB accepts no smaller value than this afterwards.
                scene.sql(&format!("ALTER TABLE {table} AUTO_INCREMENT = {first}")).await;
            }
            scene.enqueue(4).await;
            let worker = scene.worker_by(strategy).await;
            assert!(worker.id().0 >= first.parse().unwrap());
            let got = claim_n(&worker, scene.topic.id, 3).await;
            assert!(got[0].row.0 >= first.parse().unwrap());
            settle_all(&worker, all(&got[..1], &retry(Duration::ZERO))).await;
            settle_all(&worker, all(&got[1..2], &Settlement::Release)).await;
            scene
                .sql("UPDATE queue_message SET conn_id = 8306449708033769879 WHERE worker_id <> 0")
                .await;
            scene.sql("UPDATE queue_claim SET conn_id = 8306449708033769879").await;
            let claims = claims_of(&mut scene.conn, worker.id()).await;
            assert_eq!(claims[0].conn, ConnId(8_306_449_708_033_769_879));
            assert_eq!(take(&mut scene.conn, &claims[0], Why::NotNeeded).await.freed, 1);
            crate::moves::promote(&mut scene.conn, 10).await;
            let other = scene.worker_by(strategy).await;
            let got = claim_n(&other, scene.topic.id, 4).await;
            settle_all(&other, all(&got, &Settlement::Ack)).await;
            assert_eq!(scene.hot().await.0, 0);
        }
    }
}

/// Looks at the server while it handles a message.
struct Watchful {
    conn: Mutex<Option<AsyncMysqlConnection>>,
    database: String,
    open: Mutex<Vec<String>>,
}

impl RawHandler for Watchful {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        let conn = self.conn.lock().unwrap().take();
        let mut conn = conn.unwrap();
        let open = lasting_transactions_of(&mut conn, &self.database).await;
        self.open.lock().unwrap().extend(open.iter().map(|open| format!("{open:?}")));
        *self.conn.lock().unwrap() = Some(conn);
        Ok(())
    }
}

/// S10: a snapshot stayed open while the handler worked, and held up purge for the whole server.
#[tokio::test]
async fn s10_no_transaction_is_open_while_a_handler_runs() {
    let queue = TestQueue::new().await;
    queue.topic("t").await;
    for i in 0..5 {
        queue.enqueue("t", &NewMessage::new(i.to_string())).await;
    }
    let handler = Watchful {
        conn: Mutex::new(Some(queue.connect().await)),
        database: queue.database().name().to_owned(),
        open: Mutex::default(),
    };
    assert_eq!(queue.drain_raw("t", &handler).await.acked, 5);
    assert_eq!(*handler.open.lock().unwrap(), Vec::<String>::new());
}

/// S11: some statements had never been run: syntax errors, a table that did not exist. All our
/// statements are in the store, and this suite runs every function of it, on both servers.
#[test]
fn s11_every_statement_is_run_by_this_suite() {
    fn texts(folder: &Path) -> Vec<String> {
        if folder.is_file() {
            return vec![std::fs::read_to_string(folder).unwrap()];
        }
        let entries = std::fs::read_dir(folder).unwrap();
        entries.flat_map(|entry| texts(&entry.unwrap().path())).collect()
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let suite = texts(&here.join("tests/conformance")).concat();
    let core = here.join("../queue-core/src");
    // Functions that worker, rescue, doctor, migration and topics call for the suite count as run
    // by them.
    let parts = "worker rescue.rs stream doctor.rs doctor migration.rs enqueue.rs enqueue find \
         trace dead.rs waiting.rs cancellation.rs throughput.rs topic";
    let callers: String =
        parts.split_whitespace().map(|part| texts(&core.join(part)).concat()).collect();
    let mut unused = BTreeSet::new();
    for text in texts(&core.join("store")) {
        for function in text.split("pub async fn ").skip(1) {
            let name = function.split(['(', '<']).next().unwrap();
            let call = format!("{name}(");
            let used = suite.contains(&format!("::{call}")) || callers.contains(&call);
            if !used && !suite.contains(&call) {
                unused.insert(name.to_owned());
            }
        }
    }
    assert_eq!(unused, BTreeSet::new(), "functions of the store that nothing here runs");
}

/// S14: times came from clients' clocks. Here they are the server's, in UTC, whatever time zone the
/// session has.
#[tokio::test]
async fn s14_every_time_is_the_servers_in_utc() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 3).await;
    let fence = Fence { worker: worker.id(), claim_no: got[0].claim_no };
    let later = Moment::After(Duration::from_secs(1000));
    for (zone, delivery) in [("+13:00", &got[0]), ("-12:00", &got[1]), ("+00:00", &got[2])] {
        let mut conn = scene.db.connect().await;
        conn.batch_execute(&format!("SET time_zone = '{zone}'; BEGIN")).await.unwrap();
        let own = settle::ClaimedRows {
            fence,
            topic: scene.topic.id,
            priority: delivery.priority,
            rows: [delivery.row].into_iter().collect(),
        };
        moves::to_scheduled(&mut conn, &own, later, None).await.unwrap();
        conn.batch_execute("COMMIT").await.unwrap();
    }
    let wrong = "SELECT COUNT(*) FROM queue_scheduled \
         WHERE ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), due_at) - 1000) > 60";
    assert_eq!(scene.number(wrong).await, 0);
    // The server's clock moves them: for a session an hour ahead they are due.
    let mut ahead = scene.db.connect().await;
    ahead.batch_execute("SET timestamp = UNIX_TIMESTAMP() + 3600").await.unwrap();
    assert_eq!(crate::moves::promote(&mut ahead, 10).await, 3);
}

/// S15: bodies of three-byte UTF-8 lost their emoji.
#[tokio::test]
async fn s15_every_byte_survives_every_way_through_the_tables() {
    let bodies: [&[u8]; 6] = [
        "🦀 naïve \u{0}".as_bytes(),
        &[0; 300],
        &[0xFF, 0xFE, 0x00, 0xC3, 0x28, 0xA0],
        b"'; DROP TABLE queue_message; -- ? % _ \\ \"",
        b"",
        &[0xE2, 0x82],
    ];
    for strategy in STRATEGIES {
        let mut scene = Scene::new().await;
        let sent: Vec<_> = bodies
            .iter()
            .map(|body| {
                NewMessage::new(*body)
                    .with_key(*body)
                    .with_biz_id([body, &b"x"[..]].concat().get(..200).unwrap_or(body))
                    .with_header("🦀", "\u{0}\"\\ ☃")
            })
            .map(|mut message| {
                message.key.iter_mut().for_each(|key| key.truncate(255));
                message
            })
            .collect();
        enqueue_all(&mut scene.conn, &scene.topic.name, &sent).await.unwrap();
        let worker = scene.worker_by(strategy).await;
        for round in 0..3 {
            let mut got = claim_n(&worker, scene.topic.id, sent.len()).await;
            got.sort_by_key(|delivery| delivery.msg_id);
            for (got, sent) in got.iter().zip(&sent) {
                assert_eq!((&got.body, &got.key), (&sent.body, &sent.key), "{round}");
                assert_eq!((&got.biz_id, &got.headers), (&sent.biz_id, &sent.headers), "{round}");
                assert_eq!(got.msg_id, sent.msg_id);
            }
            let end = if round == 1 { Settlement::Release } else { retry(Duration::ZERO) };
            settle_all(&worker, all(&got, &end)).await;
            crate::moves::promote(&mut scene.conn, 100).await;
        }
        let got = claim_n(&worker, scene.topic.id, sent.len()).await;
        let end =
            Settlement::DeadLetter { cause: DeadCause::Handler, error: "🦀 \u{0}".to_owned() };
        settle_all(&worker, all(&got, &end)).await;
        let hexes =
            scene.text("SELECT GROUP_CONCAT(HEX(body) ORDER BY msg_id) FROM queue_dead").await;
        let expected: Vec<String> = bodies
            .iter()
            .map(|body| body.iter().map(|byte| format!("{byte:02X}")).collect())
            .collect();
        assert_eq!(hexes, expected.join(","));
        let error = "SELECT HEX(MAX(last_error)) FROM queue_dead";
        assert_eq!(scene.text(error).await, "F09FA6802000");
        // The floors, too, are read as they were written.
        floor::pulse(&mut scene.conn).await.unwrap();
    }
}
