//! What a failed enqueue leaves behind on a connection in autocommit.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use rowmq_core::model::{Sampling, TopicSettings};
use rowmq_core::{MsgId, NewMessage, enqueue_all};

use crate::scene::Scene;
use crate::sql_contract::client;

/// Finding P8.
#[tokio::test]
async fn the_library_stores_a_message_with_all_that_belongs_to_it_or_nothing() {
    let settings = TopicSettings {
        searchable: Some(Duration::from_secs(86_400)),
        trace: Sampling::ALL,
        ..TopicSettings::default()
    };
    let mut scene = Scene::with(&settings).await;
    let id = MsgId::new();
    let messages = [NewMessage::new("a"), NewMessage::new("b").with_msg_id(id)];
    // Another session locks the second one's place in the lookup.
    let mut other = client(scene.db.url()).await;
    other.query_drop("START TRANSACTION").await.unwrap();
    let lock = "INSERT INTO queue_lookup (topic_id, msg_id, enqueued_at) VALUES (?, ?, NOW(6))";
    let values = (scene.topic.id.0, id.as_bytes().to_vec());
    other.exec_drop(lock, values).await.unwrap();
    let mut conn = scene.db.connect().await;
    let failed = enqueue_all(&mut conn, &scene.topic.name, &messages).await.unwrap_err();
    assert!(failed.fault().is_conflict(), "{failed}");
    other.query_drop("ROLLBACK").await.unwrap();
    let stored = "SELECT (SELECT COUNT(*) FROM queue_message) \
                  + (SELECT COUNT(*) FROM queue_lookup) + (SELECT COUNT(*) FROM queue_trace)";
    assert_eq!(scene.number(stored).await, 0);
    enqueue_all(&mut conn, &scene.topic.name, &messages).await.unwrap();
    assert_eq!(scene.number(stored).await, 6);
}
