//! The JSON API.

use std::collections::BTreeSet;

use reqwest::Method;
use rowmq_test::until;
use serde_json::{Value, json};

use crate::content::{Content, QUEUE, STREAM};
use crate::contract::Contract;
use crate::fixture::{Browser, Fixture};

/// Returns the values of the search's parameter for a message's state.
fn states(contract: &Contract) -> Vec<String> {
    let (.., search) = contract
        .operations()
        .into_iter()
        .find(|(.., it)| it["operationId"] == "messages")
        .expect("one");
    let parameters = search["parameters"].as_array().expect("parameters");
    let state = parameters.iter().find(|it| it["name"] == "state").expect("one");
    let words = state["schema"]["enum"].as_array().expect("words");
    words.iter().map(|word| word.as_str().expect("text").to_owned()).collect()
}

async fn search(contract: &mut Contract, admin: &mut Browser, content: &Content) {
    let mut found = BTreeSet::new();
    for topic in [QUEUE, "plain", STREAM] {
        for state in states(contract) {
            let path = format!("/messages?topic={topic}&state={state}");
            let answer = contract.ask(admin, "messages", &path, &[]).await;
            let messages = answer["found"].as_array().expect("messages").iter();
            found.extend(messages.map(|it| it["state"].as_str().expect("text").to_owned()));
        }
    }
    // A message that is gone is found only by its id.
    let wanted = states(contract).into_iter().filter(|state| state != "gone");
    assert_eq!(found, wanted.collect(), "messages in every state");
    for query in ["biz_id=late", "key=ready", "header=tenant%3Dacme", "within=1h", "offset=0:0"] {
        contract.ask(admin, "messages", &format!("/messages?topic={STREAM}&{query}"), &[]).await;
    }
    for (topic, ids) in [(QUEUE, &content.queued), (STREAM, &content.logged)] {
        for id in ids {
            contract.ask(admin, "message", &format!("/messages/{topic}/{id}"), &[]).await;
        }
    }
}

