//! Several deliveries settled by one call of the SQL contract: all of them, or none.

use std::time::Duration;

use rowmq_core::model::TopicSettings;
use rowmq_core::{NewMessage, enqueue};

use crate::scene::Scene;
use crate::sql_consumer::{Claimed, SqlConsumer, deliveries};
use crate::sql_contract::refusal;

const HOUR: Duration = Duration::from_secs(3600);

fn call(deliveries: &str, verdict: &str) -> String {
    format!("CALL queue_settle('{deliveries}', '{verdict}', NULL, NULL)")
}

/// Creates a session with `n` deliveries, from two claims.
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
    for begin in ["DO 0", "START TRANSACTION"] {
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
            consumer.run(begin).await;
            for verdict in ["ack", "discard"] {
                let (number, _, text) = refusal(&mut consumer.conn, &call(&strange, verdict)).await;
                assert_eq!(number, 31015, "{begin}: {strange}");
                assert!(text.contains(&format!("does not hold {named} any more")), "{text}");
            }
            consumer.run("COMMIT").await;
            assert_eq!(scene.hot().await, (5, 5, 2), "{begin}: {strange}");
        }
        consumer.run(begin).await;
        assert_eq!(consumer.settle_all(&held, "ack").await, ["ack"; 5].join(","));
        consumer.run("COMMIT").await;
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

#[tokio::test]
async fn what_is_no_list_of_deliveries_is_refused() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 4).await;
    let (claim, _) = held[3].delivery.rsplit_once('.').unwrap();
    // A list of one claim is read in another way than one of several.
    for list in [deliveries(&held), deliveries(&held[2..])] {
        for wrong in [
            String::new(),
            ",".to_owned(),
            format!("{list},"),
            format!(",{list}"),
            format!("{list},,{list}"),
            list.replace(',', ", "),
            list.replace(',', ";"),
            format!("{list}{}", ",1.2.3".repeat(999)),
            format!("{list}{}", format!(",{claim}.7").repeat(999)),
            format!("{list},{}", "1".repeat(100_000)),
            format!("{list}\n"),
            format!("{list}\r"),
            list.replace(claim, &format!("{claim}\r")),
            format!("0{list}"),
            format!("{list},7"),
            format!("{list},{claim}.0"),
            format!("{list},{claim}.07"),
            format!("{list},{claim}.7e1"),
            format!("{list},{claim}.{}", "9".repeat(20)),
        ] {
            assert_eq!(consumer.refused(&call(&wrong, "ack")).await, 31022, "{wrong:.80}");
        }
    }
    assert_eq!(scene.hot().await, (4, 4, 2));
}

#[tokio::test]
async fn a_thousand_are_settled_by_one_call_in_either_direction() {
    for backwards in [false, true] {
        let mut scene = Scene::new().await;
        scene.enqueue(1000).await;
        let mut consumer = SqlConsumer::new(scene.db.url()).await;
        let mut held = consumer.claim(1000).await;
        assert_eq!(held.len(), 1000);
        if backwards {
            held.reverse();
        }
        assert_eq!(consumer.settle_all(&held, "ack").await, vec!["ack"; 1000].join(","));
        assert_eq!(scene.hot().await, (0, 0, 0));
    }
}

/// A rollback undoes the work of all: a client that repeats its last statement, or a part of it,
/// must not ack what was undone.
#[tokio::test]
async fn none_of_them_is_acked_alone_after_their_transaction_was_undone() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 5).await;
    consumer.undone(&mut scene, &call(&deliveries(&held[..4]), "ack")).await;
    // Settling another one changes nothing.
    consumer.settle_all(&held[4..], "ack").await;
    for part in [&held[..2], &held[2..3]] {
        assert_eq!(consumer.refused(&call(&deliveries(part), "ack")).await, 31025);
    }
    assert_eq!(scene.hot().await, (4, 4, 2));
    // The client does the last one's work again; a second ack vouches for the work of the others.
    consumer.run("START TRANSACTION").await;
    consumer.settle(&held[3], "ack").await;
    consumer.run("COMMIT").await;
    consumer.settle_all(&held[..3], "ack").await;
    assert_eq!(scene.hot().await, (0, 0, 0));
}

/// Nor after the client has rolled back because one of them could not be settled.
#[tokio::test]
async fn none_of_them_is_acked_alone_after_their_settle_was_refused() {
    let mut scene = Scene::new().await;
    let (mut consumer, held) = holder(&mut scene, 3).await;
    let list = deliveries(&held);
    for (lock, sql, number) in [
        ("DO 0", call(&format!("{list},1.2.3"), "ack"), 31015),
        ("UPDATE queue_message SET history = ''", call(&list, "ack"), 1205),
    ] {
        consumer.run("SET SESSION innodb_lock_wait_timeout = 1").await;
        scene.sql(&format!("START TRANSACTION; {lock}")).await;
        consumer.run("START TRANSACTION").await;
        assert_eq!(refusal(&mut consumer.conn, &sql).await.0, number);
        consumer.run("ROLLBACK").await;
        scene.sql("ROLLBACK").await;
        assert_eq!(consumer.refused(&call(&list, "ack")).await, 31025, "after {number}");
        assert_eq!(scene.hot().await, (3, 3, 2), "after {number}");
    }
}

/// Two of them are one event: its work counts once, and is never left out.
#[tokio::test]
async fn of_two_with_one_biz_id_one_is_done_and_then_the_other_is_acked_alone() {
    let settings = TopicSettings { ledger_window: Some(HOUR), ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    for biz_id in ["same", "same", "other"] {
        let message = NewMessage::new(biz_id).with_biz_id(biz_id);
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    }
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    let held = consumer.claim_n(3).await;
    let (one, same) = (&held[0], &held[1].delivery);
    consumer.run("START TRANSACTION").await;
    let (number, _, text) = refusal(&mut consumer.conn, &call(&deliveries(&held), "ack")).await;
    assert_eq!(number, 31023);
    assert!(text.contains(&format!("the biz id of {same} was acked")), "{text}");
    consumer.run("ROLLBACK").await;
    // The work of each was undone, and no other consumer has done it.
    for claimed in [&held[1], &held[2]] {
        assert_eq!(consumer.refused(&call(&claimed.delivery, "ack")).await, 31025);
    }
    consumer.run("START TRANSACTION").await;
    consumer.settle(one, "ack").await;
    consumer.run("COMMIT").await;
    // Now it is done: the other one is refused within a transaction, and acked alone.
    consumer.run("START TRANSACTION").await;
    assert_eq!(consumer.refused(&call(same, "ack")).await, 31023);
    consumer.run("ROLLBACK").await;
    assert_eq!(consumer.settle(&held[1], "ack").await, "ack");
    assert_eq!(scene.hot().await, (1, 1, 1));
}
