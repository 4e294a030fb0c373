//! The dedupe window: within it, an id that a client gave stands for one message.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::{Settlement, TopicSettings};
use rowmq_core::store::{dedupe, prune};
use rowmq_core::{
    AsyncMysqlConnection, Enqueued, Error, MsgId, NewMessage, Result, Topic, Unique, enqueue_to,
};
use rowmq_test::until;

use crate::scene::{Scene, all, bodies, claim_n, number, settle, wait_for_locks};

const HOUR: Duration = Duration::from_secs(3600);

async fn scene() -> Scene {
    let settings = TopicSettings { dedupe_window: Some(HOUR), ..TopicSettings::default() };
    Scene::with(&settings).await
}

fn given(id: MsgId) -> NewMessage {
    NewMessage::new("m").with_msg_id(id)
}

async fn send(
    conn: &mut AsyncMysqlConnection,
    topic: &Topic,
    messages: &[NewMessage],
) -> Result<Vec<Enqueued>> {
    transaction(conn, "send", async |conn| enqueue_to(conn, topic, messages).await).await
}

const MESSAGES: &str = "SELECT COUNT(*) FROM queue_message WHERE topic_id > 0";

#[tokio::test]
async fn an_id_that_was_given_is_one_message_also_when_that_is_done() {
    let mut scene = scene().await;
    let (topic, id) = (scene.topic.clone(), MsgId::new());
    let sent = send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    assert_eq!(sent, [Enqueued::Stored(id)]);
    let again = send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    assert_eq!(again, [Enqueued::Duplicate(id)]);
    let worker = scene.worker().await;
    let got = claim_n(&worker, topic.id, 1).await;
    settle(&worker, all(&got, &Settlement::Ack)).await;
    let after = send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    assert_eq!(after, [Enqueued::Duplicate(id)]);
    assert_eq!(scene.hot().await, (0, 0, 0));
    assert_eq!(scene.number("SELECT repeats FROM queue_dedupe").await, 2);
    // Another topic does not know the id.
    let window = TopicSettings { dedupe_window: Some(HOUR), ..TopicSettings::default() };
    let other = scene.db.topic_with("other", &window).await;
    let there = send(&mut scene.conn, &other, &[given(id)]).await.unwrap();
    assert_eq!(there, [Enqueued::Stored(id)]);
}

#[tokio::test]
async fn an_id_whose_window_is_over_is_new_pruned_or_not() {
    let mut scene = scene().await;
    let (topic, id) = (scene.topic.clone(), MsgId::new());
    for prune_first in [false, true] {
        for expected in [Enqueued::Stored(id), Enqueued::Duplicate(id)] {
            let sent = send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
            assert_eq!(sent, [expected], "{prune_first}");
        }
        scene
            .sql("UPDATE queue_dedupe SET keep_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
            .await;
        if prune_first {
            assert_eq!(prune::dedupe(&mut scene.conn, 10).await.unwrap().removed, 1);
        }
    }
    send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    assert_eq!(prune::dedupe(&mut scene.conn, 10).await.unwrap().found, 0);
    assert_eq!(scene.number(MESSAGES).await, 3);
    let in_an_hour = "SELECT COUNT(*) FROM queue_dedupe WHERE keep_until BETWEEN \
         UTC_TIMESTAMP(6) + INTERVAL 3500 SECOND AND UTC_TIMESTAMP(6) + INTERVAL 1 HOUR";
    assert_eq!(scene.number(in_an_hour).await, 1);
}

#[tokio::test]
async fn of_a_batch_with_ids_that_are_there_the_rest_is_stored_in_order() {
    let mut scene = scene().await;
    let topic = scene.topic.clone();
    let ids: Vec<MsgId> = (0..700).map(|_| MsgId::new()).collect();
    let known: Vec<_> = ids.iter().step_by(7).map(|id| given(*id)).collect();
    send(&mut scene.conn, &topic, &known).await.unwrap();
    scene.sql("DELETE FROM queue_message").await;
    // And one of them twice, among messages with generated ids.
    let mut batch: Vec<_> = ids
        .iter()
        .enumerate()
        .map(|(n, id)| NewMessage::new(n.to_string()).with_msg_id(*id))
        .collect();
    batch.push(NewMessage::new("1 again").with_msg_id(ids[1]));
    batch.push(NewMessage::new("last"));
    let sent = send(&mut scene.conn, &topic, &batch).await.unwrap();
    for (n, (sent, id)) in sent.iter().zip(&ids).enumerate() {
        let stored = n % 7 != 0;
        assert_eq!((sent.is_stored(), sent.msg_id()), (stored, *id), "{n}");
    }
    assert_eq!(sent[700], Enqueued::Duplicate(ids[1]));
    assert!(sent[701].is_stored());
    let worker = scene.worker().await;
    let got = claim_n(&worker, topic.id, 601).await;
    let expected: Vec<_> = (0..700).filter(|n| n % 7 != 0).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&got)[..600], expected);
    assert_eq!(bodies(&got)[600], "last");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 700);
}

