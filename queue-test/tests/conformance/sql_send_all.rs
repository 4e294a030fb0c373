//! `CALL queue_send_all(…)`: many messages in one call.

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use rowmq_core::TopicName;
use rowmq_core::model::{MsgId, Sampling, TopicSettings};
use rowmq_core::stream::group::create_stream;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::scene::{Scene, claim_n};
use crate::sql_contract::{client, refusal};

/// The statement for these messages, which hold no quote.
pub(crate) fn call(topic: &str, messages: &Value) -> String {
    format!("CALL queue_send_all('{topic}', '{}')", messages.to_string().replace('\\', "\\\\"))
}

/// Sends in a transaction; returns how many were stored, and how many were there already.
async fn send(conn: &mut Conn, topic: &str, messages: &Value) -> (u64, u64) {
    conn.query_drop("START TRANSACTION").await.unwrap();
    conn.query_drop(call(topic, messages)).await.unwrap();
    conn.query_drop("COMMIT").await.unwrap();
    let outcome = "SELECT @queue_sent, @queue_duplicates";
    conn.query_first(outcome).await.unwrap().unwrap()
}

#[tokio::test]
async fn all_that_is_given_arrives_in_its_order() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let (first, last) = (Uuid::now_v7(), Uuid::new_v4());
    let messages = json!([
        {"body": "å\u{1f600}\\\n\0", "id": first, "key": null, "headers": null, "biz_id": null,
         "priority": null, "body_base64": null},
        {"body": "å\u{1f600}\\\n\0", "priority": null, "key": null, "biz_id": null, "headers": null,
         "id": null, "body_base64": null},
        {"body_base64": "AP8=", "key": "ké", "biz_id": "order-1", "headers": {"trace": "å"},
         "priority": 5, "id": last.to_string().to_uppercase()},
    ]);
    assert_eq!(send(&mut conn, "t", &messages).await, (3, 0));
    let got = claim_n(&scene.worker().await, scene.topic.id, 3).await;
    let bodies: Vec<&[u8]> = got.iter().map(|one| one.body.as_slice()).collect();
    let text = "å\u{1f600}\\\n\0".as_bytes();
    assert_eq!(bodies, [text, text, &[0, 255]]);
    assert_eq!((got[0].msg_id, got[2].msg_id), (MsgId(first), MsgId(last)));
    for none in &got[..2] {
        assert_eq!((&none.key, &none.biz_id, none.headers.is_empty()), (&None, &None, true));
    }
    assert_eq!(got[1].msg_id.0.get_version_num(), 7);
    assert_eq!(got[2].key.as_deref(), Some("ké".as_bytes()));
    assert_eq!(got[2].biz_id.as_deref(), Some(&b"order-1"[..]));
    assert_eq!(got[2].headers.get("trace"), Some("å"));
}

#[tokio::test]
async fn a_thousand_keep_their_order_and_have_ids_of_their_own() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let messages: Value = (0..1000).map(|n| json!({"body": format!("{n:04}")})).collect();
    assert_eq!(send(&mut conn, "t", &messages).await, (1000, 0));
    let ids = "SELECT COUNT(DISTINCT msg_id) FROM queue_message \
               WHERE HEX(msg_id) LIKE '____________7___8%'";
    assert_eq!(scene.number(ids).await, 1000);
    let falls = "SELECT COUNT(*) FROM queue_message a JOIN queue_message b \
                 ON b.id > a.id AND b.body < a.body WHERE a.id % 50 = 0";
    assert_eq!(scene.number(falls).await, 0);
}

