//! The plain SQL contract: `CALL queue_send(…)` from any language, in the caller's transaction.
//! Through the bare driver, because error numbers are part of it.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Value};
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{Access, MsgId, TopicSettings};
use rowmq_core::store;
use uuid::Uuid;

use crate::scene::{Scene, claim_n};

pub(crate) async fn client(url: &ServerUrl) -> Conn {
    let opts = Opts::from_url(url.expose()).unwrap();
    Conn::new(OptsBuilder::from_opts(opts).prefer_socket(false)).await.unwrap()
}

/// Returns the number, state and text of the refusal.
pub(crate) async fn refusal(conn: &mut Conn, sql: &str) -> (u16, String, String) {
    match conn.query_drop(sql).await {
        Err(mysql_async::Error::Server(error)) => (error.code, error.state, error.message),
        other => panic!("{sql}: {other:?}"),
    }
}

const OK: &str = "CALL queue_send('t', 'body', NULL)";

async fn last_id(conn: &mut Conn) -> Uuid {
    let id: Option<String> = conn.query_first("SELECT @queue_msg_id").await.unwrap();
    let id = id.unwrap();
    assert_eq!(id, id.to_lowercase());
    Uuid::parse_str(&id).unwrap()
}

#[tokio::test]
async fn what_is_left_null_takes_its_default() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop(OK).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert_eq!((got.body.as_slice(), got.priority.level()), (&b"body"[..], 5));
    assert_eq!((&got.key, &got.biz_id, got.headers.is_empty()), (&None, &None, true));
    assert_eq!(got.msg_id, MsgId(last_id(&mut conn).await));
}

#[tokio::test]
async fn everything_that_is_given_arrives() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let worker = scene.worker().await;
    let body = vec![0, 255, 0xC3, 0x28, b'\'', b'\\'];
    // Without an id, the message takes the shorter way.
    for id in [Some(Uuid::now_v7()), None] {
        let options = serde_json::json!({
            "priority": 3, "key": "\u{0}\u{1F600}", "biz_id": "biz-å", "headers": {"trace": "å"}, "id": id,
        });
        let values: Vec<Value> = vec!["t".into(), body.clone().into(), options.to_string().into()];
        conn.exec_drop("CALL queue_send(?, ?, ?)", values).await.unwrap();
        let got = claim_n(&worker, scene.topic.id, 1).await.remove(0);
        assert_eq!((&got.body, got.priority.level()), (&body, 3));
        let key = "\u{0}\u{1F600}".as_bytes().to_vec();
        assert_eq!((&got.key, &got.biz_id), (&Some(key), &Some("biz-å".into())));
        let id = id.unwrap_or(last_id(&mut conn).await);
        assert_eq!((got.headers.get("trace"), got.msg_id), (Some("å"), MsgId(id)));
    }
}

