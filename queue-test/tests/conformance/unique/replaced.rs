//! Messages that take the place of one that waits.

use std::time::Duration;

use queue_core::message::Settlement;
use queue_core::{Enqueued, NewMessage, Unique};

use super::{HOUR, KEYS, WAITING};
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

/// The newest word is never lost: while the first is handled, or waits to be tried again, one more
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
    // Without a moment of its own the new one comes when the old one would have.
    assert_eq!(scene.send(&replacing("b")).await, Enqueued::Replaced(first));
    let minutes = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at) FROM queue_scheduled";
    assert_eq!(scene.number(minutes).await, 59);
    assert_eq!(scene.send(&replacing("c").with_delay(HOUR * 2)).await, Enqueued::Replaced(first));
    assert_eq!(scene.number(minutes).await, 119);
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    assert!(scene.send(&replacing("d").with_delay(HOUR)).await.is_stored());
    assert_eq!(scene.number(WAITING).await, 2);
}

#[tokio::test]
async fn a_debounced_message_waits_anew_but_not_for_ever() {
    let mut scene = Scene::new().await;
    let minutes = "SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(6), due_at) FROM queue_scheduled";
    let half = HOUR / 2;
    let first = scene.send(&debounced("0", half, Some(HOUR))).await.msg_id();
    let mut due = vec![scene.number(minutes).await];
    for body in ["1", "2", "3", "4"] {
        // A quarter of an hour goes by.
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
    let sent = queue_core::connection::transaction(&mut scene.conn, "send", async |conn| {
        queue_core::enqueue_to(conn, &topic, &batch).await
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
