//! The options of `queue_send` and `queue_send_unique`: what is read, and what is refused.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params};

use crate::scene::{Scene, claim_n};
use crate::sql_contract::client;

/// Sends a message with these options, which are given as a parameter of the statement.
async fn send(conn: &mut Conn, call: &str, options: &[u8]) -> Result<(), (u16, String)> {
    let values = Params::Positional(vec!["t".into(), "b".into(), options.into()]);
    match conn.exec_drop(format!("CALL {call}(?, ?, ?)"), values).await {
        Ok(()) => Ok(()),
        Err(mysql_async::Error::Server(error)) => Err((error.code, error.message)),
        Err(error) => panic!("{call}: {error}"),
    }
}

#[tokio::test]
async fn no_option_is_needed_and_null_is_none() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let nulls = r#"{"priority":null,"key":null,"biz_id":null,"headers":null,"id":null,
        "deliver_in":null,"deliver_at":null,"expires_in":null,"expires_at":null}"#;
    let unique = r#"{"unique":null,"unique_for":null,"on_conflict":null,"max_wait":null}"#;
    for (call, options) in [
        ("queue_send", "{}"),
        ("queue_send", " { } "),
        ("queue_send", nulls),
        ("queue_send", unique),
        ("queue_send_unique", "{}"),
        ("queue_send_unique", unique),
    ] {
        send(&mut conn, call, options.as_bytes()).await.unwrap();
        let got = claim_n(&scene.worker().await, scene.topic.id, 1).await.remove(0);
        assert_eq!((&got.key, &got.biz_id, got.headers.is_empty()), (&None, &None, true));
        assert_eq!((got.priority.level(), got.expires_at), (5, None), "{options}");
    }
    conn.query_drop("CALL queue_send_unique('t', 'b', NULL)").await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_unique").await, 0);
}

