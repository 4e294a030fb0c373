//! Checkpoints by SQL, and deliveries that a session is asked to stop.

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::model::{Checkpoint, Percent, Settlement};
use rowmq_core::store::checkpoint;
use rowmq_test::until;

use crate::scene::{Scene, all, claim_n, settle as release};
use crate::sql_consumer::{Claimed, SqlConsumer};
use crate::sql_faults::settle;

fn save(delivery: &Claimed, state: &str) -> String {
    format!("CALL queue_checkpoint('{}', {state}, 40)", delivery.delivery)
}

/// Returns its delivery number, progress and state.
async fn last(
    consumer: &mut SqlConsumer,
    delivery: &Claimed,
) -> Option<(u32, Option<u8>, Vec<u8>)> {
    let call = format!("CALL queue_last_checkpoint('{}')", delivery.delivery);
    let row: Option<Row> = consumer.conn.query_first(call).await.unwrap();
    row.map(|row| {
        (row.get("delivery_no").unwrap(), row.get("progress").unwrap(), row.get("state").unwrap())
    })
}

#[tokio::test]
async fn a_checkpoint_by_sql_is_there_for_the_next_delivery_until_the_ack() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut held = consumer.claim(2).await;
    assert_eq!(last(&mut consumer, &held[0]).await, None);
    consumer.run(&save(&held[0], "x'00ff'")).await;
    consumer.run(&save(&held[1], "NULL")).await;
    assert_eq!(consumer.settle_all(&held, "release").await, "release,release");
    let mut other = SqlConsumer::new(scene.db.url()).await;
    held = other.claim(2).await;
    assert_eq!(last(&mut other, &held[0]).await, Some((1, Some(40), vec![0, 255])));
    assert_eq!(last(&mut other, &held[1]).await, Some((1, Some(40), vec![])));
    // A session that asks for it deletes it with its ack, of several in one call, too.
    other.run("START TRANSACTION").await;
    assert_eq!(other.settle_all(&held, "ack").await, "ack,ack");
    other.run("ROLLBACK").await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_checkpoint").await, 2);
    other.settle_all(&held, "ack").await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_checkpoint").await, 0);
}

#[tokio::test]
async fn a_checkpoint_is_read_by_the_library_and_by_sql() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut held = consumer.claim(1).await;
    consumer.run(&save(&held[0], "'page 7'")).await;
    consumer.settle(&held[0], "release").await;
    let worker = scene.worker().await;
    let again = claim_n(&worker, scene.topic.id, 1).await;
    let saved = checkpoint::read(&mut scene.conn, &again[0]).await.unwrap().expect("a checkpoint");
    assert_eq!(saved.checkpoint, Checkpoint::new("page 7").at(Percent::new(40)));
    let further = Checkpoint::new("page 8");
    checkpoint::save(&mut scene.conn, worker.id(), &again[0], &further).await.unwrap();
    release(&worker, all(&again, &Settlement::Release)).await;
    worker.stop().await.unwrap();
    held = consumer.claim(1).await;
    assert_eq!(last(&mut consumer, &held[0]).await, Some((2, None, b"page 8".to_vec())));
    // The statement itself checks this.
    scene.sql("UPDATE queue_checkpoint SET delivery_no = 5, state = 'later'").await;
    consumer.run(&save(&held[0], "'earlier'")).await;
    assert_eq!(last(&mut consumer, &held[0]).await, Some((5, None, b"later".to_vec())));
    scene.sql("UPDATE queue_checkpoint SET enqueued_at = enqueued_at - INTERVAL 1 DAY").await;
    assert_eq!(last(&mut consumer, &held[0]).await, None);
    consumer.run(&save(&held[0], "'of this one'")).await;
    assert_eq!(last(&mut consumer, &held[0]).await, Some((3, Some(40), b"of this one".to_vec())));
    consumer.settle(&held[0], "discard").await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_checkpoint").await, 0);
}