#[tokio::test]
async fn ids_that_were_made_here_and_topics_without_a_window_remember_nothing() {
    let mut scene = scene().await;
    let plain = scene.db.topic("plain").await;
    let topic = scene.topic.clone();
    // Neither needs a transaction.
    enqueue_to(&mut scene.conn, &topic, &[NewMessage::new("m")]).await.unwrap();
    let message = given(MsgId::new());
    for _ in 0..2 {
        let sent =
            enqueue_to(&mut scene.conn, &plain, std::slice::from_ref(&message)).await.unwrap();
        assert_eq!(sent, [Enqueued::Stored(message.msg_id)]);
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 0);
    assert_eq!(scene.number(MESSAGES).await, 3);
}

/// In autocommit, an id could be stored without its message.
#[tokio::test]
async fn a_connection_in_autocommit_is_refused_and_changes_nothing() {
    let mut scene = scene().await;
    let topic = scene.topic.clone();
    let messages = [given(MsgId::new())];
    let refused = enqueue_to(&mut scene.conn, &topic, &messages).await.unwrap_err();
    assert!(matches!(refused, Error::NeedsTransaction), "{refused}");
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 0);
    for begin in ["BEGIN", "SET autocommit = 0"] {
        scene.sql(begin).await;
        enqueue_to(&mut scene.conn, &topic, &[given(MsgId::new())]).await.unwrap();
        scene.sql("COMMIT").await;
    }
    assert_eq!(scene.number(MESSAGES).await, 2);
}

#[tokio::test]
async fn a_rolled_back_or_failed_enqueue_leaves_its_id_free() {
    let mut scene = scene().await;
    let (topic, id) = (scene.topic.clone(), MsgId::new());
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    scene.sql("ROLLBACK").await;
    // A call that fails in its second statement, in a transaction that commits nevertheless.
    let broken = "ALTER TABLE queue_message ADD CONSTRAINT no_more CHECK (body <> 'm')";
    scene.sql(broken).await;
    scene.sql("BEGIN").await;
    enqueue_to(&mut scene.conn, &topic, &[given(id)]).await.unwrap_err();
    scene.sql("COMMIT").await;
    scene.sql("ALTER TABLE queue_message DROP CONSTRAINT no_more").await;
    let sent = send(&mut scene.conn, &topic, &[given(id)]).await.unwrap();
    assert_eq!(sent, [Enqueued::Stored(id)]);
}