#[tokio::test]
async fn a_refusal_names_the_message_and_stores_none_of_them() {
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    let mut scene = Scene::with(&settings).await;
    let stream = TopicName::new("s").unwrap();
    create_stream(&mut scene.conn, &stream, 1, &TopicSettings::default()).await.unwrap();
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("CREATE TABLE orders (id INT)").await.unwrap();
    let with = |second: Value| json!([{"body": "b"}, second]);
    let mut n = 0;
    for (topic, messages, number, part) in [
        ("t", json!({}), 31029, "JSON array"),
        ("t", json!([]), 31029, "JSON array"),
        ("t", (0..1001).map(|_| json!({"body": ""})).collect(), 31029, "1 to 1000"),
        ("t", json!(["b"]), 31029, "message 1 is no object"),
        ("t", with(json!({})), 31029, "message 2 needs either body or body_base64"),
        ("t", with(json!({"body": null})), 31029, "message 2 needs either"),
        ("t", with(json!({"body": "b", "body_base64": "AA=="})), 31029, "message 2 needs either"),
        ("t", with(json!({"body": "b", "prio": 1})), 31029, "message 2 has [\"prio\"]"),
        ("t", with(json!({"body": {"order": 1}})), 31029, "message 2 has a body that is no string"),
        ("t", with(json!({"body_base64": "?"})), 31029, "no base64"),
        ("t", with(json!({"body_base64": 1})), 31029, "message 2 has a body_base64"),
        ("t", with(json!({"body": "b", "priority": "1"})), 31029, "message 2 has a priority"),
        ("t", with(json!({"body": "b", "priority": 1e19})), 31029, "message 2 has a priority"),
        ("t", with(json!({"body": "b", "priority": u64::MAX})), 31029, "message 2 has a priority"),
        ("t", with(json!({"body": "b", "key": 1})), 31029, "message 2 has a key"),
        ("t", with(json!({"body": "b", "biz_id": true})), 31029, "message 2 has a biz_id"),
        ("t", with(json!({"body": "b", "headers": "{}"})), 31029, "message 2 has headers"),
        ("t", with(json!({"body": "b", "id": 1})), 31029, "message 2 has an id"),
        ("t", with(json!({"body": "b", "id": "1"})), 31006, "message 2: id must be a UUID"),
        ("t", with(json!({"body": "b", "id": format!("{}\n", Uuid::nil())})), 31006, "message 2"),
        ("t", json!([{"body": "b", "id": format!("{}\n", Uuid::nil())}]), 31006, "message 1"),
        ("t", json!([{"body": "b", "id": "0123456789abcdef"}]), 31006, "message 1"),
        ("t", with(json!({"body": "b", "priority": 10})), 31005, "message 2: priority"),
        ("t", with(json!({"body": "12345678901"})), 31004, "message 2: body of 11 bytes"),
        ("t", with(json!({"body": "", "headers": {"a": "b".repeat(65536)}})), 31027, "message 2"),
        ("s", with(json!({"body": "", "priority": 4})), 31005, "message 2: a stream"),
        ("nowhere", with(json!({"body": ""})), 31001, "rowmq topic create"),
    ] {
        conn.query_drop("START TRANSACTION").await.unwrap();
        conn.query_drop("INSERT INTO orders VALUES (1)").await.unwrap();
        let (code, _, text) = refusal(&mut conn, &call(topic, &messages)).await;
        assert_eq!(code, number, "{part}: {text}");
        assert!(text.starts_with("queue: ") && text.contains(part), "{part}: {text}");
        conn.query_drop("COMMIT").await.unwrap();
        n += 1;
        assert_eq!(scene.number("SELECT COUNT(*) FROM orders").await, n, "{part}");
        assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 0, "{part}");
    }
    for key in ["key", "biz_id"] {
        conn.query_drop("START TRANSACTION").await.unwrap();
        let long = with(json!({"body": "b", key: "k".repeat(256)}));
        assert_eq!(refusal(&mut conn, &call("t", &long)).await.0, 1406);
        conn.query_drop("COMMIT").await.unwrap();
    }
    let (code, _, text) = refusal(&mut conn, &call("t", &with(json!({"body": "c"})))).await;
    assert_eq!((code, text.contains("START TRANSACTION")), (31013, true));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 0);
    assert_eq!(send(&mut conn, "s", &with(json!({"body": "c", "priority": 5}))).await, (2, 0));
}

#[tokio::test]
async fn a_topic_that_keeps_more_of_each_message_gets_it_from_each() {
    let window = Some(std::time::Duration::from_secs(3600));
    let settings = TopicSettings {
        dedupe_window: window,
        searchable: window,
        trace: Sampling::ALL,
        ..TopicSettings::default()
    };
    let mut scene = Scene::with(&settings).await;
    let mut conn = client(scene.db.url()).await;
    let id = Uuid::now_v7();
    let messages = json!([{"body": "a", "id": id}, {"body": "b", "id": id}, {"body": "c"}]);
    assert_eq!(send(&mut conn, "t", &messages).await, (2, 1));
    assert_eq!(send(&mut conn, "t", &messages).await, (1, 2));
    let counts = "SELECT (SELECT COUNT(*) FROM queue_message) * 100 + \
         (SELECT COUNT(*) FROM queue_lookup) * 10 + (SELECT COUNT(*) FROM queue_trace)";
    assert_eq!(scene.number(counts).await, 333);
}

/// JSON as other languages write it: escaped, and in the character set of the connection.
#[tokio::test]
async fn text_arrives_as_it_is_or_is_refused() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let escaped =
        r#"[{"body":"\u00e9\ud83d\ude00\/"},{"body":"\u00e9\ud83d\ude00\/","body_base64":null}]"#;
    let call_in = |set: &str, mode: &str| {
        [format!("SET NAMES {set}"), format!("SET sql_mode = '{mode}'"), "BEGIN".to_owned()]
    };
    for (set, mode) in [("utf8mb4", ""), ("latin1", ""), ("binary", "STRICT_ALL_TABLES")] {
        for statement in call_in(set, mode) {
            conn.query_drop(statement).await.unwrap();
        }
        conn.exec_drop("CALL queue_send_all('t', ?)", (escaped,)).await.unwrap();
        conn.query_drop("COMMIT").await.unwrap();
        // No UTF-8: a byte of latin1.
        conn.query_drop("BEGIN").await.unwrap();
        let refused = conn
            .exec_drop("CALL queue_send_all('t', ?)", (b"[{\"body\":\"\xe9\"}]".to_vec(),))
            .await;
        assert!(
            matches!(&refused, Err(mysql_async::Error::Server(error)) if error.code == 31029),
            "{set}, '{mode}': {refused:?}"
        );
        conn.query_drop("COMMIT").await.unwrap();
    }
    let got = claim_n(&scene.worker().await, scene.topic.id, 6).await;
    for one in got {
        assert_eq!(one.body, "é\u{1f600}/".as_bytes());
    }
}
