//! Read-only sessions, for pages that many users leave open.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::{SessionKind, connect};
use rowmq_core::store::inspect;
use rowmq_core::{AsyncMysqlConnection, Fault};
use rowmq_test::greeted;

use crate::scene::Scene;

/// Short: a test waits for it.
const LIMIT: Duration = Duration::from_secs(5);

async fn reading(scene: &Scene) -> AsyncMysqlConnection {
    let kind = SessionKind::Reading(LIMIT);
    greeted(async || connect(scene.db.url(), kind).await).await.unwrap()
}

#[tokio::test]
async fn a_reading_session_reads_and_is_refused_every_write() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let mut conn = reading(&scene).await;
    let depth = inspect::depth(&mut conn, scene.topic.id).await.unwrap();
    assert_eq!(depth.unsettled, 3);
    for write in ["DELETE FROM queue_message", "UPDATE queue_topic SET claim_paused = 1"] {
        assert!(conn.batch_execute(write).await.is_err(), "{write}");
    }
    let refused = inspect::purge_some(&mut conn, inspect::MessageTable::Ready, scene.topic.id, 1);
    assert_eq!(refused.await.unwrap_err().fault(), Fault::ReadOnly);
    assert_eq!(inspect::depth(&mut conn, scene.topic.id).await.unwrap().unsettled, 3);
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_ended_by_the_server() {
    let mut scene = Scene::new().await;
    scene.enqueue(1500).await;
    let mut conn = reading(&scene).await;
    let long = "SELECT COUNT(*) FROM queue_message a, queue_message b, queue_message c \
         WHERE a.msg_id <> b.msg_id OR b.msg_id <> c.msg_id";
    let ended = conn.batch_execute(long).await.unwrap_err().to_string();
    assert_eq!(Fault::of_text(&ended), Fault::Interrupted, "{ended}");
    inspect::depth(&mut conn, scene.topic.id).await.unwrap();
}
