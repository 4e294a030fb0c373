//! What a consumer does when it is rung, with a sweeper that the test plays.

use std::time::Duration;

use diesel_async::AsyncMysqlConnection;
use rowmq_core::NewMessage;
use rowmq_core::model::WorkerId;
use rowmq_core::store::doorbell::{self, Listener};
use rowmq_test::{TestDatabase, until};

use crate::doorbell::{Bell, waiters, waiting};
use crate::handling::running::send;

/// Takes every bell, once so many workers listen.
async fn take_all(conn: &mut AsyncMysqlConnection, n: usize) -> Vec<Listener> {
    let mut listeners = Vec::new();
    until("they listen", async || {
        listeners = doorbell::listeners(conn).await.expect("listed");
        listeners.len() == n
    })
    .await;
    for listener in &listeners {
        until("taken", async || doorbell::take(conn, *listener).await.expect("asked")).await;
    }
    listeners
}

/// Rings until it knows whom it has woken: a worker that is very quick may go unnoticed.
async fn ring(conn: &mut AsyncMysqlConnection, bells: &[Listener]) -> WorkerId {
    let mut woken = None;
    until("one is woken", async || {
        woken = doorbell::ring(conn, bells).await.expect("rung");
        woken.is_some()
    })
    .await;
    woken.expect("one is woken")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_not_rung_leaves_messages_alone() {
    let database = TestDatabase::new().await;
    let topic = database.topic("quiet").await;
    let mut bell = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    let bells = take_all(&mut conn, 1).await;
    waiting(&database, 1).await;
    // The claim with which it began to listen may still find the first ones.
    until("a message is left alone", async || {
        send(&database, &topic, &[NewMessage::new("x")]).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut left = true;
        while bell.handled.try_recv().is_ok() {
            left = false;
        }
        left
    })
    .await;
    doorbell::ring(&mut conn, &bells).await.expect("rung");
    bell.handles(b"x").await;
    bell.running.stop().await;
}

/// Of several that wait one is woken; one that does not wait is passed over.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_wakes_one_of_those_that_wait() {
    let database = TestDatabase::new().await;
    let topic = database.topic("many").await;
    let running: Vec<_> = (0..3).map(|_| Bell::start(database.url(), &[&topic])).collect();
    let mut conn = database.connect().await;
    let mut bells = take_all(&mut conn, 3).await;
    waiting(&database, 3).await;
    let mut woken = Vec::new();
    for left in [2, 1, 0] {
        let rung = ring(&mut conn, &bells).await;
        woken.push(rung);
        bells.retain(|bell| bell.worker != rung);
        // The bell of the worker that was woken is free, so the worker no longer waits.
        until("one fewer waits", async || waiters(&mut conn).await == Some(left)).await;
    }
    woken.sort_unstable();
    woken.dedup();
    assert_eq!(woken.len(), 3, "each once");
    for bell in running {
        bell.running.stop().await;
    }
}

/// The server evaluates one attempt after the other, and stops at the first that wakes a worker.
#[tokio::test(flavor = "multi_thread")]
async fn a_ring_tries_no_bell_behind_the_one_that_was_waited_for() {
    let database = TestDatabase::new().await;
    let topic = database.topic("order").await;
    let first = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    let bells = take_all(&mut conn, 1).await;
    waiting(&database, 1).await;
    let silent = Listener { instance: NewMessage::new("").msg_id.0, ..bells[0] };
    // The sweeper takes bells again after an error: the lock must not be stacked.
    for listener in [silent, bells[0]] {
        assert!(doorbell::take(&mut conn, listener).await.expect("asked"));
    }
    assert_eq!(doorbell::ring(&mut conn, &[silent]).await.expect("rung"), None);
    let order = [silent, bells[0], silent];
    assert_eq!(ring(&mut conn, &order).await, bells[0].worker);
    // The silent one's bell was taken back, and was not let go of a second time.
    let mut other = database.connect().await;
    assert!(!doorbell::take(&mut other, silent).await.expect("asked"));
    first.running.stop().await;
}
