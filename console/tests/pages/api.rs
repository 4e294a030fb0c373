//! The JSON API.

use reqwest::Method;
use serde_json::Value;

use crate::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn every_address_of_the_document_answers_as_it_says() {
    let place = Place::new().await;
    place.queue.topic("mail").await;
    let mut admin = place.signed_in("admin").await;
    let document: Value =
        serde_json::from_str(&admin.read("/api/v1/openapi.json").await).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    assert!(paths.len() >= 15, "{}", paths.len());
    for (path, operations) in paths {
        let concrete =
            path.replace("{topic}", "none").replace("{id}", "01890000-0000-7000-8000-000000000000");
        for (method, operation) in operations.as_object().expect("operations") {
            if path.ends_with("/live") {
                continue;
            }
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let change = method == Method::POST;
            let answer = admin.send(method, &concrete, &[]).await;
            let is_json = answer.header("content-type").starts_with("application/json");
            assert!(is_json, "{path}: {}", answer.text);
            let expected: &[u16] = if change { &[403] } else { &[200, 404, 422] };
            assert!(expected.contains(&answer.status), "{path}: {} {}", answer.status, answer.text);
            assert!(operation["summary"].is_string(), "{path}");
        }
    }
    let unknown = admin.get("/api/v1/none").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.text.starts_with("{\"error\":"), "{}", unknown.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_changes_with_the_token_in_a_header() {
    let place = Place::new().await;
    place.queue.topic("mail").await;
    let mut operator = place.signed_in("operator").await;
    operator.headers = vec![("x-csrf-token", operator.csrf.clone())];
    let answer =
        operator.send(Method::POST, "/api/v1/topics/mail/access", &[("access", "denied")]).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, r#"{"access":"denied"}"#));
    let topic: Value =
        serde_json::from_str(&operator.read("/api/v1/topics/mail").await).expect("JSON");
    assert_eq!(topic["access"], "denied");
}
