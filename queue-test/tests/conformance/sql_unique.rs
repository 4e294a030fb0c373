//! Given ids and unique keys through the plain SQL contract, as any language uses it.

use std::time::Duration;

use futures_util::future::join_all;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::dead;
use rowmq_core::model::{DeadCause, Settlement, TopicSettings};
use rowmq_core::store::dead::DeadFilter;
use rowmq_test::session_at;
use uuid::Uuid;

use crate::moves::promote;
use crate::scene::{Scene, all, bodies, claim_n, settle};
use crate::sql_contract::{client, refusal};

const HOUR: Duration = Duration::from_secs(3600);

async fn scene() -> Scene {
    let settings = TopicSettings { dedupe_window: Some(HOUR), ..TopicSettings::default() };
    Scene::with(&settings).await
}

/// Returns what a call in its own transaction left: id, duplicate, replaced.
async fn called(conn: &mut Conn, call: &str) -> (String, u8, u8) {
    for round in 0.. {
        conn.query_drop("START TRANSACTION").await.unwrap();
        let done = match conn.query_drop(call).await {
            Ok(()) => conn.query_drop("COMMIT").await,
            failed => failed,
        };
        match done {
            Ok(()) => break,
            // Neither server lets all of them through at once: a deadlock, or, on MariaDB at
            // REPEATABLE READ, a row that another session has changed since the transaction began.
            Err(mysql_async::Error::Server(error))
                if matches!(error.code, 1213 | 1020) && round < 50 =>
            {
                conn.query_drop("ROLLBACK").await.unwrap();
            }
            Err(error) => panic!("{call}: {error}"),
        }
    }
    let left = "SELECT @queue_msg_id, @queue_duplicate, @queue_replaced";
    conn.query_first(left).await.unwrap().unwrap()
}

fn with_id(id: Uuid) -> String {
    format!(r#"CALL queue_send('t', 'm', '{{"id":"{id}"}}')"#)
}

/// Builds a call with these options.
fn unique(body: &str, options: &str) -> String {
    format!("CALL queue_send_unique('t', '{body}', '{options}')")
}

#[tokio::test]
async fn an_id_sent_twice_is_one_message_during_the_window() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let id = Uuid::now_v7();
    assert_eq!(called(&mut conn, &with_id(id)).await, (id.to_string(), 0, 0));
    assert_eq!(called(&mut conn, &with_id(id)).await, (id.to_string(), 1, 0));
    let later = format!(r#"CALL queue_send('t', 'm', '{{"deliver_in":0,"id":"{id}"}}')"#);
    assert_eq!(called(&mut conn, &later).await.1, 1);
    let worker = scene.worker().await;
    settle(&worker, all(&claim_n(&worker, scene.topic.id, 1).await, &Settlement::Ack)).await;
    assert_eq!(called(&mut conn, &with_id(id)).await.1, 1);
    scene.sql("UPDATE queue_dedupe SET keep_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND").await;
    assert_eq!(called(&mut conn, &with_id(id)).await.1, 0);
    // Without a given id a message needs no transaction.
    conn.query_drop("CALL queue_send('t', 'm', NULL)").await.unwrap();
    assert_eq!(scene.hot().await.0, 2);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 1);
}