/// The id is stored nowhere, so nothing is doubled if the message is sent again.
#[tokio::test]
async fn the_id_of_a_message_that_its_key_refused_is_as_new_as_before() {
    let mut scene = scene().await;
    let (topic, id) = (scene.topic.clone(), MsgId::new());
    let keyed = |id| given(id).with_unique(Unique::until_done("k"));
    let holder = MsgId::new();
    send(&mut scene.conn, &topic, &[keyed(holder)]).await.unwrap();
    let batch = [given(MsgId::new()), keyed(id)];
    let sent = send(&mut scene.conn, &topic, &batch).await.unwrap();
    assert_eq!(sent, [Enqueued::Stored(batch[0].msg_id), Enqueued::Duplicate(holder)]);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 2);
    // The holder's own id stays known, and so does the id of a message that replaced another.
    let again = send(&mut scene.conn, &topic, &[keyed(holder)]).await.unwrap();
    assert_eq!(again, [Enqueued::Duplicate(holder)]);
    let worker = scene.worker().await;
    settle(&worker, all(&claim_n(&worker, topic.id, 2).await, &Settlement::Ack)).await;
    let sent = send(&mut scene.conn, &topic, &[keyed(id)]).await.unwrap();
    assert_eq!(sent, [Enqueued::Stored(id)]);
    let first = given(MsgId::new()).with_unique(Unique::replacing("r"));
    let second = given(MsgId::new()).with_unique(Unique::replacing("r"));
    for (message, expected) in [
        (&first, Enqueued::Stored(first.msg_id)),
        (&second, Enqueued::Replaced(first.msg_id)),
        (&second, Enqueued::Duplicate(second.msg_id)),
    ] {
        let sent = send(&mut scene.conn, &topic, std::slice::from_ref(message)).await.unwrap();
        assert_eq!(sent, [expected]);
    }
}

#[tokio::test]
async fn of_two_transactions_with_one_id_the_second_waits_for_the_first() {
    for (end, expected) in [("COMMIT", false), ("ROLLBACK", true)] {
        let mut scene = scene().await;
        let (topic, id) = (scene.topic.clone(), MsgId::new());
        let mut first = scene.db.connect().await;
        let mut second = scene.db.connect().await;
        wait_for_locks(&mut second).await;
        first.batch_execute("BEGIN").await.unwrap();
        enqueue_to(&mut first, &topic, &[given(id)]).await.unwrap();
        let ending = async {
            until("the second waits", async || scene.lock_waits().await > 0).await;
            first.batch_execute(end).await.unwrap();
        };
        let messages = [given(id)];
        let (sent, ()) = tokio::join!(send(&mut second, &topic, &messages), ending);
        assert_eq!(sent.unwrap()[0].is_stored(), expected, "{end}");
        assert_eq!(number(&mut second, MESSAGES).await, 1, "{end}");
    }
}

#[tokio::test]
async fn of_32_writers_of_the_same_ids_each_id_is_stored_once() {
    let scene = scene().await;
    let ids: Vec<MsgId> = (0..20).map(|_| MsgId::new()).collect();
    let writers = (0..32).map(async |n| {
        let (mut conn, mut ids) = (scene.db.connect().await, ids.clone());
        wait_for_locks(&mut conn).await;
        ids.rotate_left(n % 20);
        let mut stored = 0;
        for ids in ids.chunks(5) {
            let messages: Vec<_> = ids.iter().map(|id| given(*id)).collect();
            let sent = send(&mut conn, &scene.topic, &messages).await.unwrap();
            stored += sent.iter().filter(|sent| sent.is_stored()).count();
        }
        stored
    });
    let stored = join_all(writers).await.into_iter().sum::<usize>();
    let mut conn = scene.db.connect().await;
    assert_eq!((stored, number(&mut conn, MESSAGES).await), (20, 20));
}

#[tokio::test]
async fn the_ids_of_a_deleted_topic_are_forgotten_in_pieces() {
    let mut scene = scene().await;
    let topic = scene.topic.clone();
    let messages: Vec<_> = (0..5).map(|_| given(MsgId::new())).collect();
    send(&mut scene.conn, &topic, &messages).await.unwrap();
    let mut pieces = Vec::new();
    for _ in 0..3 {
        pieces.push(dedupe::forget_some(&mut scene.conn, topic.id, 3).await.unwrap());
    }
    assert_eq!(pieces, [3, 2, 0]);
}
