//! Several deliveries settled by one call of the SQL contract: all of them, or none.

use queue_core::{NewMessage, enqueue};

use crate::scene::Scene;
use crate::sql_consumer::{Claimed, SqlConsumer, deliveries};
use crate::sql_contract::refusal;

fn call(deliveries: &str, verdict: &str) -> String {
    format!("CALL queue_settle('{deliveries}', '{verdict}', NULL, NULL)")
}

/// A session with so many deliveries, of two claims.
async fn holder(scene: &mut Scene, n: usize) -> (SqlConsumer, Vec<Claimed>) {
    scene.enqueue(n).await;
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let mut held = consumer.claim_n(2).await;
    held.extend(consumer.claim_n(n - 2).await);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_claim").await, 2);
    (consumer, held)
}

#[tokio::test]
async fn several_of_several_claims_are_settled_by_one_call() {
    let mut scene = Scene::new().await;
    let (mut consumer, mut held) = holder(&mut scene, 6).await;
    // In any order.
    held.swap(0, 4);
    assert_eq!(consumer.settle_all(&held[..4], "ack").await, "ack,ack,ack,ack");
    assert_eq!(scene.hot().await, (2, 2, 2));
    consumer.run("START TRANSACTION").await;
    assert_eq!(consumer.settle_all(&held[4..], "retry").await, "retry,retry");
    consumer.run("ROLLBACK").await;
    assert_eq!(scene.hot().await, (2, 2, 2));
    assert_eq!(consumer.settle_all(&held[4..], "release").await, "release,release");
    assert_eq!(scene.hot().await, (2, 0, 0));
    let counted = "SELECT CONCAT(done, ' ', failed) FROM queue_throughput";
    assert_eq!(scene.text(counted).await, "4 0");
}

#[tokio::test]
async fn what_became_of_each_is_told_in_their_order() {
    let mut scene = Scene::new().await;
    for attempts in [1, 2, 1] {
        let message = NewMessage::new("m").with_max_attempts(attempts.try_into().unwrap());
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    }
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_n(3).await;
    assert_eq!(consumer.settle_all(&held, "retry").await, "dead-letter,retry,dead-letter");
}

#[tokio::test]
async fn where_one_of_them_is_not_held_none_is_settled() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 5).await;
    let list = deliveries(&held);
    let (first, last) = (&held[0].delivery, &held[4].delivery);
    for (strange, named) in [
        (format!("{list},1.2.3"), "1.2.3"),
        (format!("1.2.3,{list}"), "1.2.3"),
        // Settled by the same call.
        (format!("{list},{first}"), first),
        (format!("{last},{list}"), last),
    ] {
        for begin in ["DO 0", "START TRANSACTION"] {
            consumer.run(begin).await;
            for verdict in ["ack", "discard"] {
                let (number, _, text) = refusal(&mut consumer.conn, &call(&strange, verdict)).await;
                assert_eq!(number, 31015, "{strange}");
                assert!(text.contains(&format!("does not hold {named} any more")), "{text}");
            }
            consumer.run("COMMIT").await;
            assert_eq!(scene.hot().await, (5, 5, 2), "{begin}: {strange}");
        }
    }
    assert_eq!(consumer.settle_all(&held, "ack").await, ["ack"; 5].join(","));
    assert_eq!(scene.hot().await, (0, 0, 0));
}

#[tokio::test]
async fn what_is_no_list_of_deliveries_is_refused() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 3).await;
    let list = deliveries(&held);
    for wrong in [
        String::new(),
        ",".to_owned(),
        format!("{list},"),
        format!(",{list}"),
        format!("{list},,{list}"),
        list.replace(',', ", "),
        list.replace(',', ";"),
        format!("{list}{}", ",1.2.3".repeat(998)),
        format!("{list},{}", "1".repeat(100_000)),
    ] {
        assert_eq!(consumer.refused(&call(&wrong, "ack")).await, 31022, "{wrong:.40}");
    }
    // A thousand may be.
    let many = format!("{list}{}", ",1.2.3".repeat(997));
    assert_eq!(consumer.refused(&call(&many, "ack")).await, 31015);
    assert_eq!(scene.hot().await, (3, 3, 2));
}

/// With the transaction the work of all is undone: a client that says its last statement again, or
/// a part of it, must not ack what was not done.
#[tokio::test]
async fn none_of_them_is_acked_alone_after_their_transaction_was_undone() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 3).await;
    let ack = call(&deliveries(&held), "ack");
    for again in [deliveries(&held), held[1].delivery.clone(), deliveries(&held[2..])] {
        consumer.undone(&mut scene, &ack).await;
        assert_eq!(consumer.refused(&call(&again, "ack")).await, 31025, "{again}");
        assert_eq!(scene.hot().await, (3, 3, 2), "{again}");
    }
    // It is refused once.
    consumer.settle_all(&held, "ack").await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}
