//! JSON at random for the calls that take it: it is taken, or refused by a number of the contract.

use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Params};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value};

use crate::scene::Scene;
use crate::sql_contract::client;

/// Values that a name may get instead of its own.
const VALUES: [&str; 25] = [
    "null",
    "true",
    "0",
    "-1",
    "9",
    "10",
    "3.0",
    "1e2",
    "1e400",
    "99999999999999999999",
    r#""""#,
    r#""5""#,
    r#""48h""#,
    r#""1.5m""#,
    r#""-1s""#,
    r#""ms""#,
    r#""2026-12-24T18:00:00Z""#,
    r#""9999-99-99""#,
    r#""018f2f6e-3c1d-7a11-8f00-0123456789ab""#,
    r#""\u0000""#,
    r#""é\ud83d\ude00""#,
    r#""YQ==""#,
    "{}",
    r#"{"a":"b"}"#,
    "[[[1]]]",
];

const OPTIONS: [&str; 13] = [
    "priority",
    "key",
    "biz_id",
    "headers",
    "id",
    "deliver_in",
    "deliver_at",
    "expires_in",
    "expires_at",
    "unique",
    "unique_for",
    "on_conflict",
    "max_wait",
];

const MESSAGE: [&str; 7] = ["body", "body_base64", "priority", "key", "biz_id", "headers", "id"];

/// An object with some of the names.
fn object(rng: &mut StdRng, names: &[&str]) -> String {
    let mut pair = |_| {
        let name = names.choose(rng).expect("some");
        format!("{name:?}:{}", VALUES.choose(rng).expect("some"))
    };
    let pairs: Vec<String> = (0..3).map(&mut pair).collect();
    format!("{{{}}}", pairs[..rng.random_range(0..=3)].join(","))
}

/// Changes some bytes.
fn change(rng: &mut StdRng, json: &mut Vec<u8>) {
    for _ in 0..rng.random_range(0..3) {
        match rng.random_range(0..4) {
            0 => json.truncate(rng.random_range(0..=json.len())),
            1 => json.extend_from_within(rng.random_range(0..=json.len())..),
            _ if json.is_empty() => {}
            _ => {
                let at = rng.random_range(0..json.len());
                json[at] = rng.random();
            }
        }
    }
}

/// Returns the names of an object, or of a list's objects; None if it is neither.
fn names(json: &[u8]) -> Option<Vec<String>> {
    let objects: Vec<Map<String, Value>> = serde_json::from_slice(json)
        .or_else(|_| serde_json::from_slice(json).map(|one| vec![one]))
        .ok()?;
    Some(objects.into_iter().flat_map(|one| one.into_iter().map(|(name, _)| name)).collect())
}

/// Returns what is wrong with the answer to a call.
async fn fault(conn: &mut Conn, call: &str, values: Vec<mysql_async::Value>) -> Option<String> {
    let json = match values.last() {
        Some(mysql_async::Value::Bytes(json)) => json.clone(),
        _ => Vec::new(),
    };
    match conn.exec_drop(call, Params::Positional(values)).await {
        Ok(()) => {
            if json.contains(&0) {
                return Some("it has a zero byte".to_owned());
            }
            // MariaDB takes escapes that JSON does not have, such as \E for E.
            let names = names(&json)?;
            let known = |name: &String| OPTIONS.contains(&&**name) || MESSAGE.contains(&&**name);
            (!names.iter().all(known)).then(|| "a name is unknown".to_owned())
        }
        // The table itself refuses a long key.
        Err(mysql_async::Error::Server(error)) if matches!(error.code, 31001..=31099 | 1406) => {
            // MariaDB writes some characters as four.
            (error.message.chars().count() > 160).then(|| error.message.clone())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// `JSON_FUZZ_SECONDS` says for how long, one by default.
#[tokio::test]
async fn any_json_is_taken_or_refused_by_a_number_of_the_contract() {
    let seconds = std::env::var("JSON_FUZZ_SECONDS").map_or(1, |text| text.parse().unwrap());
    let mut rng = StdRng::seed_from_u64(rand::random());
    let mut scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    let start = Instant::now();
    let mut faults = Vec::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        let (call, json) = match rng.random_range(0..3) {
            0 => ("CALL queue_send('t', 'b', ?)", object(&mut rng, &OPTIONS)),
            1 => ("CALL queue_send_unique('t', 'b', ?)", object(&mut rng, &OPTIONS)),
            _ => {
                let body = object(&mut rng, &MESSAGE);
                ("CALL queue_send_all('t', ?)", format!("[{body},{{\"body\":\"b\"}}]"))
            }
        };
        let mut json = json.into_bytes();
        change(&mut rng, &mut json);
        conn.query_drop("START TRANSACTION").await.unwrap();
        let text = String::from_utf8_lossy(&json).into_owned();
        if let Some(fault) = fault(&mut conn, call, vec![json.into()]).await {
            faults.push(format!("{call} {text}: {fault}"));
        }
        conn.query_drop("ROLLBACK").await.unwrap();
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 0);
}

#[tokio::test]
async fn what_random_json_has_found_is_refused() {
    let scene = Scene::new().await;
    let mut conn = client(scene.db.url()).await;
    conn.query_drop("START TRANSACTION").await.unwrap();
    for (call, json) in [
        ("CALL queue_send('t', 'b', ?)", r#"{"deliver_in":1e400}"#),
        ("CALL queue_send('t', 'b', ?)", r#"{"deliver_in":99999999999999999999}"#),
        ("CALL queue_send('t', 'b', ?)", r#"{"priority":1e400}"#),
        ("CALL queue_send('t', 'b', ?)", "{\"\rpriority\":1}"),
        ("CALL queue_send('t', 'b', ?)", "{}\0}"),
        ("CALL queue_send_all('t', ?)", "[{\"\rbody\":\"b\"}]"),
        ("CALL queue_send_all('t', ?)", "[{\"body\":\"b\"}]\0]"),
    ] {
        match conn.exec_drop(call, (json.as_bytes(),)).await {
            Err(mysql_async::Error::Server(error)) => assert_eq!(error.code, 31029, "{json:?}"),
            other => panic!("{call} {json:?}: {other:?}"),
        }
    }
}
