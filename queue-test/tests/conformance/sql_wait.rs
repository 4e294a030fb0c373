//! A claim by SQL that waits for messages. The scene's own session holds the bells, as a sweeper
//! does.

use std::time::Duration;

use mysql_async::Row;
use mysql_async::prelude::Queryable;
use rowmq_core::model::TopicId;
use rowmq_core::store::doorbell::{self, Listener};
use rowmq_test::{PATIENCE, until};

use crate::scene::{Scene, threads};
use crate::sql_consumer::SqlConsumer;

/// Longer than any test waits.
const WAIT: &str = "CALL queue_claim('t', 1, 3600)";

/// A consumer that has been a worker before: its bell has a name.
async fn consumer(scene: &Scene) -> SqlConsumer {
    let mut consumer = SqlConsumer::new(scene.db.url()).await;
    consumer.claim(1).await;
    consumer
}

/// Takes the bell of the only session that listens, once there is one.
async fn take_bell(scene: &mut Scene) -> Listener {
    let mut bell = None;
    until("a session listens", async || {
        bell = doorbell::listeners(&mut scene.conn).await.unwrap().first().copied();
        bell.is_some()
    })
    .await;
    let bell = bell.unwrap();
    until("its bell is taken", async || doorbell::take(&mut scene.conn, bell).await.unwrap()).await;
    bell
}

/// Rings it, which succeeds only while the session waits, and takes it back.
async fn ring(scene: &mut Scene, bell: Listener) {
    until("it is rung", async || {
        doorbell::ring(&mut scene.conn, &[bell]).await.unwrap() == Some(bell.worker)
    })
    .await;
    until("it is taken back", async || doorbell::take(&mut scene.conn, bell).await.unwrap()).await;
}

/// Returns once the session of this connection id waits for its bell.
async fn waits(scene: &mut Scene, id: u64) {
    until("it waits", async || {
        threads(&mut scene.conn).await.iter().any(|thread| thread.id == id && thread.in_line)
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_waits_is_woken_by_its_bell_and_waits_again_if_nothing_is_there() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let script = async {
        let bell = take_bell(&mut scene).await;
        ring(&mut scene, bell).await;
        // The first ring woke it, it found nothing, and it waits again.
        ring(&mut scene, bell).await;
        scene.enqueue(1).await;
        until("it has claimed", async || {
            doorbell::ring(&mut scene.conn, &[bell]).await.unwrap();
            scene.number("SELECT COUNT(*) FROM queue_claim").await == 1
        })
        .await;
    };
    let (rows, ()) = tokio::join!(consumer.conn.query::<Row, _>(WAIT), script);
    assert_eq!(rows.unwrap().len(), 1);
    assert_eq!(scene.hot().await, (1, 1, 1));
}

#[tokio::test]
async fn a_claim_that_waits_polls_where_no_sweeper_rings() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let script = async {
        until("it listens", async || {
            !doorbell::listeners(&mut scene.conn).await.unwrap().is_empty()
        })
        .await;
        scene.enqueue(1).await;
    };
    let (rows, ()) = tokio::join!(consumer.conn.query::<Row, _>(WAIT), script);
    assert_eq!(rows.unwrap().len(), 1);
    consumer.run("CALL queue_leave()").await;
    assert_eq!(doorbell::listeners(&mut scene.conn).await.unwrap(), []);
}

/// A claim that only discards has nothing to hand out.
#[tokio::test]
async fn a_claim_that_finds_only_expired_messages_goes_on_waiting() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    scene.enqueue(1).await;
    scene.sql("UPDATE queue_message SET expires_at = UTC_TIMESTAMP(6)").await;
    let script = async {
        until("it has expired", async || scene.hot().await == (0, 0, 0)).await;
        scene.enqueue(1).await;
    };
    let (rows, ()) = tokio::join!(consumer.conn.query::<Row, _>(WAIT), script);
    assert_eq!(rows.unwrap().len(), 1);
}