/// The procedure's name, its link and its body call each other; every other way calls more.
#[tokio::test]
async fn a_message_without_an_id_takes_the_shorter_way() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let with_id = OK.replace("NULL", &format!(r#"'{{"id":"{}"}}'"#, Uuid::new_v4()));
    let mut called = Vec::new();
    for sql in ["DO 0", OK, &with_id] {
        conn.query_drop(sql).await.unwrap();
        let status = "SHOW SESSION STATUS LIKE 'Com_call_procedure'";
        let (_, calls): (String, u64) = conn.query_first(status).await.unwrap().unwrap();
        called.push(calls);
    }
    assert!(called[1] - called[0] == 3 && called[2] - called[1] > 3, "{called:?}");
}

#[tokio::test]
async fn an_id_may_be_given_in_either_case() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let id = Uuid::new_v4();
    for given in [id.to_string(), id.to_string().to_uppercase()] {
        let call = OK.replace("NULL", &format!(r#"'{{"id":"{given}"}}'"#));
        conn.query_drop(&call).await.unwrap();
        assert_eq!(last_id(&mut conn).await, id, "{given}");
        let stored = scene.text("SELECT HEX(msg_id) FROM queue_message ORDER BY id DESC LIMIT 1");
        assert_eq!(stored.await.to_lowercase(), id.simple().to_string());
    }
}

#[tokio::test]
async fn an_id_made_by_the_server_is_a_uuid_of_version_7() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    // In any time zone of the session.
    for zone in ["+00:00", "+08:00", "-11:00"] {
        conn.query_drop(format!("SET time_zone = '{zone}'")).await.unwrap();
        let now = "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS UNSIGNED)";
        let before: Option<u64> = conn.query_first(now).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..50 {
            conn.query_drop(OK).await.unwrap();
            ids.push(last_id(&mut conn).await);
        }
        let after: Option<u64> = conn.query_first(now).await.unwrap();
        for id in &ids {
            assert_eq!(id.get_version_num(), 7, "{id}");
            assert_eq!(id.get_variant(), uuid::Variant::RFC4122, "{id}");
            let millis =
                u64::from_be_bytes([&[0, 0], &id.as_bytes()[..6]].concat().try_into().unwrap());
            assert!((before.unwrap() - 1..=after.unwrap() + 1).contains(&millis), "{zone}: {id}");
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 50);
    }
}

#[tokio::test]
async fn every_refusal_has_its_number_and_says_what_to_do() {
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let paused = scene.db.topic("paused").await;
    store::topic::set_access(&mut scene.conn, &paused.name, Access::ReadOnly).await.unwrap();
    let mut conn = client(scene.db.url()).await;
    let call = |arguments: &str| format!("CALL queue_send({arguments})");
    for (arguments, number, part) in [
        ("'nowhere', 'b', NULL", 31001, "rowmq topic create"),
        ("'T', 'b', NULL", 31001, "'T'"),
        ("'t ', 'b', NULL", 31001, "'t '"),
        ("'', 'b', NULL", 31001, "topic"),
        ("NULL, 'b', NULL", 31001, "topic"),
        ("x'ff', 'b', NULL", 31001, "topic"),
        ("REPEAT('x', 255), 'b', NULL", 31001, "xxx"),
        ("'paused', 'b', NULL", 31002, "topic resume"),
        ("'t', NULL, NULL", 31003, "body is NULL"),
        ("'t', '12345678901', NULL", 31004, "11 bytes"),
        (r#"'t', 'b', '{"priority":10}'"#, 31005, "0 (first) to 9"),
        (r#"'t', 'b', '{"priority":-1}'"#, 31005, "0 (first) to 9"),
        (r#"'t', 'b', '{"priority":256}'"#, 31005, "0 (first) to 9"),
        (r#"'t', 'b', '{"id":"x"}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":""}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":"01234567-89ab-cdef-0123-456789abcdef\\n"}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":"0123456789abcdef"}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":"0123456789abcdef0123456789abcdef"}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":"zzzzzzzz-1111-1111-1111-111111111111"}'"#, 31006, "UUID"),
        (r#"'t', 'b', '{"id":"111111111111111111111111111111111111"}'"#, 31006, "UUID"),
    ] {
        let (code, state, text) = refusal(&mut conn, &call(arguments)).await;
        assert_eq!((code, state.as_str()), (number, "45000"), "{arguments}: {text}");
        assert!(text.starts_with("queue: ") && text.contains(part), "{arguments}: {text}");
    }
    assert_eq!(scene.hot().await.0, 0);
    // A message that just fits is accepted, and the connection is unharmed.
    conn.query_drop(call(r#"'t', '1234567890', '{"priority":9,"key":"","biz_id":""}'"#))
        .await
        .unwrap();
    conn.query_drop(call(r#"'t', '', '{"priority":0}'"#)).await.unwrap();
    assert_eq!(scene.hot().await.0, 2);
}

/// A topic's name may have 64 bytes; the text of a refusal has room for 128 characters.
#[tokio::test]
async fn a_refusal_of_the_longest_name_still_says_what_to_do() {
    let mut scene = Scene::new().await;
    let long = "x".repeat(64);
    let mut conn = client(scene.db.url()).await;
    let call = OK.replace("'t'", &format!("'{long}'"));
    let (code, _, text) = refusal(&mut conn, &call).await;
    assert_eq!(code, 31001);
    assert!(text.contains(&long) && text.contains("rowmq topic create"), "{text}");
    let topic = scene.db.topic(&long).await;
    store::topic::set_access(&mut scene.conn, &topic.name, Access::ReadOnly).await.unwrap();
    let (code, _, text) = refusal(&mut conn, &call).await;
    assert_eq!(code, 31002);
    assert!(text.contains("rowmq topic resume"), "{text}");
}

#[tokio::test]
async fn what_is_too_long_for_its_column_is_refused_and_never_cut() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    // Also for callers that are not in strict mode.
    for mode in ["STRICT_TRANS_TABLES", ""] {
        conn.query_drop(format!("SET sql_mode = '{mode}'")).await.unwrap();
        let long = "k".repeat(256);
        for options in [
            format!(r#"{{"key":"{long}"}}"#),
            format!(r#"{{"biz_id":"{long}"}}"#),
            format!(r#"{{"id":"11111111-1111-1111-1111-111111111111{long}"}}"#),
        ] {
            let refused = conn.query_drop(format!("CALL queue_send('t', 'b', '{options}')")).await;
            assert!(refused.is_err(), "in mode '{mode}': {options}");
        }
    }
    assert_eq!(scene.hot().await.0, 0);
}

#[tokio::test]
async fn a_message_for_later_waits_and_can_be_cancelled() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let call = r#"CALL queue_send('t', 'b',
        '{"deliver_in":"48h","priority":3,"key":"k","biz_id":"z","headers":{}}')"#;
    conn.query_drop(call).await.unwrap();
    let due = "SELECT TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(6), due_at + INTERVAL 1 MINUTE) \
         FROM queue_scheduled WHERE priority = 3 AND ordering_key = 'k' AND biz_id = 'z'";
    assert_eq!(scene.number(due).await, 48);
    assert_eq!(scene.hot().await.0, 0);
    let text = last_id(&mut conn).await;
    let cancelled = "SELECT @queue_cancelled";
    for (topic, id, expected) in [
        ("T", format!("'{text}'"), 0),
        ("t", "'no id'".to_owned(), 0),
        ("t", "NULL".to_owned(), 0),
        ("t", format!("'{}'", Uuid::now_v7()), 0),
        ("t", format!("'{text}'"), 1),
        ("t", format!("'{text}'"), 0),
    ] {
        conn.query_drop(format!("CALL queue_cancel('{topic}', {id})")).await.unwrap();
        assert_eq!(conn.query_first::<i64, _>(cancelled).await.unwrap(), Some(expected), "{id}");
    }
    conn.query_drop(call).await.unwrap();
    let bytes = last_id(&mut conn).await.simple();
    conn.query_drop(format!("CALL queue_cancel('t', x'{bytes}')")).await.unwrap();
    assert_eq!(conn.query_first::<i64, _>(cancelled).await.unwrap(), Some(1));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 0);
}

#[tokio::test]
async fn a_moment_that_has_passed_is_at_once_and_an_expiry_before_it_is_refused() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let call = |times: &str| format!("CALL queue_send('t', 'b', '{{{times}}}')");
    for times in [
        r#""expires_at":"2020-01-01T00:00:00Z""#,
        r#""expires_in":0"#,
        r#""deliver_in":"2h","expires_in":"1h""#,
        r#""deliver_at":"2020-01-01","expires_at":"2021-01-01""#,
    ] {
        let (code, _, text) = refusal(&mut conn, &call(times)).await;
        assert_eq!(code, 31007, "{text}");
    }
    conn.query_drop(call(r#""deliver_at":"2001-01-01T12:00:00.5Z""#)).await.unwrap();
    let due = "SELECT COUNT(*) FROM queue_scheduled WHERE due_at <= UTC_TIMESTAMP(6) \
         AND due_at > UTC_TIMESTAMP(6) - INTERVAL 1 HOUR";
    assert_eq!(scene.number(due).await, 1);
    conn.query_drop(call(r#""expires_in":"60m""#)).await.unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
    assert!(got.expires_at.is_some() && !got.is_expired());
}

#[tokio::test]
async fn it_belongs_to_the_callers_transaction() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("CREATE TABLE orders (id INT PRIMARY KEY)").await.unwrap();
    for (end, left) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        conn.query_drop("BEGIN").await.unwrap();
        conn.query_drop("INSERT INTO orders VALUES (1)").await.unwrap();
        conn.query_drop(OK).await.unwrap();
        assert_eq!(scene.hot().await.0, 0, "nothing is committed by the call itself");
        conn.query_drop(end).await.unwrap();
        assert_eq!(scene.hot().await.0, left);
        assert_eq!(scene.number("SELECT COUNT(*) FROM orders").await, left);
    }
}

#[tokio::test]
async fn a_refusal_leaves_the_callers_transaction_as_it_is() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("BEGIN").await.unwrap();
    conn.query_drop(OK).await.unwrap();
    let (code, ..) = refusal(&mut conn, &OK.replace("'t'", "'nowhere'")).await;
    assert_eq!(code, 31001);
    conn.query_drop("COMMIT").await.unwrap();
    assert_eq!(scene.hot().await.0, 1);
}

#[tokio::test]
async fn an_account_with_the_right_to_execute_it_needs_no_other() {
    let mut scene = Scene::new().await;
    let url = scene.db.account(&["EXECUTE ON PROCEDURE {}.queue_send"]).await;
    let mut conn = client(&url).await;
    conn.query_drop(OK).await.unwrap();
    assert_eq!(scene.hot().await.0, 1);
    let (code, ..) = refusal(&mut conn, "SELECT * FROM queue_message").await;
    assert_eq!(code, 1142);
    let (code, ..) = refusal(&mut conn, "DELETE FROM queue_topic").await;
    assert_eq!(code, 1142);
}

#[tokio::test]
async fn it_works_under_every_isolation_level_and_character_set() {
    let mut scene = Scene::new().await;
    let mut n = 0;
    for level in ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for set in ["utf8mb4", "latin1", "binary"] {
            let mut conn = client(scene.db.url()).await;
            let isolation = format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}");
            conn.query_drop(isolation).await.unwrap();
            conn.query_drop(format!("SET NAMES {set}")).await.unwrap();
            conn.query_drop(OK).await.unwrap_or_else(|error| panic!("{level}, {set}: {error}"));
            let (code, ..) = refusal(&mut conn, &OK.replace("'t'", "'nowhere'")).await;
            assert_eq!(code, 31001, "{level}, {set}");
            n += 1;
        }
    }
    assert_eq!(scene.hot().await.0, n);
}

/// The documented unchecked way for bulk loads: omitted columns take their defaults.
#[tokio::test]
async fn a_bulk_insert_needs_only_topic_id_and_body() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("SET time_zone = '+08:00'").await.unwrap();
    conn.query_drop(
        "INSERT INTO queue_message (topic_id, msg_id, body) SELECT id, \
         UNHEX(REPLACE(UUID(), '-', '')), 'a' FROM queue_topic WHERE name = 't' \
         UNION ALL SELECT id, UNHEX(REPLACE(UUID(), '-', '')), 'b' FROM queue_topic WHERE name = 't'",
    )
    .await
    .unwrap();
    let got = claim_n(&scene.worker().await, scene.topic.id, 2).await;
    let age = chrono::Utc::now() - got[0].enqueued_at;
    assert!(age.num_minutes().abs() < 5, "{age}");
    assert_eq!(got[0].priority.level(), 5);
    assert_ne!(got[0].msg_id, got[1].msg_id);
}

#[tokio::test]
async fn the_time_of_enqueueing_is_the_servers_whatever_the_callers_time_zone() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    for zone in ["+12:00", "-12:00"] {
        conn.query_drop(format!("SET time_zone = '{zone}'")).await.unwrap();
        conn.query_drop(OK).await.unwrap();
    }
    for got in claim_n(&scene.worker().await, scene.topic.id, 2).await {
        let age = chrono::Utc::now() - got.enqueued_at;
        assert!(age.num_minutes().abs() < 5, "{age}");
    }
}
