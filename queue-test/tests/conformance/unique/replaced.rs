//! Messages that replace one that waits.

use std::time::Duration;

use rowmq_core::model::Settlement;
use rowmq_core::{Enqueued, NewMessage, Unique};

use super::{HOUR, KEYS, WAITING};
use crate::find::searchable;
use crate::scene::{Scene, all, bodies, claim_n, retry, settle};

fn replacing(body: &str) -> NewMessage {
    NewMessage::new(body).with_unique(Unique::replacing("k"))
}

fn debounced(body: &str, delay: Duration, max_wait: Option<Duration>) -> NewMessage {
    NewMessage::new(body).with_delay(delay).with_unique(Unique::debounced("k", max_wait))
}

#[tokio::test]
async fn a_message_that_waits_takes_what_the_new_one_brings_and_keeps_its_place() {
    let mut scene = Scene::new().await;
    let first = scene.send(&replacing("old").with_header("a", "1").with_key("x")).await.msg_id();
    scene.enqueue(1).await;
    let new = replacing("new").with_header("b", "2").with_biz_id("y").with_expiry(HOUR);
    assert_eq!(scene.send(&new).await, Enqueued::Replaced(first));
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    assert_eq!(bodies(&got), ["new", "0"]);
    let got = &got[0];
    assert_eq!((got.msg_id, &got.headers), (first, &new.headers));
    assert_eq!((&got.key, got.biz_id.as_deref()), (&None, Some(&b"y"[..])));
    assert!(got.expires_at.is_some());
}

/// The newest message is never lost: while the first is handled, or waits for its retry, one more
/// waits, and no more.
#[tokio::test]
async fn a_message_that_has_been_claimed_is_left_alone_and_the_next_takes_its_key() {
    let mut scene = Scene::new().await;
    scene.send(&replacing("first")).await;
    let worker = scene.worker().await;
    let first = claim_n(&worker, scene.topic.id, 1).await;
    let second = scene.send(&replacing("second")).await;
    assert!(second.is_stored());
    assert_eq!(scene.send(&replacing("third")).await, Enqueued::Replaced(second.msg_id()));
    settle(&worker, all(&first, &retry(Duration::ZERO))).await;
    assert_eq!(scene.send(&replacing("fourth")).await, Enqueued::Replaced(second.msg_id()));
    assert_eq!(scene.number(WAITING).await, 2);
    crate::moves::promote(&mut scene.conn, 10).await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    let mut both = bodies(&got);
    both.sort();
    assert_eq!(both, ["first", "fourth"]);
    let is_first = |body: &[u8]| body == b"first";
    settle(&worker, all(got.iter().filter(|d| is_first(&d.body)), &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 1, "it is the other's now");
    settle(&worker, all(got.iter().filter(|d| !is_first(&d.body)), &Settlement::Ack)).await;
    assert_eq!(scene.number(KEYS).await, 0);
}

#[tokio::test]
async fn a_delayed_message_is_replaced_until_its_time_comes() {
    let mut scene = Scene::new().await;
    let first = scene.send(&replacing("a").with_delay(HOUR)).await.msg_id();
    let minutes = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at) FROM queue_scheduled";
    assert_eq!(scene.send(&replacing("b").with_delay(HOUR / 2)).await, Enqueued::Replaced(first));
    assert_eq!(scene.number(minutes).await, 29);
    assert_eq!(scene.send(&replacing("c").with_delay(HOUR * 2)).await, Enqueued::Replaced(first));
    assert_eq!(scene.number(minutes).await, 119);
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    assert!(scene.send(&replacing("d").with_delay(HOUR)).await.is_stored());
    assert_eq!(scene.number(WAITING).await, 2);
}

/// With the due time of the first and the expiry of the second, both would be lost.
#[tokio::test]
async fn a_message_that_is_not_delayed_makes_the_one_it_replaces_due_now() {
    let mut scene = Scene::new().await;
    let first = scene.send(&replacing("later").with_delay(HOUR * 24)).await.msg_id();
    let new = replacing("now").with_expiry(HOUR);
    assert_eq!(scene.send(&new).await, Enqueued::Replaced(first));
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["now"]);
}

/// Otherwise the end of the first would free the key while the second waits.
#[tokio::test]
async fn the_same_message_once_more_is_a_duplicate_also_when_it_has_been_claimed() {
    let mut scene = Scene::new().await;
    let message = replacing("m");
    scene.send(&message).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(scene.send(&message).await, Enqueued::Duplicate(message.msg_id));
    assert_eq!((scene.number(WAITING).await, scene.number(KEYS).await), (1, 1));
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.send(&message).await, Enqueued::Stored(message.msg_id));
}

/// The enqueue remembers the row after the lookup has been written.
#[tokio::test]
async fn in_a_searchable_topic_too_a_message_is_replaced_in_its_row() {
    let mut scene = Scene::with(&searchable()).await;
    for (key, delay) in [("now", Duration::ZERO), ("later", HOUR)] {
        let message = |body: &str| {
            let message = NewMessage::new(body).with_biz_id(body);
            let message = message.with_unique(Unique::replacing(key));
            if delay.is_zero() { message } else { message.with_delay(delay) }
        };
        let first = scene.send(&message("old")).await.msg_id();
        assert_eq!(scene.send(&message("new")).await, Enqueued::Replaced(first), "{key}");
    }
    let found = "SELECT COUNT(*) FROM queue_lookup WHERE biz_id = 'new'";
    assert_eq!((scene.number(found).await, scene.number(WAITING).await), (2, 2));
}

#[tokio::test]
async fn a_debounced_message_waits_anew_but_not_for_ever() {
    let mut scene = Scene::new().await;
    let minutes = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at) FROM queue_scheduled";
    let half = HOUR / 2;
    let first = scene.send(&debounced("0", half, Some(HOUR))).await.msg_id();
    let mut due = vec![scene.number(minutes).await];
    for body in ["1", "2", "3", "4"] {
        // A quarter of an hour passes.
        scene
            .sql(
                "UPDATE queue_scheduled SET due_at = due_at - INTERVAL 15 MINUTE, \
                 enqueued_at = enqueued_at - INTERVAL 15 MINUTE",
            )
            .await;
        let sent = scene.send(&debounced(body, half, Some(HOUR))).await;
        assert_eq!(sent, Enqueued::Replaced(first));
        due.push(scene.number(minutes).await);
    }
    assert_eq!(due, [29, 29, 29, 14, 0]);
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["4"]);
}

#[tokio::test]
async fn a_message_that_was_to_be_kept_is_not_replaced() {
    let mut scene = Scene::new().await;
    let kept = scene.send(&NewMessage::new("kept").with_unique(Unique::until_done("k"))).await;
    assert_eq!(scene.send(&replacing("new")).await, Enqueued::Duplicate(kept.msg_id()));
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["kept"]);
}

#[tokio::test]
async fn a_batch_replaces_within_itself() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    let batch = [replacing("1"), NewMessage::new("2"), replacing("3"), replacing("4")];
    let sent = rowmq_core::connection::transaction(&mut scene.conn, "send", async |conn| {
        rowmq_core::enqueue_to(conn, &topic, &batch).await
    });
    let first = batch[0].msg_id;
    let expected = [
        Enqueued::Stored(first),
        Enqueued::Stored(batch[1].msg_id),
        Enqueued::Replaced(first),
        Enqueued::Replaced(first),
    ];
    assert_eq!(sent.await.unwrap(), expected);
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, topic.id, 2).await), ["4", "2"]);
}
