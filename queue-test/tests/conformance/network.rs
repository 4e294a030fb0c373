//! The proxy with which the other tests break connections does what it says.

use std::time::Duration;

use rowmq_core::connection::{Session, SessionKind, transaction};
use rowmq_core::store::doctor::connection_ids;
use rowmq_core::{Error, Fault, NewMessage, enqueue};
use rowmq_test::proxy::{FaultProxy, Side};
use rowmq_test::{connected, greeted, session_at, until};

use crate::scene::{Scene, threads};

/// Short: the test waits for it.
const DEADLINE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_trap_waits_for_the_execution_of_a_prepared_statement() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let (url, name) = (proxy.url(scene.db.url()), scene.topic.name.clone());
    for prepared in [false, true] {
        let mut conn = connected(&url).await;
        if prepared {
            enqueue(&mut conn, &name, &NewMessage::new("m")).await.unwrap();
        }
        let before = scene.hot().await.0;
        proxy.drop_reply_after("INSERT INTO queue_message");
        let error = enqueue(&mut conn, &name, &NewMessage::new("m")).await.unwrap_err();
        assert_eq!(error.fault(), Fault::Gone, "{error}");
        proxy.sprung().await;
        assert_eq!(scene.hot().await.0, before + 1, "it was executed");
    }
}

#[tokio::test]
async fn a_connection_cut_at_one_end_stays_open_at_the_other() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    for side in [Side::Client, Side::Server] {
        let url = proxy.url(scene.db.url());
        let opened = greeted(async || {
            let before = proxy.ports();
            Ok((Session::open(&url, SessionKind::Plain, DEADLINE).await?, before))
        });
        let (mut session, before) = opened.await.unwrap();
        let ids = session.call("test", async |conn| connection_ids(conn).await).await.unwrap();
        let port = proxy.ports().into_iter().find(|port| !before.contains(port)).unwrap();
        proxy.cut(port, side);
        let lost = session.call("test", async |conn| connection_ids(conn).await).await;
        let error = lost.unwrap_err();
        let is_listed = async |scene: &mut Scene| {
            threads(&mut scene.conn).await.iter().any(|thread| thread.id == ids.1.0)
        };
        match side {
            Side::Client => {
                assert_eq!(error.fault(), Fault::Gone, "{error}");
                assert!(is_listed(&mut scene).await, "the server has not noticed");
            }
            Side::Server => {
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
                until("the server has noticed", async || !is_listed(&mut scene).await).await;
            }
        }
    }
}

#[tokio::test]
async fn a_connection_that_goes_dark_in_a_transaction_leaves_it_open() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let name = scene.topic.name.clone();
    let url = proxy.url(scene.db.url());
    let mut session = session_at(&url, DEADLINE).await;
    proxy.darken_at("COMMIT");
    let work = async |conn: &mut _| enqueue(conn, &name, &NewMessage::new("m")).await;
    let lost = session.transaction("test", work).await;
    assert!(matches!(lost, Err(Error::UnknownOutcome { .. })), "{lost:?}");
    proxy.sprung().await;
    let open = scene.transactions().await;
    assert_eq!(open.len(), 1, "{open:?}");
    proxy.reset();
    until("the server has rolled it back", async || scene.transactions().await.is_empty()).await;
}

#[tokio::test]
async fn a_slow_network_delays_and_loses_nothing() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let name = scene.topic.name.clone();
    let mut conn = connected(&proxy.url(scene.db.url())).await;
    let patience = Duration::from_millis(500);
    let url = proxy.url(scene.db.url());
    let mut hasty = session_at(&url, patience).await;
    proxy.delay(Duration::from_millis(50));
    transaction(&mut conn, "test", async |conn| enqueue(conn, &name, &NewMessage::new("m")).await)
        .await
        .unwrap();
    assert_eq!(scene.hot().await.0, 1);
    proxy.delay(DEADLINE);
    // A statement sent right after a reply also counts as in flight.
    until("a call misses its deadline", async || {
        let late = hasty.call("test", async |conn| connection_ids(conn).await).await;
        matches!(late, Err(Error::Deadline { .. }))
    })
    .await;
}