#[tokio::test]
async fn of_32_clients_that_send_one_id_or_one_key_at_once_one_stores_it() {
    let mut scene = scene().await;
    let id = Uuid::now_v7();
    for call in [with_id(id), unique("m", r#"{"unique":"k"}"#)] {
        let clients = (0..32).map(async |_| {
            let mut conn = client(scene.db.url()).await;
            called(&mut conn, &call).await
        });
        let left = join_all(clients).await;
        assert_eq!(left.iter().filter(|(_, duplicate, _)| *duplicate == 0).count(), 1, "{call}");
        assert!(left.iter().all(|(id, ..)| *id == left[0].0), "{call}");
    }
    assert_eq!(scene.hot().await.0, 2);
}

#[tokio::test]
async fn what_takes_several_statements_is_refused_in_autocommit() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    for call in [with_id(Uuid::now_v7()), unique("m", r#"{"unique":"k","unique_for":60}"#)] {
        let (number, state, text) = refusal(&mut conn, &call).await;
        assert_eq!((number, state.as_str()), (31013, "45000"), "{text}");
    }
    let left = "SELECT (SELECT COUNT(*) FROM queue_dedupe) + (SELECT COUNT(*) FROM queue_unique)";
    assert_eq!(scene.number(left).await, 0);
    conn.query_drop("SET autocommit = 0").await.unwrap();
    conn.query_drop(with_id(Uuid::now_v7())).await.unwrap();
    conn.query_drop("COMMIT").await.unwrap();
    assert_eq!(scene.hot().await.0, 1);
}

#[tokio::test]
async fn a_call_that_fails_half_way_leaves_nothing_in_a_transaction_that_is_committed() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let id = Uuid::now_v7();
    conn.query_drop("START TRANSACTION").await.unwrap();
    let long = "k".repeat(256);
    let options = format!(r#"{{"unique":"k","key":"{long}","id":"{id}"}}"#);
    let failed = conn.query_drop(unique("m", &options)).await.unwrap_err();
    assert!(matches!(&failed, mysql_async::Error::Server(error) if error.code == 1406), "{failed}");
    conn.query_drop("COMMIT").await.unwrap();
    let left = "SELECT (SELECT COUNT(*) FROM queue_dedupe) + (SELECT COUNT(*) FROM queue_unique)";
    assert_eq!(scene.number(left).await, 0);
    assert_eq!(called(&mut conn, &with_id(id)).await.1, 0);
}

#[tokio::test]
async fn a_key_is_held_until_done_or_for_a_time() {
    let scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let (done, hour) =
        (r#"{"unique":"done"}"#, r#"{"unique":"hour","unique_for":"1h","on_conflict":"keep"}"#);
    let first =
        [called(&mut conn, &unique("m", done)).await, called(&mut conn, &unique("m", hour)).await];
    for (rest, first) in [(done, &first[0]), (hour, &first[1])] {
        assert_eq!(called(&mut conn, &unique("m", rest)).await, (first.0.clone(), 1, 0));
    }
    let worker = scene.worker().await;
    settle(&worker, all(&claim_n(&worker, scene.topic.id, 2).await, &Settlement::Ack)).await;
    assert_eq!(called(&mut conn, &unique("m", done)).await.1, 0);
    assert_eq!(called(&mut conn, &unique("m", hour)).await.1, 1);
}

#[tokio::test]
async fn a_message_is_replaced_while_it_waits_and_followed_by_another_when_it_does_not() {
    let scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let replace = r#"{"unique":"k","on_conflict":"replace"}"#;
    let first = called(&mut conn, &unique("old", replace)).await.0;
    assert_eq!(called(&mut conn, &unique("new", replace)).await, (first.clone(), 1, 1));
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(bodies(&got), ["new"]);
    let second = called(&mut conn, &unique("next", replace)).await;
    assert_eq!((second.0 != first, second.1), (true, 0));
    assert_eq!(called(&mut conn, &unique("last", replace)).await, (second.0, 1, 1));
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(bodies(&claim_n(&worker, scene.topic.id, 1).await), ["last"]);
}

#[tokio::test]
async fn what_a_key_refuses_leaves_its_id_free_and_the_same_message_replaces_nothing() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let [first, second] = [Uuid::now_v7(), Uuid::now_v7()];
    let send = |id: Uuid, choice: &str| {
        unique("m", &format!(r#"{{"unique":"k","on_conflict":"{choice}","id":"{id}"}}"#))
    };
    called(&mut conn, &send(first, "replace")).await;
    assert_eq!(called(&mut conn, &send(second, "keep")).await, (first.to_string(), 1, 0));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 1);
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    scene.sql("DELETE FROM queue_dedupe").await;
    assert_eq!(called(&mut conn, &send(first, "replace")).await, (first.to_string(), 1, 0));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_dedupe").await, 1);
    settle(&worker, all(&got, &Settlement::Ack)).await;
    assert_eq!(called(&mut conn, &send(second, "keep")).await, (second.to_string(), 0, 0));
}

#[tokio::test]
async fn a_replacement_without_a_moment_makes_the_first_due_now_and_a_redriven_one_is_left_alone() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let later = unique("later", r#"{"unique":"k","on_conflict":"replace","deliver_in":"1d"}"#);
    let first = called(&mut conn, &later).await.0;
    let now = unique("now", r#"{"unique":"k","on_conflict":"replace"}"#);
    assert_eq!(called(&mut conn, &now).await, (first.clone(), 1, 1));
    assert_eq!(promote(&mut scene.conn, 10).await, 1);
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 1).await;
    assert_eq!(bodies(&got), ["now"]);
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    settle(&worker, all(&got, &dead)).await;
    let mut session = session_at(scene.db.url(), HOUR).await;
    dead::redrive(&mut session, &scene.topic, &DeadFilter::default(), None, drop).await.unwrap();
    let second = called(&mut conn, &now).await;
    assert_eq!((second.0 != first, second.1), (true, 0));
    assert_eq!(called(&mut conn, &now).await, (second.0, 1, 1));
    assert_eq!(scene.hot().await.0, 2);
}

#[tokio::test]
async fn a_debounced_message_waits_anew_but_no_longer_than_its_longest_wait() {
    let mut scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let seconds = "SELECT TIMESTAMPDIFF(SECOND, enqueued_at, due_at) FROM queue_scheduled";
    for (wait, most) in [(100, "null"), (200, "null"), (900, r#""5m""#)] {
        let options = format!(
            r#"{{"unique":"k","on_conflict":"debounce","max_wait":{most},"deliver_in":{wait}}}"#
        );
        called(&mut conn, &unique(&wait.to_string(), &options)).await;
        let waits = scene.number(seconds).await;
        // The moment was computed before its own call and after the first one, and the machine may
        // be busy.
        let expected = wait.min(300);
        let latest = if most == "null" { expected + 30 } else { expected };
        assert!((expected - 30..=latest).contains(&waits), "{wait}: {waits}");
    }
    assert_eq!(scene.text("SELECT body FROM queue_scheduled").await, "900");
}

#[tokio::test]
async fn what_does_not_go_together_is_refused() {
    let scene = scene().await;
    let mut conn = client(scene.db.url()).await;
    let long = format!(r#"{{"unique":"{}"}}"#, "k".repeat(256));
    for (options, expected) in [
        (r#"{"unique":""}"#, 31009),
        (long.as_str(), 31009),
        (r#"{"unique_for":60}"#, 31009),
        (r#"{"unique":null,"on_conflict":"keep"}"#, 31009),
        (r#"{"unique":"k","unique_for":0}"#, 31010),
        (r#"{"unique":"k","unique_for":"3651d"}"#, 31029),
        (r#"{"unique":"k","on_conflict":"debounce","max_wait":0}"#, 31010),
        (r#"{"unique":"k","on_conflict":"swap"}"#, 31011),
        (r#"{"unique":"k","unique_for":60,"on_conflict":"replace"}"#, 31011),
        (r#"{"unique":"k","on_conflict":"replace","max_wait":60}"#, 31011),
        (r#"{"unique":"k","on_conflict":"debounce"}"#, 31012),
        (r#"{"unique":"k","on_conflict":"debounce","deliver_at":"2020-01-01"}"#, 31012),
    ] {
        let (number, state, text) = refusal(&mut conn, &unique("m", options)).await;
        assert_eq!((number, state.as_str()), (expected, "45000"), "{options}: {text}");
        assert!(text.contains("queue: "), "{text}");
    }
}

/// At REPEATABLE READ, a transaction may see an older version of the rows it has locked.
#[tokio::test]
async fn a_replacement_by_the_same_words_is_none_that_was_killed() {
    let scene = scene().await;
    let (mut one, mut two) = (client(scene.db.url()).await, client(scene.db.url()).await);
    let call = unique("reindex 42", r#"{"unique":"k","on_conflict":"replace"}"#);
    two.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    two.query_drop("START TRANSACTION").await.unwrap();
    two.query_drop("SELECT COUNT(*) FROM queue_message").await.unwrap();
    let first = called(&mut one, &call).await;
    match two.query_drop(&call).await {
        Ok(()) => {
            two.query_drop("COMMIT").await.unwrap();
            let left = "SELECT @queue_msg_id, @queue_duplicate, @queue_replaced";
            let again: (String, u8, u8) = two.query_first(left).await.unwrap().unwrap();
            assert_eq!(again, (first.0, 1, 1));
        }
        // MariaDB: a row that another session has changed since the transaction began.
        Err(mysql_async::Error::Server(error)) => assert_eq!(error.code, 1020, "{error}"),
        Err(error) => panic!("{error}"),
    }
}
