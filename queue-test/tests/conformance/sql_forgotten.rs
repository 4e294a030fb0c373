//! What a SQL session remembers of its claims, and what it forgets: a failed claim, and a claim
//! whose messages other sessions took away.

use std::time::Duration;

use rowmq_core::cancellation::{Attempt, Cancellation, Claims, Was};
use rowmq_core::store::inspect::{self, MessageTable};
use rowmq_core::{NewMessage, enqueue};
use rowmq_test::until;

use crate::scene::Scene;
use crate::sql_consumer::{SqlConsumer, bodies};
use crate::sql_faults::settle;

/// Creates two topics with messages: `t` and `u`.
async fn two_topics() -> Scene {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("u").await;
    scene.enqueue(2).await;
    for body in ["u0", "u1"] {
        enqueue(&mut scene.conn, &other.name, &NewMessage::new(body)).await.unwrap();
    }
    scene
}

/// Locks the gap where a claim inserts its record.
const HOLD_CLAIMS: &str = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION; \
     SELECT * FROM queue_claim FOR UPDATE";

/// Lets a claim of `t` fail, so that a claim of `u` gets its number.
async fn assert_the_other_topics_claim_stays(scene: &mut Scene, consumer: &mut SqlConsumer) {
    let held = consumer.claim_of("u", 2).await;
    assert_eq!(bodies(&held), ["u0", "u1"]);
    assert_eq!(consumer.claim(1).await.len(), 1);
    assert_eq!(scene.hot().await, (4, 3, 2));
    assert_eq!(consumer.settle_all(&held, "ack").await, "ack,ack");
}

/// P1: the rollback of a claim that met a lock frees the claim's number.
#[tokio::test]
async fn a_claim_that_met_a_lock_releases_no_claim_of_another_topic() {
    let mut scene = two_topics().await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    scene.sql(HOLD_CLAIMS).await;
    consumer.run("SET SESSION innodb_lock_wait_timeout = 1").await;
    assert_eq!(consumer.claim(1).await.len(), 0);
    scene.sql("ROLLBACK").await;
    assert_the_other_topics_claim_stays(&mut scene, &mut consumer).await;
}

/// P1 by `KILL QUERY`, after which no SQL handler runs.
#[tokio::test]
async fn a_claim_that_was_killed_releases_no_claim_of_another_topic() {
    for mend in ["ROLLBACK", "DO 0"] {
        let mut scene = two_topics().await;
        let mut consumer = SqlConsumer::new(scene.db.url()).await;
        scene.sql(HOLD_CLAIMS).await;
        consumer.killed_waiting(&mut scene, "CALL queue_claim('t', 1, NULL)").await;
        consumer.run(mend).await;
        assert_the_other_topics_claim_stays(&mut scene, &mut consumer).await;
    }
}

/// Creates a consumer that holds the suspect `0`; the message `1` waits behind it.
async fn with_a_suspect() -> (Scene, SqlConsumer, String, NewMessage) {
    let mut scene = Scene::new().await;
    let message = scene.enqueue(2).await.remove(0);
    scene.sql("UPDATE queue_message SET priority = 105 WHERE body = '0'").await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_and_keep(1).await;
    assert_eq!(bodies(&held), ["0"]);
    (scene, consumer, held[0].delivery.clone(), message)
}

async fn take_away(scene: &Scene, message: &NewMessage) {
    let mut cancellation = Cancellation::new(&scene.topic, message.msg_id);
    let answer =
        cancellation.attempt(&mut scene.db.session().await, Claims::TakeAway).await.unwrap();
    assert_eq!(answer, Attempt::Cancelled(Was::Fenced));
}

/// P2: an operator cancels a poison message, which is a suspect, and nothing is claimed beside a
/// suspect.
#[tokio::test]
async fn a_session_claims_on_after_its_suspect_was_cancelled() {
    let (mut scene, mut consumer, delivery, message) = with_a_suspect().await;
    take_away(&scene, &message).await;
    assert_eq!(consumer.refused(&settle(&delivery, "retry")).await, 31015);
    assert_eq!(bodies(&consumer.claim_and_keep(1).await), ["1"]);
    assert_eq!(scene.hot().await, (1, 1, 1), "the claim without a message is forgotten");
}

/// P2: the same with `topic delete --purge`; there is no settle in between.
#[tokio::test]
async fn a_session_claims_on_after_its_suspect_was_purged() {
    let (mut scene, mut consumer, _, _) = with_a_suspect().await;
    let purged = inspect::purge_some(&mut scene.conn, MessageTable::Ready, scene.topic.id, 10);
    assert_eq!(purged.await.unwrap(), 2);
    scene.enqueue(1).await;
    assert_eq!(consumer.claim_and_keep(1).await.len(), 1);
    assert_eq!(scene.hot().await, (1, 1, 1), "the claim without a message is forgotten");
}

/// P2: the rest of a claim is settled in a snapshot that still shows the cancelled message.
#[tokio::test]
async fn a_session_takes_suspects_after_a_cancel_that_its_snapshot_did_not_see() {
    let mut scene = Scene::new().await;
    let message = scene.enqueue(3).await.remove(0);
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim(2).await;
    consumer.run("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    consumer.run("START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    take_away(&scene, &message).await;
    consumer.settle(&held[1], "ack").await;
    consumer.run("COMMIT").await;
    scene.sql("UPDATE queue_message SET priority = 105 WHERE body = '2'").await;
    assert_eq!(bodies(&consumer.claim_and_keep(1).await), ["2"]);
    assert_eq!(scene.hot().await, (1, 1, 1), "the claim without a message is forgotten");
}

/// While a claim still has a message, none of it is given up.
#[tokio::test]
async fn a_claim_keeps_what_a_cancel_has_left_of_it() {
    let mut scene = Scene::new().await;
    let message = scene.enqueue(3).await.remove(0);
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_and_keep(2).await;
    take_away(&scene, &message).await;
    assert_eq!(bodies(&consumer.claim_and_keep(1).await), ["2"]);
    consumer.settle(&held[1], "ack").await;
    assert_eq!(scene.hot().await, (1, 1, 1));
}

/// After a mass crash many messages are suspects; the others do not wait for all of them.
#[tokio::test]
async fn ordinary_messages_have_their_turn_between_suspects() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let suspects = "UPDATE queue_message SET priority = 105 WHERE body IN ('0', '1', '2')";
    scene.sql(suspects).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut order = Vec::new();
    for _ in 0..4 {
        let held = consumer.claim_and_keep(1).await;
        order.extend(bodies(&held));
        consumer.settle(&held[0], "ack").await;
    }
    // Where nothing else is ready, suspects do not wait.
    assert_eq!(order, ["0", "3", "1", "2"]);
    scene.enqueue(1).await;
    scene.sql("UPDATE queue_message SET priority = 105").await;
    scene.enqueue(1000).await;
    until("a suspect has its turn", async || {
        let held = consumer.claim_and_keep(1).await;
        let is_suspect = scene.number("SELECT COUNT(*) FROM queue_claim WHERE priority = 105");
        let is_suspect = is_suspect.await == 1;
        consumer.settle(&held[0], "ack").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        is_suspect
    })
    .await;
}
