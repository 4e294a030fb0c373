//! What each topic allows: its own rule, and the switch for all topics at once.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use rowmq_core::connection::{Session, SessionKind, transaction};
use rowmq_core::doctor::{Verdict, examine};
use rowmq_core::model::{Access, ClosedBy, Recurrence, Schedule, ScheduleName, Settlement};
use rowmq_core::schedule;
use rowmq_core::store::dead::DeadFilter;
use rowmq_core::store::topic::{existing, set_access};
use rowmq_core::store::{floor, schedule as stored, switch};
use rowmq_core::worker::Worker;
use rowmq_core::{Error, NewMessage, Topic, TopicName, dead, enqueue};
use rowmq_test::until;

use crate::scene::{Scene, all, bodies, claim_n, retry, settle};
use crate::sql_contract::{client, refusal};
use crate::streams::{self, Stream};

/// Waits until the worker knows whether it may claim from the topic.
async fn heard(worker: &Worker, topic: &Topic, may_claim: bool) {
    let life = worker.life();
    until("the worker hears of the rule", async || {
        life.borrow().pulse.may_claim(topic.id) == may_claim
    })
    .await;
}

async fn refused(scene: &mut Scene) -> Option<ClosedBy> {
    match enqueue(&mut scene.conn, &scene.topic.name, &NewMessage::new("x")).await {
        Ok(_) => None,
        Err(Error::TopicPaused { topic, by }) if topic == scene.topic.name => Some(by),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn the_switch_holds_beside_each_topics_own_rule() {
    let mut scene = Scene::new().await;
    let name = scene.topic.name.clone();
    assert_eq!(switch::read(&mut scene.conn).await.unwrap(), Access::ReadWrite);
    for all in Access::ALL {
        switch::set(&mut scene.conn, all).await.unwrap();
        assert_eq!(switch::read(&mut scene.conn).await.unwrap(), all);
        for own in Access::ALL {
            set_access(&mut scene.conn, &name, own).await.unwrap();
            let topic = existing(&mut scene.conn, &name).await.unwrap();
            assert_eq!((topic.access, topic.effective_access), (own, own.and(all)));
            let expected = match (own.may_enqueue(), all.may_enqueue()) {
                (false, _) => Some(ClosedBy::Topic),
                (true, false) => Some(ClosedBy::Switch),
                (true, true) => None,
            };
            assert_eq!(refused(&mut scene).await, expected, "{own} {all}");
            let pulse = floor::pulse(&mut scene.conn).await.unwrap();
            assert_eq!(pulse.may_claim(topic.id), own.and(all).may_claim(), "{own} {all}");
        }
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_switch").await, 1);
}

#[tokio::test]
async fn the_switch_closes_every_way_into_a_topic_and_says_how_to_open_it() {
    let mut scene = Scene::new().await;
    scene.enqueue(1).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    let cause = rowmq_core::model::DeadCause::Handler;
    let dead_letter = Settlement::DeadLetter { cause, error: "no".to_owned() };
    settle(&worker, all(&got, &dead_letter)).await;
    let recurrence = Recurrence::new("* * * * *", "UTC").unwrap();
    let nightly = ScheduleName::new("nightly").unwrap();
    let ticking = Schedule::new(nightly.clone(), scene.topic.name.clone(), recurrence);
    schedule::set(&mut scene.conn, &ticking).await.unwrap();
    scene.sql("UPDATE queue_schedule SET next_at = '2026-01-01 02:00:00'").await;
    assert_eq!(stored::next(&mut scene.conn, 10).await.unwrap().len(), 1);

    switch::set(&mut scene.conn, Access::ReadOnly).await.unwrap();
    scene.topic = existing(&mut scene.conn, &scene.topic.name).await.unwrap();
    let error = enqueue(&mut scene.conn, &scene.topic.name, &NewMessage::new("x")).await;
    let says = error.unwrap_err().to_string();
    assert!(says.contains("nor does any other: `rowmq access read-write`"), "{says}");
    let mut conn = client(scene.db.url()).await;
    for call in [
        "CALL queue_send('t', 'b', NULL)",
        r#"CALL queue_send('t', 'b', '{"deliver_at":"2100-01-01"}')"#,
    ] {
        let (code, _, text) = refusal(&mut conn, call).await;
        assert_eq!(code, 31002, "{text}");
        assert!(text.ends_with("rowmq access read-write"), "{text}");
    }
    assert_eq!(stored::next(&mut scene.conn, 10).await.unwrap(), []);
    let tick =
        transaction(&mut scene.conn, "tick", async |conn| schedule::tick(conn, &nightly).await);
    assert!(matches!(tick.await, Err(Error::TopicPaused { by: ClosedBy::Switch, .. })));
    let mut session = scene.session().await;
    let redriven =
        dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, |_| {}).await;
    assert!(matches!(redriven, Err(Error::TopicPaused { by: ClosedBy::Switch, .. })));
    assert_eq!(scene.hot().await.0, 0);

    // An unknown topic is still reported as unknown, and the topic's own rule comes before the
    // switch.
    let (code, ..) = refusal(&mut conn, "CALL queue_send('no', 'b', NULL)").await;
    assert_eq!(code, 31001);
    set_access(&mut scene.conn, &scene.topic.name, Access::Denied).await.unwrap();
    let (_, _, text) = refusal(&mut conn, "CALL queue_send('t', 'b', NULL)").await;
    assert!(text.ends_with("rowmq topic resume NAME"), "{text}");
    set_access(&mut scene.conn, &scene.topic.name, Access::ReadWrite).await.unwrap();
    switch::set(&mut scene.conn, Access::WriteOnly).await.unwrap();
    conn.query_drop("CALL queue_send('t', 'b', NULL)").await.unwrap();
}

#[tokio::test]
async fn under_a_switch_that_lets_nothing_be_claimed_messages_wait_and_what_runs_ends() {
    let mut scene = Scene::new().await;
    scene.enqueue(4).await;
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 2).await;
    switch::set(&mut scene.conn, Access::WriteOnly).await.unwrap();
    heard(&worker, &scene.topic, false).await;
    let none = worker.claim(scene.topic.id, 10).await.unwrap();
    assert_eq!((none.deliveries.len(), none.suspect_waits), (0, false));
    assert_eq!(worker.claim_suspect(scene.topic.id).await.unwrap().deliveries, []);
    // What was claimed before is settled, even as a retry, and becomes due.
    settle(&worker, all(&got[..1], &Settlement::Ack)).await;
    settle(&worker, all(&got[1..], &retry(Duration::ZERO))).await;
    assert_eq!(crate::moves::promote(&mut scene.conn, 10).await, 1);
    assert_eq!(scene.hot().await, (3, 0, 0));
    switch::set(&mut scene.conn, Access::ReadOnly).await.unwrap();
    heard(&worker, &scene.topic, true).await;
    assert_eq!(claim_n(&worker, scene.topic.id, 3).await.len(), 3);
}

#[tokio::test]
async fn a_streams_rule_holds_for_its_groups_and_a_groups_only_for_itself() {
    let mut stream = Stream::new(1).await;
    let (a, b) = (stream.group("a", false).await, stream.group("b", false).await);
    stream.enqueue(0..6).await;
    let worker = stream.worker().await;
    let got = streams::claim_n(&worker, &a, 2).await;
    worker.settle(all(&got[..1], &Settlement::Ack)).await.unwrap();
    worker.settle(all(&got[1..], &retry(Duration::ZERO))).await.unwrap();
    until("the retry is filed", async || crate::moves::promote(&mut stream.conn, 10).await == 1)
        .await;

    // Groups of a write-only stream claim nothing: neither from the stream nor from their retries.
    let name = stream.topic.name.clone();
    set_access(&mut stream.conn, &name, Access::WriteOnly).await.unwrap();
    for group in [&a, &b] {
        heard(&worker, group, false).await;
        let range = worker.claim_range(group.group().unwrap(), 10).await.unwrap();
        assert_eq!((range.deliveries.len(), range.more_later), (0, false));
        assert_eq!(worker.claim(group.id, 10).await.unwrap().deliveries, []);
        let found = existing(&mut stream.conn, &group.name).await.unwrap();
        let access = (found.access, found.effective_access);
        assert_eq!(access, (Access::ReadWrite, Access::WriteOnly));
    }
    stream.enqueue(6..8).await;

    // A read-only stream accepts nothing, and its groups go on.
    set_access(&mut stream.conn, &name, Access::ReadOnly).await.unwrap();
    let refused = enqueue(&mut stream.conn, &name, &NewMessage::new("x")).await;
    assert!(matches!(refused, Err(Error::TopicPaused { by: ClosedBy::Topic, .. })));
    let mut conn = client(stream.db.url()).await;
    let call = "CALL queue_send('s', 'b', NULL)";
    assert_eq!(refusal(&mut conn, call).await.0, 31002);
    heard(&worker, &a, true).await;
    let retried = claim_n(&worker, a.id, 1).await;
    assert_eq!(bodies(&retried), ["1"]);
    assert_eq!(streams::claim_n(&worker, &a, 6).await.len(), 6);

    // A denied group: the rule affects this group alone, and nothing can be redriven into it.
    set_access(&mut stream.conn, &b.name, Access::Denied).await.unwrap();
    heard(&worker, &b, false).await;
    assert_eq!(worker.claim_range(b.group().unwrap(), 10).await.unwrap().deliveries, []);
    let denied = existing(&mut stream.conn, &b.name).await.unwrap();
    let deadline = Duration::from_secs(30);
    let opened = Session::open(stream.db.url(), SessionKind::Plain, deadline).await;
    let mut session = opened.unwrap();
    let redriven = dead::redrive(&mut session, &denied, &DeadFilter::default(), None, |_| {}).await;
    assert!(matches!(redriven, Err(Error::TopicPaused { .. })));
    let life = worker.life();
    assert!(life.borrow().pulse.may_claim(a.id));
    set_access(&mut stream.conn, &b.name, Access::ReadWrite).await.unwrap();
    heard(&worker, &b, true).await;
    assert_eq!(streams::claim_n(&worker, &b, 8).await.len(), 8);
}

#[tokio::test]
async fn the_self_test_warns_of_a_switch_that_was_left_on() {
    let mut scene = Scene::new().await;
    let found = async |scene: &Scene| {
        let report = examine(scene.db.url()).await.unwrap();
        assert_eq!(report.failures().count(), 0);
        report.checks.into_iter().find(|check| check.name == "access").unwrap()
    };
    assert_eq!(found(&scene).await.verdict, Verdict::Ok);
    switch::set(&mut scene.conn, Access::Denied).await.unwrap();
    let check = found(&scene).await;
    assert_eq!(check.verdict, Verdict::Warning);
    assert!(check.detail.starts_with("denied for all topics"), "{}", check.detail);
}

#[tokio::test]
async fn a_rule_that_sql_sets_by_hand_is_one_of_the_four_too() {
    let mut scene = Scene::new().await;
    scene.sql("INSERT INTO queue_switch VALUES (1, 1, 0, UTC_TIMESTAMP(6))").await;
    assert_eq!(switch::read(&mut scene.conn).await.unwrap(), Access::ReadOnly);
    let second = "INSERT INTO queue_switch VALUES (2, 0, 0, UTC_TIMESTAMP(6))";
    crate::scene::failure(&mut scene.conn, second).await;
    scene.sql("DELETE FROM queue_switch").await;
    let name = TopicName::new("t").unwrap();
    let found = existing(&mut scene.conn, &name).await.unwrap();
    assert_eq!(found.effective_access, Access::ReadWrite);
}