/// SLEEP does not notice that the client is gone, so a session must not poll for an hour.
#[tokio::test]
async fn a_claim_returns_soon_where_no_sweeper_rings() {
    let scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let rows = tokio::time::timeout(PATIENCE, consumer.conn.query::<Row, _>(WAIT)).await;
    assert!(rows.expect("it does not wait for an hour").unwrap().is_empty());
}

#[tokio::test]
async fn a_claim_waits_for_as_long_as_it_is_told() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let started = tokio::time::Instant::now();
    let rows: Vec<Row> = consumer.conn.query("CALL queue_claim('t', 1, 1)").await.unwrap();
    assert!(rows.is_empty());
    assert!(started.elapsed() >= Duration::from_millis(900), "it has waited");
    let script = async {
        take_bell(&mut scene).await;
    };
    let call = consumer.conn.query::<Row, _>("CALL queue_claim('t', 1, 1)");
    let (rows, ()) = tokio::join!(call, script);
    assert!(rows.unwrap().is_empty(), "a bell that does not ring");
}

#[tokio::test]
async fn a_claim_that_waits_has_no_transaction_open_and_ends_by_kill_query() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let id = consumer.id().await;
    let script = async {
        let bell = take_bell(&mut scene).await;
        ring(&mut scene, bell).await;
        waits(&mut scene, id).await;
        assert_eq!(scene.transactions().await.len(), 0);
        scene.sql(&format!("KILL QUERY {id}")).await;
    };
    let (tried, ()) = tokio::join!(consumer.tried(WAIT), script);
    assert_eq!(tried.unwrap_err(), 1317);
    doorbell::drop_all(&mut scene.conn).await.unwrap();
    scene.enqueue(1).await;
    assert_eq!(scene.hot().await, (1, 0, 0), "it has claimed nothing");
    assert_eq!(consumer.claim(1).await.len(), 1, "and the session goes on");
}

#[tokio::test]
async fn a_session_whose_client_is_gone_waits_no_longer() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let id = consumer.id().await;
    let call = tokio::spawn(async move { consumer.conn.query::<Row, _>(WAIT).await });
    take_bell(&mut scene).await;
    waits(&mut scene, id).await;
    call.abort();
    call.await.unwrap_err();
    until("its session ends", async || {
        threads(&mut scene.conn).await.iter().all(|thread| thread.id != id)
    })
    .await;
}

#[tokio::test]
async fn a_session_is_rung_for_every_topic_that_it_has_waited_for() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    let mut consumer = consumer(&scene).await;
    let mut checksums = Vec::new();
    for topic in ["t", "other", "t"] {
        consumer.run(&format!("CALL queue_claim('{topic}', 1, 1)")).await;
        let listener = doorbell::listeners(&mut scene.conn).await.unwrap()[0];
        checksums.push(listener.checksum);
        let topics = doorbell::topics_of(&mut scene.conn, listener.worker).await.unwrap();
        let both: &[TopicId] = &[scene.topic.id, other.id];
        assert_eq!(topics, both[..topics.len()]);
    }
    assert_ne!(checksums[0], checksums[1], "a sweeper sees that the topics have changed");
    assert_eq!(checksums[1], checksums[2]);
}

/// A KILL between the two statements that take the bell and give it back.
#[tokio::test]
async fn a_session_that_was_left_with_its_own_bell_gives_it_back() {
    let mut scene = Scene::new().await;
    let mut consumer = consumer(&scene).await;
    let bell = scene
        .text("SELECT CONCAT('queue:', LOWER(HEX(instance)), ':bell') FROM queue_worker")
        .await;
    consumer.run(&format!("DO GET_LOCK('{bell}', 0)")).await;
    consumer.run("CALL queue_claim('t', 1, 1)").await;
    assert_eq!(scene.number(&format!("SELECT IS_FREE_LOCK('{bell}')")).await, 1);
}
