//! Unique keys: which message holds one, until when, and what happens to the others.

mod ends;
mod locked;
mod replaced;

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::Settlement;
use rowmq_core::store::{prune, unique};
use rowmq_core::{
    AsyncMysqlConnection, Enqueued, Error, NewMessage, Result, Topic, Unique, enqueue_to,
};
use rowmq_test::until;

use crate::scene::{Scene, all, claim_n, number, settle, wait_for_locks};

const HOUR: Duration = Duration::from_secs(3600);

/// Counts the messages that wait, in either table.
const WAITING: &str = "SELECT (SELECT COUNT(*) FROM queue_message WHERE topic_id > 0) \
     + (SELECT COUNT(*) FROM queue_scheduled)";

const KEYS: &str = "SELECT COUNT(*) FROM queue_unique";

fn until_done(key: &str) -> NewMessage {
    NewMessage::new("m").with_unique(Unique::until_done(key))
}

async fn send(
    conn: &mut AsyncMysqlConnection,
    topic: &Topic,
    message: &NewMessage,
) -> Result<Enqueued> {
    let messages = std::slice::from_ref(message);
    let mut sent =
        transaction(conn, "send", async |conn| enqueue_to(conn, topic, messages).await).await?;
    Ok(sent.remove(0))
}

impl Scene {
    async fn send(&mut self, message: &NewMessage) -> Enqueued {
        let topic = self.topic.clone();
        send(&mut self.conn, &topic, message).await.unwrap()
    }
}

#[tokio::test]
async fn of_32_writers_one_stores_its_message_and_the_others_are_told_its_id() {
    let scene = Scene::new().await;
    for (key, delay) in [("now", Duration::ZERO), ("later", HOUR)] {
        let writers = (0..32).map(async |_| {
            let mut conn = scene.db.connect().await;
            wait_for_locks(&mut conn).await;
            let mut message = until_done(key);
            if !delay.is_zero() {
                message = message.with_delay(delay);
            }
            send(&mut conn, &scene.topic, &message).await.unwrap()
        });
        let sent = join_all(writers).await;
        let stored: Vec<_> = sent.iter().filter(|sent| sent.is_stored()).collect();
        assert_eq!(stored.len(), 1, "{sent:?}");
        assert!(sent.iter().all(|sent| sent.msg_id() == stored[0].msg_id()), "{sent:?}");
    }
    let mut conn = scene.db.connect().await;
    assert_eq!(number(&mut conn, WAITING).await, 2);
    assert_eq!(number(&mut conn, KEYS).await, 2);
}

#[tokio::test]
async fn a_key_that_is_held_for_a_time_outlives_its_message_and_ends_with_its_time() {
    let mut scene = Scene::new().await;
    let message = || NewMessage::new("m").with_unique(Unique::for_duration("k", HOUR));
    let first = scene.send(&message()).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(got[0].unique_key, None);
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(scene.send(&message()).await, Enqueued::Duplicate(first.msg_id()));
    for prune_first in [false, true] {
        assert_eq!(prune::unique(&mut scene.conn, 10).await.unwrap().found, 0);
        scene
            .sql("UPDATE queue_unique SET keep_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
            .await;
        if prune_first {
            assert_eq!(prune::unique(&mut scene.conn, 10).await.unwrap().removed, 1);
        }
        let new = message();
        assert_eq!(scene.send(&new).await, Enqueued::Stored(new.msg_id), "{prune_first}");
        assert_eq!(scene.send(&message()).await, Enqueued::Duplicate(new.msg_id));
    }
    assert_eq!(scene.number(WAITING).await, 2);
}

#[tokio::test]
async fn keys_are_bytes_of_one_topic() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    for key in ["a", "A", "a ", "ä"] {
        assert!(scene.send(&until_done(key)).await.is_stored(), "{key}");
    }
    assert!(send(&mut scene.conn, &other, &until_done("a")).await.unwrap().is_stored());
    assert_eq!(scene.number(KEYS).await, 5);
}

#[tokio::test]
async fn a_rolled_back_enqueue_holds_no_key_and_one_in_autocommit_is_refused() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &topic, &[until_done("k")]).await.unwrap();
    scene.sql("ROLLBACK").await;
    let refused = enqueue_to(&mut scene.conn, &topic, &[until_done("k")]).await.unwrap_err();
    assert!(matches!(refused, Error::NeedsTransaction), "{refused}");
    assert_eq!((scene.number(KEYS).await, scene.number(WAITING).await), (0, 0));
    assert!(scene.send(&until_done("k")).await.is_stored());
}

#[tokio::test]
async fn a_second_enqueue_waits_for_the_transaction_of_the_first() {
    for (end, stored) in [("COMMIT", false), ("ROLLBACK", true)] {
        let mut scene = Scene::new().await;
        let topic = scene.topic.clone();
        let (mut first, mut second) = (scene.db.connect().await, scene.db.connect().await);
        wait_for_locks(&mut second).await;
        first.batch_execute("BEGIN").await.unwrap();
        enqueue_to(&mut first, &topic, &[until_done("k")]).await.unwrap();
        let ending = async {
            until("the second waits", async || scene.lock_waits().await > 0).await;
            first.batch_execute(end).await.unwrap();
        };
        let message = until_done("k");
        let (sent, ()) = tokio::join!(send(&mut second, &topic, &message), ending);
        assert_eq!(sent.unwrap().is_stored(), stored, "{end}");
    }
}

#[tokio::test]
async fn a_batch_takes_what_is_free_and_finds_its_own_keys() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    let held = scene.send(&until_done("b")).await.msg_id();
    let batch: Vec<_> = ["a", "b", "c", "a"].map(until_done).to_vec();
    let sent =
        transaction(&mut scene.conn, "send", async |conn| enqueue_to(conn, &topic, &batch).await);
    let first = batch[0].msg_id;
    let expected = [
        Enqueued::Stored(first),
        Enqueued::Duplicate(held),
        Enqueued::Stored(batch[2].msg_id),
        Enqueued::Duplicate(first),
    ];
    assert_eq!(sent.await.unwrap(), expected);
    assert_eq!(scene.number(WAITING).await, 3);
}

#[tokio::test]
async fn the_keys_of_a_deleted_topic_are_forgotten_in_pieces() {
    let mut scene = Scene::new().await;
    for key in ["a", "b", "c", "d", "e"] {
        scene.send(&until_done(key)).await;
    }
    let mut pieces = Vec::new();
    for _ in 0..3 {
        let some = unique::forget_some(&mut scene.conn, scene.topic.id, 3).await.unwrap();
        pieces.push(some);
    }
    assert_eq!(pieces, [3, 2, 0]);
}
