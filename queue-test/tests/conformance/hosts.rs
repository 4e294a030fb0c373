//! Several hosts in one URL: dead and unresponsive ones are skipped, and a worker moves from one to
//! the next with everything it holds.

use rowmq_core::connection::{ServerUrl, Session, SessionKind, connect};
use rowmq_core::doctor::{Verdict, examine, require};
use rowmq_core::model::{OnDone, Settlement};
use rowmq_core::store::topic;
use rowmq_core::worker::{Phase, SettleOutcome, Settled, Worker};
use rowmq_core::{Delivery, Error, Fault, MsgId};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{greeted, until};
use std::time::Duration;

use crate::scene::{Scene, claim_n};

/// An address without a listener.
const DEAD: &str = "127.0.0.1:1";

/// Returns the URL of the scene's database through these proxies, in this order.
fn by_way_of(scene: &Scene, proxies: &[&FaultProxy]) -> ServerUrl {
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    scene.db.url().with_hosts(hosts.iter().map(String::as_str)).unwrap()
}

#[tokio::test]
async fn hosts_that_are_dead_or_dark_are_passed_over() {
    let scene = Scene::new().await;
    let dark = FaultProxy::start(scene.db.url()).await;
    dark.blackhole();
    let dark = dark.address().to_string();
    let server = scene.db.url().server();
    let url = scene.db.url().with_hosts([DEAD, dark.as_str(), server.as_str()]).unwrap();
    let mut conn = greeted(async || connect(&url, SessionKind::Plain).await).await.unwrap();
    assert_eq!(topic::all(&mut conn).await.unwrap().len(), 1);
    let report = greeted(async || require(&url).await).await.unwrap();
    let hosts = report.checks.iter().find(|check| check.name == "hosts").unwrap();
    assert_eq!(hosts.verdict, Verdict::Warning, "{hosts:?}");
    assert!(hosts.detail.contains(&format!("{DEAD} cannot be reached")), "{hosts:?}");
    assert!(hosts.detail.contains(&format!("{server} takes writes")), "{hosts:?}");
}

#[tokio::test]
async fn without_any_host_one_sentence_says_what_is_the_matter_with_each() {
    let scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    proxy.refuse();
    let proxy = proxy.address().to_string();
    let url = scene.db.url().with_hosts([DEAD, proxy.as_str()]).unwrap();
    let refused = connect(&url, SessionKind::Plain).await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::NoWriter { .. }), "{refused}");
    assert_eq!(refused.fault(), Fault::Gone);
    let text = refused.to_string();
    assert!(text.contains(&format!("{DEAD}: ")) && text.contains(&format!("{proxy}: ")), "{text}");
    assert!(!text.contains("queue:queue"), "{text}");
    let refused = examine(&url).await.unwrap_err();
    assert!(matches!(refused, Error::NoWriter { .. }), "{refused}");
}

/// An account that one server does not know may be known to the others; if to none, trying again is
/// useless.
#[tokio::test]
async fn an_account_that_no_host_knows_is_refused_for_good() {
    let scene = Scene::new().await;
    let (a, b) = (FaultProxy::start(scene.db.url()).await, FaultProxy::start(scene.db.url()).await);
    let url = by_way_of(&scene, &[&a, &b]).with_account("nobody", "geheim").unwrap();
    let refused = greeted(async || connect(&url, SessionKind::Plain).await).await;
    let refused = refused.map(|_| ()).unwrap_err();
    assert_eq!(refused.fault(), Fault::Denied, "{refused}");
    assert!(!refused.is_transient() && !refused.to_string().contains("geheim"), "{refused}");
}

/// A primary cut off from its group accepts connections and statements, but none of its commits
/// ends.
#[tokio::test]
async fn a_host_whose_answers_fail_to_come_is_left_for_the_next() {
    let scene = Scene::new().await;
    let (a, b) = (FaultProxy::start(scene.db.url()).await, FaultProxy::start(scene.db.url()).await);
    let url = by_way_of(&scene, &[&a, &b]);
    let soon = Duration::from_millis(300);
    let mut session = Session::open(&url, SessionKind::Plain, soon).await.unwrap();
    a.blackhole();
    let silent = session.call("ask", async |conn| topic::all(conn).await).await.unwrap_err();
    assert!(matches!(silent, Error::Deadline { .. }) && session.is_lost(), "{silent}");
    // It would answer again, but it is not the first host to be tried.
    a.pass();
    let patient = Duration::from_secs(60);
    let mut session = Session::open(&url, SessionKind::Plain, patient).await.unwrap();
    a.refuse();
    session.call("ask", async |conn| topic::all(conn).await).await.unwrap();
}