#[tokio::test]
async fn a_checkpoint_is_refused_to_a_session_that_does_not_hold_the_delivery() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut other = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(1).await;
    let read = format!("CALL queue_last_checkpoint('{}')", held[0].delivery);
    assert_eq!(other.claim(1).await.len(), 1);
    for call in [&save(&held[0], "'x'"), &read] {
        assert_eq!(other.refused(call).await, 31015, "{call}");
    }
    for (call, number) in [
        ("CALL queue_checkpoint('1.2', 'x', NULL)", 31022),
        ("CALL queue_checkpoint(NULL, 'x', NULL)", 31022),
        ("CALL queue_last_checkpoint('1.2.3,1.2.4')", 31022),
        (&*format!("CALL queue_checkpoint('{}', 'x', 101)", held[0].delivery), 31031),
        (&*format!("CALL queue_checkpoint('{}', 'x', -1)", held[0].delivery), 31031),
        (&*save(&held[0], "REPEAT('x', 1048577)"), 31031),
    ] {
        assert_eq!(consumer.refused(call).await, number, "{call}");
    }
    consumer.run(&save(&held[0], "REPEAT('x', 1048576)")).await;
    // The claim is not taken back while the transaction with the checkpoint is open.
    let free = "SELECT COUNT(*) FROM queue_message WHERE body = '0' FOR UPDATE SKIP LOCKED";
    consumer.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    consumer.run("START TRANSACTION").await;
    consumer.run(&save(&held[0], "'undone'")).await;
    assert_eq!(scene.number(free).await, 0);
    consumer.run("ROLLBACK").await;
    assert_eq!(scene.number(free).await, 1);
    let whole = last(&mut consumer, &held[0]).await.expect("a checkpoint").2;
    assert_eq!(whole.len(), 1 << 20);
    consumer.run(&settle(&held[0].delivery, "retry")).await;
    for call in [&save(&held[0], "'x'"), &read] {
        assert_eq!(consumer.refused(call).await, 31015, "{call}");
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_checkpoint").await, 1);
}

#[tokio::test]
async fn a_delivery_that_is_in_use_is_not_given_back_by_the_next_claim() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(1).await;
    consumer.run(&save(&held[0], "'x'")).await;
    assert_eq!(consumer.claim(1).await[0].body, "1");
    consumer.run(&settle(&held[0].delivery, "ack")).await;
}

#[tokio::test]
async fn an_ack_without_a_checkpoint_locks_no_place_of_another_one() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut other = SqlConsumer::new(scene.db.url()).await;
    let (held, neighbour) = (consumer.claim(1).await, other.claim(1).await);
    assert_eq!(last(&mut consumer, &held[0]).await, None);
    consumer.run("START TRANSACTION").await;
    consumer.settle(&held[0], "ack").await;
    other.run("SET SESSION innodb_lock_wait_timeout = 1").await;
    other.run(&save(&neighbour[0], "'x'")).await;
    consumer.run("COMMIT").await;
}

#[tokio::test]
async fn a_beat_says_which_deliveries_are_to_be_cancelled() {
    const ASKED: &str = "SELECT @queue_asked_to_stop";
    let mut scene = Scene::new().await;
    let messages = scene.enqueue(3).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(2).await;
    let mut other = SqlConsumer::new(scene.db.url()).await;
    assert_eq!(other.claim(1).await.len(), 1);
    let mut session = scene.db.session().await;
    let topic = scene.topic.clone();
    let mut cancellation = Cancellation::new(&topic, messages[1].msg_id);
    let asked = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
    assert!(matches!(asked, Attempt::Asked(_)), "{asked:?}");
    for one in [&mut consumer, &mut other] {
        one.run("CALL queue_beat()").await;
    }
    let stops: Option<String> = consumer.conn.query_first(ASKED).await.unwrap().unwrap();
    assert_eq!(stops.as_ref(), Some(&held[1].delivery));
    // Whatever the session has set.
    consumer.run("SET SESSION group_concat_max_len = 4").await;
    consumer.run("CALL queue_beat()").await;
    assert_eq!(consumer.conn.query_first(ASKED).await.unwrap(), Some(stops));
    let stops: Option<String> = other.conn.query_first(ASKED).await.unwrap().unwrap();
    assert_eq!(stops, None);
    consumer.settle(&held[1], "discard").await;
    let mut done = Attempt::Locked;
    until("it is found where it has gone", async || {
        done = cancellation.attempt(&mut session, Claims::Ask).await.unwrap();
        done != Attempt::Locked
    })
    .await;
    assert_eq!(done, Attempt::Cancelled(Was::Stopped));
    consumer.run("CALL queue_beat()").await;
    let stops: Option<String> = consumer.conn.query_first(ASKED).await.unwrap().unwrap();
    assert_eq!(stops, None);
}
