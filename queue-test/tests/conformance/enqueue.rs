//! Enqueueing messages.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{Access, MsgId, TopicSettings};
use rowmq_core::{
    Error, Fault, NewMessage, Priority, TopicName, enqueue, enqueue_all, enqueue_to, store,
};

use crate::scene::{Scene, bodies, claim_n, numbers};

#[tokio::test]
async fn a_message_joins_the_callers_transaction_and_goes_with_it() {
    let mut scene = Scene::new().await;
    for (end, left) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        scene.sql("BEGIN").await;
        let message = NewMessage::new("m");
        enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
        scene.sql(end).await;
        assert_eq!(scene.hot().await.0, left, "after {end}");
    }
}

#[tokio::test]
async fn a_refusal_leaves_the_callers_transaction_as_it_is() {
    let mut scene = Scene::new().await;
    scene.sql("BEGIN").await;
    enqueue(&mut scene.conn, &scene.topic.name, &NewMessage::new("m")).await.unwrap();
    let long = NewMessage::new("m").with_key(vec![0; 256]);
    enqueue(&mut scene.conn, &scene.topic.name, &long).await.unwrap_err();
    scene.sql("COMMIT").await;
    assert_eq!(scene.hot().await.0, 1);
}

#[tokio::test]
async fn thousands_of_messages_keep_their_order() {
    let mut scene = Scene::new().await;
    scene.enqueue(2_500).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2_500).await;
    assert_eq!(bodies(&got), numbers(0..2_500));
    assert!(got.is_sorted_by(|a, b| a.row < b.row));
}

#[tokio::test]
async fn everything_of_a_message_arrives_as_it_was_sent() {
    let mut scene = Scene::new().await;
    let message = NewMessage::new(vec![0, 159, 146, 150, 255])
        .with_priority(Priority::new(3).unwrap())
        .with_key("key")
        .with_biz_id("biz")
        .with_header("trace", "å-☃")
        .with_header("empty", "");
    let id = enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap().msg_id();
    assert_eq!(id, message.msg_id);
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!(got.msg_id, message.msg_id);
    assert_eq!(got.body, message.body);
    assert_eq!(got.priority, message.priority);
    assert_eq!(got.key, message.key);
    assert_eq!(got.biz_id, message.biz_id);
    assert_eq!(got.headers, message.headers);
    assert_eq!((got.topic_id, got.failures, got.crashes), (scene.topic.id, 0, 0));
}

#[tokio::test]
async fn keys_and_biz_ids_may_have_255_bytes_and_no_more() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    let fits = NewMessage::new("").with_key(vec![255; 255]).with_biz_id(vec![0; 255]);
    enqueue(&mut scene.conn, &name, &fits).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!((got.key, got.biz_id), (fits.key, fits.biz_id));
    for long in
        [NewMessage::new("").with_key(vec![1; 256]), NewMessage::new("").with_biz_id(vec![1; 256])]
    {
        let refused = enqueue(&mut scene.conn, &name, &long).await.unwrap_err();
        assert!(matches!(refused, Error::KeyTooLong { len: 256, limit: 255, .. }), "{refused}");
    }
}

#[tokio::test]
async fn an_empty_body_and_an_empty_key_are_not_missing_ones() {
    let mut scene = Scene::new().await;
    let message = NewMessage::new("").with_key("");
    enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!((got.body, got.key, got.biz_id), (vec![], Some(vec![]), None));
}

#[tokio::test]
async fn a_body_may_be_as_large_as_the_topics_limit_and_no_larger() {
    let settings = TopicSettings { body_limit: 1000, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let name = scene.topic.name.clone();
    enqueue(&mut scene.conn, &name, &NewMessage::new(vec![7; 1000])).await.unwrap();
    let refused = enqueue(&mut scene.conn, &name, &NewMessage::new(vec![7; 1001])).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::BodyTooLarge { len: 1001, limit: 1000, .. }), "{refused}");
    assert_eq!(refused.fault(), Fault::TooLarge);
    assert!(!refused.is_transient());
    assert_eq!(scene.hot().await.0, 1);
}

#[tokio::test]
async fn bodies_of_the_default_limit_are_taken_several_at_a_time() {
    let mut scene = Scene::new().await;
    let limit = scene.topic.settings.body_limit as usize;
    let messages: Vec<_> = (0..3_u8).map(|i| NewMessage::new(vec![i; limit])).collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 3).await;
    assert!(got.iter().zip(&messages).all(|(got, sent)| got.body == sent.body));
}