#[tokio::test]
async fn a_worker_takes_its_claims_along_from_one_host_to_the_next() {
    let mut scene = Scene::new().await;
    let (a, b) = (FaultProxy::start(scene.db.url()).await, FaultProxy::start(scene.db.url()).await);
    let url = by_way_of(&scene, &[&a, &b]);
    scene.enqueue(3).await;
    let worker = scene.worker_with(|options| options.url = url).await;
    let topic = scene.topic.id;
    for (gone, back) in [(&a, &b), (&b, &a)] {
        let held = claim_n(&worker, topic, 1).await;
        back.pass();
        gone.refuse();
        let settled = worker.settle(held.iter().map(ack).collect()).await.unwrap();
        assert_eq!(settled, [SettleOutcome::Settled]);
        until("it is alive again", async || worker.life().borrow().phase == Phase::Alive).await;
    }
    let last = claim_n(&worker, topic, 1).await;
    assert_eq!(last[0].delivery_no.0, 1);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_worker").await, 1);
}

/// Saves the messages and claims as they are now.
const KEEP: &str = "CREATE TABLE kept_message AS SELECT * FROM queue_message; \
     CREATE TABLE kept_claim AS SELECT * FROM queue_claim";

/// Restores rows that are gone, as a failover to an asynchronous replica does.
const UNDO: &str = "INSERT IGNORE INTO queue_message SELECT * FROM kept_message; \
     INSERT IGNORE INTO queue_claim SELECT * FROM kept_claim";

/// Makes the worker's work session reconnect.
async fn reconnect(scene: &mut Scene, worker: &Worker) {
    let empty = scene.db.topic(&format!("empty-{}", MsgId::new())).await.id;
    let conn = scene.text("SELECT CAST(conn_id AS CHAR) FROM queue_worker").await;
    scene.sql(&format!("KILL {conn}")).await;
    until("the work session is another", async || {
        // A claim finds the session lost.
        drop(worker.claim(empty, 1).await);
        scene.text("SELECT CAST(conn_id AS CHAR) FROM queue_worker").await != conn
    })
    .await;
}

fn ack(delivery: &Delivery) -> Settled {
    Settled::new(delivery, Settlement::Ack, OnDone::Delete)
}

/// A failover to an asynchronous replica undoes settlements: the rows are claimed again by a live
/// worker that has long forgotten them, and no other worker would ever take them back.
#[tokio::test]
async fn claims_whose_settlement_a_failover_has_undone_are_given_back() {
    let mut scene = Scene::new().await;
    scene.enqueue(2).await;
    let worker = scene.worker().await;
    let topic = scene.topic.id;
    let held = claim_n(&worker, topic, 2).await;
    scene.sql(KEEP).await;
    worker.settle(held.iter().map(ack).collect()).await.unwrap();
    // The first reconnect is an ordinary one, after which the worker has no old claims to look for.
    for then in ["SELECT 1", UNDO] {
        scene.sql(then).await;
        reconnect(&mut scene, &worker).await;
    }
    until("nothing is claimed by what was", async || {
        let old = held[0].delivery_no.0;
        drop(worker.claim(topic, 2).await);
        scene.number(&format!("SELECT COUNT(*) FROM queue_message WHERE delivery_no = {old}")).await
            == 0
    })
    .await;
}

/// The same for a claim with other rows that the worker still holds.
#[tokio::test]
async fn rows_whose_settlement_is_undone_are_given_back_and_the_others_of_their_claim_kept() {
    let mut scene = Scene::new().await;
    scene.enqueue(3).await;
    let worker = scene.worker().await;
    let held = claim_n(&worker, scene.topic.id, 3).await;
    assert_eq!(held[0].claim_no, held[2].claim_no);
    scene.sql(KEEP).await;
    worker.settle(vec![ack(&held[0])]).await.unwrap();
    scene.sql(UNDO).await;
    reconnect(&mut scene, &worker).await;
    until("it is ready", async || scene.hot().await == (3, 2, 1)).await;
    worker.settle(held[1..].iter().map(ack).collect()).await.unwrap();
    assert_eq!(scene.hot().await, (1, 0, 0));
}

/// The same for rows that handlers' transactions had acked: the worker learns that they are back.
#[tokio::test]
async fn a_claim_that_is_forgotten_gives_back_the_rows_it_has_again() {
    for n in [1, 2] {
        let mut scene = Scene::new().await;
        scene.enqueue(2).await;
        let worker = scene.worker().await;
        let held = claim_n(&worker, scene.topic.id, 2).await;
        let gone = held[..n].iter().map(|delivery| (delivery.claim_no, delivery.row));
        reconnect(&mut scene, &worker).await;
        worker.forget(gone.collect()).await.unwrap();
        worker.settle(held[n..].iter().map(ack).collect()).await.unwrap();
        assert_eq!(scene.hot().await, (n as i64, 0, 0), "ready, and no claim is left");
    }
}
