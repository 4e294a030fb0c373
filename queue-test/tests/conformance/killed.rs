//! What workers, and producers by SQL, do when their statements are killed (KILL QUERY) repeatedly:
//! MariaDB then reports for some that they found or changed nothing, and no error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::connection::{ServerUrl, transaction};
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::worker::{SettleOutcome, Worker};
use rowmq_core::{Delivery, Error, NewMessage, enqueue_to};

use crate::scene::{Scene, all, number, retry};
use crate::sql_contract::client;
use crate::sql_faults::kill_often as kill_often_session;
use crate::sql_send_all::call;
use crate::streams::Stream;

/// Kills what the worker's sessions run until `ended`; returns how often.
async fn kill_often(url: &ServerUrl, worker: &Worker, ended: &AtomicBool) -> u32 {
    let mut conn = client(url).await;
    let sessions =
        format!("SELECT conn_id, life_conn_id FROM queue_worker WHERE id = {}", worker.id());
    let mut times = 0;
    while !ended.load(Ordering::Relaxed) {
        let (work, life): (u64, u64) = conn.query_first(&sessions).await.unwrap().unwrap();
        let session = if times % 8 == 0 { life } else { work };
        // This fails if the session is gone and the worker opens another.
        times += u32::from(conn.query_drop(format!("KILL QUERY {session}")).await.is_ok());
        // The pauses grow, so that the work progresses on a machine of any speed.
        let pause = 1 + u64::from(times * 5 % 7) + u64::from(times / 40);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    times
}

/// Kills what the session runs, without a pause, until `ended`.
async fn kill_at_once(url: &ServerUrl, session: u64, ended: &AtomicBool) {
    let mut killer = client(url).await;
    while !ended.load(Ordering::Relaxed) {
        killer.query_drop(format!("KILL QUERY {session}")).await.unwrap();
    }
}

/// Settles until everything is settled: half acked, half retried in an hour.
async fn settle_all(worker: &Worker, deliveries: &[Delivery]) {
    let (odd, even): (Vec<&Delivery>, Vec<&Delivery>) =
        deliveries.iter().partition(|one| one.body.last().is_some_and(|last| last % 2 == 1));
    let mut batch = all(even, &Settlement::Ack);
    batch.extend(all(odd, &retry(Duration::from_secs(3600))));
    loop {
        match worker.settle(batch.clone()).await {
            Ok(outcomes) => {
                assert!(!outcomes.contains(&SettleOutcome::Fenced), "{outcomes:?} of {batch:?}");
                return;
            }
            Err(error) => assert!(error.fault().is_transient(), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_queue_loses_and_doubles_nothing() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let (url, topic, ended) = (scene.db.url().clone(), scene.topic.id, AtomicBool::new(false));
    let works = async {
        let (mut handled, mut rounds) = (0, 0);
        while rounds < 60 {
            handled += scene.enqueue(10).await.len();
            rounds += 1;
            let mut empty = 0;
            while scene.hot().await.0 > 0 {
                let claimed = worker.claim(topic, 4).await;
                let deliveries = claimed.map(|claimed| claimed.deliveries).unwrap_or_default();
                empty = if deliveries.is_empty() { empty + 1 } else { 0 };
                assert!(empty < 5000, "stuck: {:?}", scene.hot().await);
                settle_all(&worker, &deliveries).await;
            }
        }
        ended.store(true, Ordering::Relaxed);
        handled
    };
    let (handled, kills) = tokio::join!(works, kill_often(&url, &worker, &ended));
    assert!(kills > 50, "{kills}");
    // A claim whose commit was killed is forgotten by the next settlement that is not.
    scene.enqueue(1).await;
    settle_all(&worker, &worker.claim(topic, 1).await.unwrap().deliveries).await;
    assert_eq!(scene.hot().await, (0, 0, 0));
    let again = scene.number("SELECT COUNT(*) FROM queue_scheduled").await;
    assert_eq!(usize::try_from(again).unwrap(), handled / 2);
}

/// A killed ROLLBACK may leave the transaction open, and the next BEGIN commits what it has done.
#[tokio::test]
async fn a_transaction_that_fails_leaves_nothing() {
    let mut scene = Scene::new().await;
    scene.sql("CREATE TABLE half (id BIGINT AUTO_INCREMENT PRIMARY KEY)").await;
    let mut conn = scene.db.connect().await;
    let session = u64::try_from(number(&mut conn, "SELECT CONNECTION_ID()").await).unwrap();
    let (url, ended) = (scene.db.url().clone(), AtomicBool::new(false));
    let works = async {
        for _ in 0..10_000 {
            let failed = transaction(&mut conn, "fail", async |conn| {
                // It may be killed.
                drop(conn.batch_execute("INSERT INTO half VALUES ()").await);
                Err::<(), _>(Error::WorkerStopped)
            });
            assert!(failed.await.is_err());
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(works, kill_at_once(&url, session, &ended));
    assert_eq!(scene.number("SELECT COUNT(*) FROM half").await, 0);
}

/// The same for the savepoint of an enqueue, whose caller commits all the same.
#[tokio::test]
async fn an_enqueue_that_fails_leaves_nothing() {
    let mut scene = Scene::new().await;
    let mut conn = scene.db.connect().await;
    let session = u64::try_from(number(&mut conn, "SELECT CONNECTION_ID()").await).unwrap();
    let (url, ended) = (scene.db.url().clone(), AtomicBool::new(false));
    let topic = scene.topic.clone();
    let works = async {
        for n in 0..10_000 {
            let body = format!("{n}");
            let later = NewMessage::new(body.clone()).with_delay(Duration::from_secs(3600));
            // Each may be killed; a BEGIN commits what a killed COMMIT has left.
            drop(conn.batch_execute("BEGIN").await);
            drop(enqueue_to(&mut conn, &topic, &[NewMessage::new(body), later]).await);
            drop(conn.batch_execute("COMMIT").await);
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(works, kill_at_once(&url, session, &ended));
    drop(conn);
    let in_part = "SELECT COUNT(*) FROM (SELECT body FROM \
         (SELECT body FROM queue_message UNION ALL SELECT body FROM queue_scheduled) all_of_them \
         GROUP BY body HAVING COUNT(*) <> 2) in_part";
    assert_eq!(scene.number(in_part).await, 0);
}

/// A batch by SQL is stored whole or not at all, if a call that fails is rolled back.
#[tokio::test]
async fn a_batch_by_sql_is_whole_or_not_at_all() {
    const BATCHES: u64 = 600;
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let session = u64::from(conn.id());
    let (url, ended) = (scene.db.url().clone(), AtomicBool::new(false));
    let works = async {
        let mut stored: u64 = 0;
        for n in 0..BATCHES {
            let body = serde_json::json!({"body": n.to_string()});
            let batch = call("t", &serde_json::json!([body, body, body, body]));
            let begun = conn.query_drop("START TRANSACTION").await.is_ok();
            if begun && conn.query_drop(batch).await.is_ok() {
                stored += u64::from(conn.query_drop("COMMIT").await.is_ok());
            }
            while conn.query_drop("ROLLBACK").await.is_err() {}
        }
        ended.store(true, Ordering::Relaxed);
        stored
    };
    let (stored, ()) = tokio::join!(works, kill_often_session(&url, session, &ended));
    assert!((1..BATCHES).contains(&stored), "{stored} of {BATCHES} calls were not killed");
    let batches = scene.number("SELECT COUNT(DISTINCT body) FROM queue_message").await;
    assert!(batches.unsigned_abs() >= stored, "{batches} of {stored}");
    let in_part = "SELECT COUNT(*) FROM \
         (SELECT body FROM queue_message GROUP BY body HAVING COUNT(*) <> 4) in_part";
    assert_eq!(scene.number(in_part).await, 0);
}

/// Acks until the server has answered, and returns the bodies of those that are settled.
async fn ack(worker: &Worker, deliveries: Vec<Delivery>) -> Vec<Vec<u8>> {
    loop {
        match worker.settle(all(&deliveries, &Settlement::Ack)).await {
            Ok(outcomes) => {
                assert!(!outcomes.contains(&SettleOutcome::Fenced), "{outcomes:?}");
                let ended = deliveries.into_iter().zip(outcomes);
                let settled = ended.filter(|(_, outcome)| *outcome == SettleOutcome::Settled);
                return settled.map(|(delivery, _)| delivery.body).collect();
            }
            Err(error) => assert!(error.fault().is_transient(), "{error}"),
        }
    }
}

#[tokio::test]
async fn acks_with_the_next_claim_lose_and_double_nothing() {
    let mut scene = Scene::new().await;
    let worker = scene.worker().await;
    let (url, topic, ended) = (scene.db.url().clone(), scene.topic.id, AtomicBool::new(false));
    let works = async {
        for _ in 0..60 {
            scene.enqueue(10).await;
            let (mut settled, mut deliveries, mut empty) = (Vec::new(), Vec::new(), 0);
            while !deliveries.is_empty() || scene.hot().await.0 > 0 {
                // Each ack but the first waits behind another command, as the claim does.
                let (first, second, claimed) = tokio::join!(
                    ack(&worker, deliveries.split_off(deliveries.len() / 2)),
                    ack(&worker, std::mem::take(&mut deliveries)),
                    worker.claim(topic, 4),
                );
                settled.extend(first.into_iter().chain(second));
                deliveries = claimed.map(|claimed| claimed.deliveries).unwrap_or_default();
                empty = if deliveries.is_empty() { empty + 1 } else { 0 };
                assert!(empty < 5000, "stuck: {:?}", scene.hot().await);
            }
            settled.sort();
            let all = settled.len();
            settled.dedup();
            assert_eq!(settled.len(), all, "a message was settled twice");
        }
        ended.store(true, Ordering::Relaxed);
    };
    let ((), kills) = tokio::join!(works, kill_often(&url, &worker, &ended));
    assert!(kills > 50, "{kills}");
    scene.enqueue(1).await;
    ack(&worker, worker.claim(topic, 1).await.unwrap().deliveries).await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn a_stream_loses_and_doubles_nothing() {
    let mut stream = Stream::new(2).await;
    let group = stream.group("g", false).await;
    let worker = stream.worker().await;
    let (url, ended) = (stream.db.url().clone(), AtomicBool::new(false));
    let left = "SELECT (SELECT COUNT(*) FROM queue_range) \
        + (SELECT SUM(p.next_offset - c.next_offset) FROM queue_partition p \
           JOIN queue_cursor c ON c.partition_no = p.partition_no)";
    let works = async {
        let mut handled = 0;
        for round in 0..60 {
            handled += stream.enqueue(round * 10..round * 10 + 10).await.len();
            stream.sequence().await;
            let mut empty = 0;
            while stream.number(left).await > 0 {
                let claimed = worker.claim_range(group.group().unwrap(), 4).await;
                let deliveries = claimed.map(|claimed| claimed.deliveries).unwrap_or_default();
                empty = if deliveries.is_empty() { empty + 1 } else { 0 };
                assert!(empty < 5000, "stuck: {}", stream.number(left).await);
                settle_all(&worker, &deliveries).await;
            }
        }
        ended.store(true, Ordering::Relaxed);
        handled
    };
    let (handled, kills) = tokio::join!(works, kill_often(&url, &worker, &ended));
    assert!(kills > 50, "{kills}");
    let again = stream.number("SELECT COUNT(*) FROM queue_scheduled").await;
    assert_eq!(usize::try_from(again).unwrap(), handled / 2);
}

/// Repeats the call in its own transaction until it succeeds.
async fn call_until_done(conn: &mut Conn, call: &str) {
    loop {
        let mut done = Ok(());
        for sql in ["START TRANSACTION", call, "COMMIT"] {
            if done.is_ok() {
                done = conn.query_drop(sql).await;
            }
        }
        match done {
            Ok(()) => return,
            Err(mysql_async::Error::Server(error)) => {
                // 1615: MySQL gives up on a statement whose tables the sessions of other databases
                // push out of its cache again and again.
                assert!([1317, 1305, 1615].contains(&error.code), "{call}: {error}");
                while conn.query_drop("ROLLBACK").await.is_err() {}
            }
            Err(error) => panic!("{call}: {error}"),
        }
    }
}

/// What is wrong after `body` has replaced the message of the key, or was enqueued behind it.
const ASTRAY: &str = "SELECT CONCAT(COUNT(*), ' wait, ', COALESCE(MAX(CONVERT(s.body USING latin1)), ''), \
    IF(COUNT(u.unique_key), '', ': the key is not its')) \
    FROM queue_scheduled s LEFT JOIN queue_unique u \
      ON u.unique_key = s.unique_key AND u.msg_id = s.msg_id AND u.scheduled_id = s.id";

#[tokio::test]
async fn keys_and_ids_of_a_producer_by_sql_hold() {
    let settings = TopicSettings {
        dedupe_window: Some(Duration::from_secs(3600)),
        ..TopicSettings::default()
    };
    let mut scene = Scene::with(&settings).await;
    let (url, ended) = (scene.db.url().clone(), AtomicBool::new(false));
    let mut conn = client(&url).await;
    let session: u64 = conn.query_first("SELECT CONNECTION_ID()").await.unwrap().unwrap();
    let works = async {
        let mut astray = Vec::new();
        for round in 0..1000 {
            let call = |id: &str, choice: &str| {
                format!(
                    "CALL queue_send_unique('t', 'body {round}', JSON_OBJECT('unique', 'key', \
                     'on_conflict', '{choice}', 'deliver_in', '1h', 'id', {id}))"
                )
            };
            call_until_done(&mut conn, &call("NULL", "debounce")).await;
            let found = scene.text(ASTRAY).await;
            if found != format!("1 wait, body {round}") {
                astray.push(format!("{round}: {found}"));
            }
            // A message that its key refuses leaves its id unused.
            call_until_done(&mut conn, &call("UUID()", "keep")).await;
            if scene.number("SELECT COUNT(*) FROM queue_dedupe").await > 0 {
                astray.push(format!("{round}: a refused message has left its id"));
                scene.sql("DELETE FROM queue_dedupe").await;
            }
            if round % 3 == 0 {
                // As if it had been handled a moment ago.
                scene.sql("DELETE FROM queue_scheduled").await;
            }
        }
        ended.store(true, Ordering::Relaxed);
        astray
    };
    let (astray, ()) = tokio::join!(works, kill_often_session(&url, session, &ended));
    assert_eq!(astray, Vec::<String>::new());
}