/// Makes changes, and follows the run that one of them starts to its end.
async fn change(contract: &mut Contract, admin: &mut Browser) {
    let path = format!("/topics/{QUEUE}/access");
    contract.ask(admin, "set_access", &path, &[("access", "read-only")]).await;
    let which = [("cause", "handler"), ("error", "no such"), ("within", "1h")];
    contract.ask(admin, "redrive", "/dead/plain/redrive", &which).await;
    let purge = contract.ask(admin, "purge", "/dead/plain/purge", &[("all", "true")]).await;
    let path = format!("/runs/{}", purge["id"].as_str().expect("an id"));
    until("the run has ended", async || {
        contract.ask(admin, "run", &path, &[]).await["state"] == "ended"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_answers_as_the_document_says_and_nothing_else() {
    let place = Fixture::new().await;
    let content = Content::of(&place).await;
    let mut admin = place.signed_in("admin").await;
    admin.headers = vec![("x-csrf-token", admin.csrf.clone())];
    let mut contract = Contract::of(&mut admin).await;
    // The last thing that the content creates.
    until("the console has seen all of it", async || {
        contract.ask(&mut admin, "duties", "/duties", &[]).await[0].is_object()
    })
    .await;
    place.seen(&mut admin, "plain", 1).await;
    let workers = contract.ask(&mut admin, "workers", "/workers", &[]).await;
    assert!(workers[0]["members"][0].is_object(), "{workers}");
    for list in ["overview", "topics", "groups"] {
        let seen = contract.ask(&mut admin, list, &format!("/{list}"), &[]).await;
        assert_ne!(seen, json!([]), "{list}");
    }
    for topic in [QUEUE, STREAM] {
        contract.ask(&mut admin, "topic", &format!("/topics/{topic}"), &[]).await;
    }
    search(&mut contract, &mut admin, &content).await;
    change(&mut contract, &mut admin).await;
    let entries = contract.ask(&mut admin, "audit", "/audit", &[]).await;
    let path = format!("/audit?before={}", entries[0]["no"]);
    contract.ask(&mut admin, "audit", &path, &[]).await;
    contract.ask(&mut admin, "document", "/openapi.json", &[]).await;
    let (kind, event) = admin.first("/api/v1/live").await;
    assert!(kind.starts_with("text/event-stream") && event.contains("event: look"), "{event}");
    contract.tried.insert("live".to_owned());
    let all = contract.operations().into_iter().map(|(.., it)| it["operationId"].clone());
    let all: BTreeSet<_> = all.map(|name| name.as_str().expect("a name").to_owned()).collect();
    assert_eq!(contract.tried, all, "every operation was tried");
    let never: Vec<_> = contract.may_come().difference(&contract.came).cloned().collect();
    assert_eq!(never, Vec::<String>::new(), "fields that are only in the document");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_a_sentence_as_the_document_says() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let mut viewer = place.signed_in("viewer").await;
    let mut contract = Contract::of(&mut viewer).await;
    let refusal = contract.document["components"]["responses"]["Refusal"].clone();
    let mut stranger = place.console.browser();
    for (path, method, _) in contract.operations() {
        let path =
            path.replace("{topic}", "none").replace("{id}", "01890000-0000-7000-8000-000000000000");
        let nobody = stranger.send(method.clone(), &path, &[]).await;
        assert_eq!(nobody.status, 401, "{path}");
        contract.holds(&refusal, &serde_json::from_str(&nobody.text).expect("JSON"), &path);
        if method == Method::POST {
            let refused = viewer.send(method, &path, &[("access", "denied")]).await;
            assert_eq!(refused.status, 403, "{path}: {}", refused.text);
            contract.holds(&refusal, &serde_json::from_str(&refused.text).expect("JSON"), &path);
        }
    }
    for (path, status) in [
        ("/none", 404),
        ("/topics/none", 404),
        ("/topics/a%20b", 422),
        ("/topics/%FF", 422),
        ("/runs/01890000-0000-7000-8000-000000000000", 404),
        ("/runs/7", 422),
        ("/audit?before=soon", 422),
        ("/messages", 422),
        ("/messages?topic=mail&state=lost", 422),
        ("/messages/mail/7", 422),
    ] {
        let refused = viewer.get(&format!("/api/v1{path}")).await;
        assert_eq!(refused.status, status, "{path}: {}", refused.text);
        contract.holds(&refusal, &serde_json::from_str(&refused.text).expect(path), path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_openapi_and_its_types_are_json_schema() {
    let place = Fixture::new().await;
    let contract = Contract::of(&mut place.signed_in("viewer").await).await;
    let text = contract.document.to_string();
    let read = oas3::from_json(&text).expect("OpenAPI 3.1");
    read.validate_version().expect("a version of it");
    for (name, schema) in contract.document["components"]["schemas"].as_object().expect("some") {
        assert!(jsonschema::draft202012::meta::is_valid(schema), "{name}: {schema:#}");
        assert!(schema["description"].is_string(), "{name} says what it is");
    }
    let mut names = BTreeSet::new();
    for (path, _, operation) in contract.operations() {
        let name = operation["operationId"].as_str().expect("a name").to_owned();
        assert!(names.insert(name), "{path}: a name of its own");
        let declared = operation["parameters"].as_array().expect("parameters").iter();
        let in_path = declared.filter(|it| it["in"] == "path").map(|it| it["name"].as_str());
        let in_path: BTreeSet<_> = in_path.map(|name| name.expect("a name")).collect();
        let wanted = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        assert_eq!(in_path, wanted.collect(), "{path}");
    }
    let references = text.split(r##""$ref":"#"##).skip(1);
    for pointer in references.filter_map(|rest| rest.split('"').next()) {
        assert!(contract.document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_changes_with_the_token_in_a_header() {
    let place = Fixture::new().await;
    place.queue.topic("mail").await;
    let mut operator = place.signed_in("operator").await;
    operator.headers = vec![("x-csrf-token", operator.csrf.clone())];
    let answer =
        operator.send(Method::POST, "/api/v1/topics/mail/access", &[("access", "denied")]).await;
    assert_eq!((answer.status, answer.text.as_str()), (200, r#"{"access":"denied"}"#));
    until("seen", async || {
        let topic = operator.read("/api/v1/topics/mail").await;
        serde_json::from_str::<Value>(&topic).expect("JSON")["access"] == "denied"
    })
    .await;
}
