//! A topic with a backlog limit: which enqueues are refused while it is full, and how it is
//! measured.

use std::num::NonZeroU64;

use rowmq_core::connection::transaction;
use rowmq_core::model::{Backlog, RowId, TopicSettings, WhenFull};
use rowmq_core::store::backlog;
use rowmq_core::store::topic;
use rowmq_core::{Error, Fault, NewMessage, enqueue, enqueue_all};

use crate::scene::{Scene, failure, text};

fn limited() -> TopicSettings {
    TopicSettings { max_depth: NonZeroU64::new(1000), ..TopicSettings::default() }
}

/// Records `backlog` as the topic's measurement.
async fn measured(scene: &mut Scene, backlog: Backlog) {
    let topic = scene.topic.clone();
    let write = async |conn: &mut _| backlog::publish(conn, &topic, backlog).await;
    assert!(transaction(&mut scene.conn, "write", write).await.unwrap());
}

const FULL: Backlog = Backlog { depth: 1234, bytes: None, full: true };

async fn takes(scene: &mut Scene) -> bool {
    let name = scene.topic.name.clone();
    let by_library = enqueue(&mut scene.conn, &name, &NewMessage::new("m")).await;
    let by_sql = "CALL queue_send('t', 'm', NULL)";
    match by_library {
        Ok(_) => {
            scene.sql(by_sql).await;
            true
        }
        Err(Error::TopicFull { .. }) => {
            let refused = failure(&mut scene.conn, by_sql).await.to_string();
            assert!(refused.contains("is full"), "{refused}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_full_topic_refuses_every_client_with_the_figures() {
    for when_full in [WhenFull::Block, WhenFull::Reject] {
        let mut scene = Scene::with(&TopicSettings { when_full, ..limited() }).await;
        measured(&mut scene, FULL).await;
        let name = scene.topic.name.clone();
        // Also in the caller's transaction, where no session waits while it holds locks.
        scene.sql("BEGIN").await;
        let refused = enqueue(&mut scene.conn, &name, &NewMessage::new("m")).await.unwrap_err();
        scene.sql("COMMIT").await;
        let sentence = refused.to_string();
        assert!(sentence.contains("'t' is full (about 1234 messages, the limit is 1000)"));
        assert_eq!(refused.fault(), Fault::Full);
        assert_eq!(refused.is_transient(), when_full == WhenFull::Block);
        let later = r#"CALL queue_send('t', 'm', '{"deliver_in":"1d"}')"#;
        for call in ["CALL queue_send('t', 'm', NULL)", later] {
            let refused = failure(&mut scene.conn, call).await.to_string();
            let told = "queue: topic 't' is full (about 1234 messages, the limit is 1000); \
                 try again when it is drained";
            assert!(refused.contains(told), "{refused}");
        }
        assert_eq!(scene.hot().await.0, 0);
    }
}

#[tokio::test]
async fn a_full_topic_opens_when_it_is_measured_again_or_its_limit_is_raised() {
    let mut scene = Scene::with(&limited()).await;
    assert!(takes(&mut scene).await, "nobody has measured it");
    measured(&mut scene, FULL).await;
    assert!(!takes(&mut scene).await);
    measured(&mut scene, Backlog { depth: 899, full: false, ..FULL }).await;
    assert!(takes(&mut scene).await);
    measured(&mut scene, FULL).await;
    let name = scene.topic.name.clone();
    for max_depth in [NonZeroU64::new(2000), None] {
        let raised = TopicSettings { max_depth, ..limited() };
        topic::set(&mut scene.conn, &name, &raised).await.unwrap();
        assert!(takes(&mut scene).await, "{max_depth:?}");
        topic::set(&mut scene.conn, &name, &limited()).await.unwrap();
        assert!(!takes(&mut scene).await);
    }
}

/// No process measures it: no janitor, no consumer.
#[tokio::test]
async fn what_was_measured_long_ago_closes_no_topic() {
    let mut scene = Scene::with(&limited()).await;
    measured(&mut scene, FULL).await;
    let name = scene.topic.name.clone();
    let aged = |seconds: u32| {
        format!("UPDATE queue_topic SET backlog_at = UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND")
    };
    scene.sql(&aged(5)).await;
    assert!(!takes(&mut scene).await);
    scene.sql(&aged(31)).await;
    assert_eq!(topic::find(&mut scene.conn, &name).await.unwrap().unwrap().backlog, None);
    assert!(takes(&mut scene).await);
}

/// A client whose isolation is SERIALIZABLE reads the topic with a lock.
#[tokio::test]
async fn a_topic_that_somebody_has_locked_is_not_waited_for() {
    let mut scene = Scene::with(&limited()).await;
    let mut other = scene.db.connect().await;
    scene.sql("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; BEGIN").await;
    text(&mut scene.conn, "SELECT body_limit FROM queue_topic WHERE name = 't'").await;
    let topic = scene.topic.clone();
    let write = async |conn: &mut _| backlog::publish(conn, &topic, FULL).await;
    assert!(!transaction(&mut other, "write", write).await.unwrap());
    scene.sql("COMMIT").await;
    assert!(transaction(&mut other, "write", write).await.unwrap());
}

#[tokio::test]
async fn a_backlog_is_read_in_stretches_of_one_topic_and_priority() {
    let mut scene = Scene::with(&limited()).await;
    let other = scene.db.topic("other").await;
    let urgent = rowmq_core::Priority::FIRST;
    for n in 0..20 {
        let messages = [
            NewMessage::new(vec![b'x'; 10 + n % 2]),
            NewMessage::new("urgent").with_priority(urgent),
        ];
        enqueue_all(&mut scene.conn, &scene.topic.name, &messages[..1 + n % 2]).await.unwrap();
        enqueue(&mut scene.conn, &other.name, &NewMessage::new("other")).await.unwrap();
    }
    let (id, conn) = (scene.topic.id, &mut scene.conn);
    let zero = RowId(0);
    let from: Vec<_> = backlog::priorities().map(|priority| (priority, zero)).collect();
    let starts = backlog::starts(conn, id, &from).await.unwrap();
    let mut found: Vec<_> = starts.iter().map(|start| start.priority).collect();
    found.sort_unstable();
    assert_eq!(found, [0, 5]);
    let first = starts.iter().find(|start| start.priority == 5).unwrap().first;
    let part = backlog::count_rows(conn, id, 5, (zero, RowId(u64::MAX)), 15).await.unwrap();
    assert_eq!(part.rows, 15);
    let last = part.last.unwrap();
    let rest = backlog::count_rows(conn, id, 5, (last, RowId(u64::MAX)), 15).await.unwrap();
    assert_eq!(rest.rows, 5);
    assert_eq!(backlog::count_rows(conn, id, 5, (first, last), 99).await.unwrap().rows, 14);
    let none = backlog::count_rows(conn, id, 7, (zero, last), 99).await.unwrap();
    assert_eq!((none.rows, none.last), (0, None));
    let sizes = backlog::sizes(conn, id, &[(5, zero), (5, last), (0, zero), (7, zero)]).await;
    assert_eq!(sizes.unwrap(), [10, 10, 6]);
    assert_eq!(backlog::sizes(conn, id, &[]).await.unwrap(), [0; 0]);
    assert_eq!(topic::limited(conn).await.unwrap().len(), 1);
    assert_eq!(backlog::starts(conn, other.id, &from[..1]).await.unwrap(), []);
}