#[tokio::test]
async fn a_body_beyond_the_servers_packet_is_an_error_that_says_so() {
    let settings = TopicSettings { body_limit: u32::MAX, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let packet = scene.number("SELECT @@max_allowed_packet").await;
    let large = NewMessage::new(vec![0; usize::try_from(packet).unwrap() + 1]);
    let refused = enqueue(&mut scene.conn, &scene.topic.name, &large).await.unwrap_err();
    assert_eq!(refused.fault(), Fault::TooLarge, "{refused}");
    let mut conn = scene.db.connect().await;
    enqueue(&mut conn, &scene.topic.name, &NewMessage::new("small")).await.unwrap();
}

#[tokio::test]
async fn headers_may_take_64_kib_as_json_and_no_more() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    // {"a":"…"} is eight bytes besides the value.
    let fits = NewMessage::new("").with_header("a", "x".repeat(64 * 1024 - 8));
    enqueue(&mut scene.conn, &name, &fits).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!(got.headers, fits.headers);
    let over = NewMessage::new("").with_header("a", "x".repeat(64 * 1024 - 7));
    let refused = enqueue(&mut scene.conn, &name, &over).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidHeaders { .. }), "{refused}");
}

#[tokio::test]
async fn nothing_is_sent_if_any_message_is_refused() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    let long_header = "x".repeat(64 * 1024);
    let spoilers = [
        NewMessage::new("").with_key(vec![0; 256]),
        NewMessage::new(vec![0; scene.topic.settings.body_limit as usize + 1]),
        NewMessage::new("").with_header("a", long_header),
    ];
    for spoiler in spoilers {
        // The last message, beyond the first statement.
        let mut messages: Vec<_> = (0..1500).map(|_| NewMessage::new("m")).collect();
        messages.push(spoiler);
        enqueue_all(&mut scene.conn, &name, &messages).await.unwrap_err();
        assert_eq!(scene.hot().await.0, 0);
    }
}

#[tokio::test]
async fn an_unknown_and_a_paused_topic_are_refused_by_name() {
    let mut scene = Scene::new().await;
    let unknown = TopicName::new("nowhere").unwrap();
    let refused = enqueue(&mut scene.conn, &unknown, &NewMessage::new("m")).await.unwrap_err();
    assert!(matches!(&refused, Error::UnknownTopic { topic } if *topic == unknown), "{refused}");

    let name = scene.topic.name.clone();
    store::topic::set_access(&mut scene.conn, &name, Access::ReadOnly).await.unwrap();
    let refused = enqueue(&mut scene.conn, &name, &NewMessage::new("m")).await.unwrap_err();
    assert!(matches!(&refused, Error::TopicPaused { topic, .. } if *topic == name), "{refused}");
    store::topic::set_access(&mut scene.conn, &name, Access::ReadWrite).await.unwrap();
    enqueue(&mut scene.conn, &name, &NewMessage::new("m")).await.unwrap();
}

#[tokio::test]
async fn no_messages_are_no_statement() {
    let mut scene = Scene::new().await;
    enqueue_all(&mut scene.conn, &scene.topic.name, &[]).await.unwrap();
    enqueue_to(&mut scene.conn, &scene.topic, &[]).await.unwrap();
    assert_eq!(scene.hot().await.0, 0);
}

#[tokio::test]
async fn ids_made_later_sort_later_and_no_two_are_equal() {
    let mut scene = Scene::new().await;
    let messages = scene.enqueue(2000).await;
    assert!(messages.is_sorted_by(|a, b| a.msg_id < b.msg_id));
    let distinct = scene.number("SELECT COUNT(DISTINCT msg_id) FROM queue_message").await;
    assert_eq!(distinct, 2000);
    let text = messages[0].msg_id.to_string();
    assert_eq!(text.parse::<MsgId>().unwrap(), messages[0].msg_id);
}

#[tokio::test]
async fn a_connection_of_the_callers_own_making_will_do() {
    // Not set up by this library: the server's default isolation level, and not in strict mode.
    use diesel_async::AsyncConnection;
    let scene = Scene::new().await;
    let mut conn =
        rowmq_core::AsyncMysqlConnection::establish(scene.db.url().expose()).await.unwrap();
    conn.batch_execute("SET sql_mode = ''; SET time_zone = '+08:00'; BEGIN").await.unwrap();
    let message = NewMessage::new("m").with_key("k");
    enqueue(&mut conn, &scene.topic.name, &message).await.unwrap();
    conn.batch_execute("COMMIT").await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!(got.msg_id, message.msg_id);
}