#[tokio::test]
async fn text_arrives_as_it_was_written() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let worker = scene.worker().await;
    for (written, meant) in [
        (r#""""#, ""),
        (r#""null""#, "null"),
        (r#""NULL""#, "NULL"),
        (r#""漢字 😀""#, "漢字 😀"),
        (r#""\u6f22 \ud83d\ude00 \u00e9""#, "漢 😀 é"),
        (r#""a\"b\\c\/d\n\t'""#, "a\"b\\c/d\n\t'"),
        (r#""  x  ""#, "  x  "),
    ] {
        let options =
            format!(r#"{{"key":{written},"biz_id":{written},"headers":{{"h":{written}}}}}"#);
        send(&mut conn, "queue_send", options.as_bytes()).await.unwrap();
        let got = claim_n(&worker, scene.topic.id, 1).await.remove(0);
        let meant = meant.as_bytes().to_vec();
        assert_eq!((got.key, got.biz_id), (Some(meant.clone()), Some(meant.clone())), "{written}");
        assert_eq!(got.headers.get("h").map(str::as_bytes), Some(meant.as_slice()), "{written}");
    }
}

#[tokio::test]
async fn a_time_is_a_number_of_seconds_or_has_its_unit() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let waits = "SELECT TIMESTAMPDIFF(MICROSECOND, enqueued_at, due_at) DIV 1000 \
         FROM queue_scheduled";
    for (time, ms) in [
        ("90", 90_000),
        ("1.5", 1_500),
        (r#""0s""#, 0),
        (r#""250ms""#, 250),
        (r#""90s""#, 90_000),
        (r#""1.5m""#, 90_000),
        (r#""48h""#, 172_800_000),
        (r#""7d""#, 604_800_000),
        (r#""2w""#, 1_209_600_000),
        (r#""520w""#, 314_496_000_000),
    ] {
        scene.sql("DELETE FROM queue_scheduled").await;
        let options = format!(r#"{{"deliver_in":{time}}}"#);
        send(&mut conn, "queue_send", options.as_bytes()).await.unwrap();
        let waits = scene.number(waits).await;
        // The moment is computed before the row is written, and the machine may be busy.
        assert!((ms - 5_000..=ms).contains(&waits), "{time}: {waits} ms");
    }
}

#[tokio::test]
async fn a_moment_is_utc_in_every_session() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("SET time_zone = '+08:00'").await.unwrap();
    let due = "SELECT CAST(MAX(due_at) AS CHAR) FROM queue_scheduled";
    for (moment, expected) in [
        ("2030-12-24T18:00:00Z", "2030-12-24 18:00:00.000000"),
        ("2030-12-24 18:00:00.25", "2030-12-24 18:00:00.250000"),
        ("2030-12-24", "2030-12-24 00:00:00.000000"),
    ] {
        scene.sql("DELETE FROM queue_scheduled").await;
        let options = format!(r#"{{"deliver_at":"{moment}"}}"#);
        send(&mut conn, "queue_send", options.as_bytes()).await.unwrap();
        assert_eq!(scene.text(due).await, expected, "{moment}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_by_its_name_and_stores_nothing() {
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let cases: [(&[u8], u16, &str); 30] = [
        (b"", 31029, "JSON object"),
        (b"{", 31029, "JSON object"),
        (b"[]", 31029, "JSON object"),
        (b"null", 31029, "JSON object"),
        (br#""priority""#, 31029, "JSON object"),
        (b"{\"key\":\"\xff\"}", 31029, "UTF-8"),
        (br#"{"prio":3}"#, 31029, "prio"),
        (br#"{"priority":"3"}"#, 31029, "priority"),
        (br#"{"priority":3.0}"#, 31029, "priority"),
        (br#"{"priority":true}"#, 31029, "priority"),
        (br#"{"priority":99999999999999999999}"#, 31029, "priority"),
        (br#"{"key":7}"#, 31029, "key"),
        (br#"{"biz_id":["x"]}"#, 31029, "biz_id"),
        (br#"{"headers":"x"}"#, 31029, "headers"),
        (br#"{"headers":[]}"#, 31029, "headers"),
        (br#"{"id":17}"#, 31029, "id"),
        (br#"{"deliver_in":"48 hours"}"#, 31029, "deliver_in"),
        (br#"{"deliver_in":"h"}"#, 31029, "deliver_in"),
        (br#"{"deliver_in":""}"#, 31029, "deliver_in"),
        (br#"{"deliver_in":"-5s"}"#, 31029, "deliver_in"),
        (br#"{"deliver_in":-5}"#, 31029, "deliver_in"),
        (br#"{"deliver_in":true}"#, 31029, "deliver_in"),
        (br#"{"expires_in":"11000d"}"#, 31029, "expires_in"),
        (br#"{"expires_in":{}}"#, 31029, "expires_in"),
        (br#"{"deliver_at":1700000000}"#, 31008, "deliver_at"),
        (br#"{"deliver_at":"tomorrow"}"#, 31008, "deliver_at"),
        (br#"{"deliver_at":"2030-12-24T18:00:00+02:00"}"#, 31008, "deliver_at"),
        (br#"{"expires_at":"2030-13-45"}"#, 31008, "expires_at"),
        (br#"{"deliver_in":5,"deliver_at":"2030-12-24"}"#, 31029, "deliver_at"),
        (br#"{"expires_in":5,"expires_at":"2030-12-24"}"#, 31029, "expires_at"),
    ];
    // Also for callers that are not in strict mode.
    for mode in ["STRICT_TRANS_TABLES", ""] {
        conn.query_drop(format!("SET sql_mode = '{mode}'")).await.unwrap();
        for (options, number, part) in cases {
            let shown = String::from_utf8_lossy(options);
            let (code, text) = send(&mut conn, "queue_send", options).await.unwrap_err();
            assert_eq!(code, number, "{shown}: {text}");
            assert!(text.starts_with("queue: ") && text.contains(part), "{shown}: {text}");
        }
    }
    assert_eq!(scene.hot().await.0, 0);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_scheduled").await, 0);
}

/// Who may hold keys has the other procedure.
#[tokio::test]
async fn an_option_of_the_other_procedure_is_refused_and_says_which() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    for option in [
        r#"{"unique":"k"}"#,
        r#"{"unique_for":"1h"}"#,
        r#"{"on_conflict":"keep"}"#,
        r#"{"max_wait":"1h"}"#,
    ] {
        let (code, text) = send(&mut conn, "queue_send", option.as_bytes()).await.unwrap_err();
        assert_eq!(code, 31029);
        assert!(text.contains("queue_send_unique"), "{text}");
    }
    for option in [r#"{"unique":7}"#, r#"{"unique":"k","on_conflict":[]}"#] {
        let refused = send(&mut conn, "queue_send_unique", option.as_bytes()).await.unwrap_err();
        assert_eq!(refused.0, 31029, "{}", refused.1);
    }
}
