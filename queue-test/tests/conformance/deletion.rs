//! Deleting a topic while transactions are open: no acknowledged message is lost.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::Session;
use rowmq_core::doctor::{Verdict, examine};
use rowmq_core::model::{Access, Action, Actor, Change, TopicSettings};
use rowmq_core::store::topic;
use rowmq_core::topic::change_access;
use rowmq_core::topic::deletion::{Closed, lost, restore};
use rowmq_core::{AsyncMysqlConnection, Error, NewMessage, TopicName, enqueue};

use crate::scene::{Scene, bodies, claim_n};

const ENQUEUE: &str = "CALL queue_send('t', 'acknowledged', NULL)";

fn change(scene: &Scene, action: Action) -> Change {
    let actor = Actor { name: "test".to_owned(), origin: "here".to_owned() };
    Change { actor, action, target: scene.topic.name.to_string(), detail: None }
}

async fn close(scene: &Scene, session: &mut Session) -> Closed {
    Closed::close(session, &scene.topic.name, &change(scene, Action::DeleteTopic)).await.unwrap()
}

async fn access(scene: &mut Scene) -> Access {
    topic::existing(&mut scene.conn, &scene.topic.name).await.unwrap().access
}

async fn run(conn: &mut AsyncMysqlConnection, sql: &str) {
    conn.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Opens a transaction that has enqueued, in one of three ways.
async fn open_transaction(scene: &Scene, way: usize) -> AsyncMysqlConnection {
    let mut conn = scene.db.connect().await;
    run(&mut conn, "BEGIN").await;
    let message = match way {
        0 => {
            run(&mut conn, ENQUEUE).await;
            return conn;
        }
        1 => NewMessage::new("by the library"),
        _ => NewMessage::new("later").with_delay(Duration::from_secs(3600)),
    };
    enqueue(&mut conn, &scene.topic.name, &message).await.unwrap();
    conn
}

#[tokio::test]
async fn a_topic_is_not_deleted_while_a_transaction_that_enqueued_is_open() {
    let mut scene = Scene::new().await;
    let mut session = scene.db.session().await;
    for way in 0..3 {
        let mut open = open_transaction(&scene, way).await;
        let closed = close(&scene, &mut session).await;
        let refused = closed.delete(&mut session).await.unwrap_err();
        assert!(matches!(refused, Error::TopicInUse { .. }), "{refused}");
        assert!(refused.to_string().contains("An open transaction"), "{refused}");
        run(&mut open, "COMMIT").await;
        let refused = closed.delete(&mut session).await.unwrap_err();
        assert!(matches!(refused, Error::TopicNotEmpty { .. }), "{refused}");
        closed.reopen(&mut session).await.unwrap();
        assert_eq!(access(&mut scene).await, Access::ReadWrite);
        scene.sql("DELETE FROM queue_message; DELETE FROM queue_scheduled").await;
    }
    // A rollback leaves nothing.
    let mut open = open_transaction(&scene, 0).await;
    let closed = close(&scene, &mut session).await;
    run(&mut open, "ROLLBACK").await;
    closed.delete(&mut session).await.unwrap();
    assert_eq!(topic::find(&mut scene.conn, &scene.topic.name).await.unwrap(), None);
}

/// Its snapshot shows the topic as open as long as the transaction lasts.
#[tokio::test]
async fn what_a_transaction_with_an_old_snapshot_enqueues_gets_a_topic_again() {
    let mut scene = Scene::new().await;
    let mut session = scene.db.session().await;
    let mut old = scene.db.connect().await;
    run(&mut old, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
    run(&mut old, "BEGIN; SELECT COUNT(*) INTO @n FROM queue_topic").await;
    let closed = close(&scene, &mut session).await;
    closed.delete(&mut session).await.unwrap();
    run(&mut old, ENQUEUE).await;
    assert_eq!(lost(&mut scene.conn).await.unwrap(), [], "it may still be rolled back");
    run(&mut old, "COMMIT").await;

    let id = scene.topic.id;
    assert_eq!(lost(&mut scene.conn).await.unwrap(), [id]);
    let report = examine(scene.db.url()).await.unwrap();
    let check = report.checks.iter().find(|check| check.name == "lost messages").unwrap();
    assert_eq!(check.verdict, Verdict::Warning);
    assert!(check.detail.contains(&format!("the numbers {}:", id.0)), "{check:?}");
    let name = restore(&mut session, id).await.unwrap();
    assert_eq!(name.as_str(), format!("restored-{}", id.0));
    assert_eq!(lost(&mut scene.conn).await.unwrap(), []);
    // Two sweepers find the same topic.
    assert!(restore(&mut session, id).await.is_err());
    let restored = topic::existing(&mut scene.conn, &name).await.unwrap();
    assert_eq!(restored.id, id);
    let worker = scene.worker().await;
    assert_eq!(bodies(&claim_n(&worker, id, 1).await), ["acknowledged"]);
    worker.stop().await.unwrap();
}

#[tokio::test]
async fn dead_and_waiting_messages_without_a_topic_are_found_too() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    scene
        .sql(
            "INSERT INTO queue_scheduled (due_at, topic_id, priority, msg_id, delivery_no, failures, \
             crashes, suspicions, enqueued_at, body) SELECT UTC_TIMESTAMP(6), 7001, 5, msg_id, 0, \
             0, 0, 0, enqueued_at, body FROM queue_message WHERE topic_id > 0; \
             INSERT INTO queue_dead (topic_id, priority, msg_id, delivery_no, failures, crashes, \
             suspicions, enqueued_at, body, cause, died_at) SELECT 7002, 5, msg_id, 0, 0, 0, 0, \
             enqueued_at, body, 'handler', UTC_TIMESTAMP(6) FROM queue_message WHERE topic_id > 0",
        )
        .await;
    let found: Vec<_> = lost(&mut scene.conn).await.unwrap().iter().map(|id| id.0).collect();
    assert_eq!(found, [7001, 7002]);
}

/// A dead letter that an open transaction moves into the topic.
#[tokio::test]
async fn a_topic_of_dead_letters_is_not_deleted_while_one_is_on_its_way() {
    let mut scene = Scene::new().await;
    let mut session = scene.db.session().await;
    let dead_letter_topic = Some(scene.topic.name.clone());
    let settings = TopicSettings { dead_letter_topic, ..TopicSettings::default() };
    let from = scene.db.topic_with("from", &settings).await;
    let name = TopicName::new("from").unwrap();
    enqueue(&mut scene.conn, &name, &NewMessage::new("doomed")).await.unwrap();
    let mut consumer = scene.db.connect().await;
    run(&mut consumer, "CALL queue_claim('from', 1, NULL)").await;
    let delivery = scene
        .text(
            "SELECT CONCAT(worker_id, '.', claim_no, '.', id) FROM queue_message \
             WHERE worker_id <> 0",
        )
        .await;
    run(
        &mut consumer,
        &format!("BEGIN; CALL queue_settle('{delivery}', 'dead-letter', 'no use', NULL)"),
    )
    .await;
    topic::set(&mut scene.conn, &from.name, &TopicSettings::default()).await.unwrap();
    let closed = close(&scene, &mut session).await;
    let refused = closed.delete(&mut session).await.unwrap_err();
    assert!(matches!(refused, Error::TopicInUse { .. }), "{refused}");
    run(&mut consumer, "COMMIT").await;
    let refused = closed.delete(&mut session).await.unwrap_err();
    assert!(matches!(refused, Error::TopicNotEmpty { .. }), "{refused}");
}

#[tokio::test]
async fn a_topic_that_a_person_pauses_while_it_is_being_deleted_stays_paused() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let mut session = scene.db.session().await;
    let closed = close(&scene, &mut session).await;
    let (name, by) = (scene.topic.name.clone(), change(&scene, Action::SetAccess));
    change_access(&mut session, &name, &by, |_| Access::Denied).await.unwrap();
    assert!(closed.delete(&mut session).await.is_err());
    closed.reopen(&mut session).await.unwrap();
    assert_eq!(access(&mut scene).await, Access::Denied);
}
