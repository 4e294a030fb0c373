use queue_test::TestDatabase;
use serde_json::json;

use crate::run::{Queuectl, cells};

#[tokio::test]
async fn a_topic_is_created_with_the_defaults_or_as_told() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    assert!(queuectl.say(&["topic", "list"]).contains("There are no topics"));
    assert_eq!(queuectl.json(&["topic", "list"]), json!([]));
    assert_eq!(queuectl.say(&["topic", "create", "plain"]), "The topic 'plain' is created.\n");
    let told = queuectl.json(&[
        "topic",
        "create",
        "told",
        "--body-limit",
        "64KiB",
        "--max-attempts",
        "2",
        "--max-crashes",
        "1",
        "--retry-base",
        "10s",
        "--retry-cap",
        "5m",
        "--max-run-time",
        "90s",
        "--keep-done",
        "1h",
        "--ledger-window",
        "7d",
    ]);
    let expected = json!({
        "id": told["id"], "name": "told", "body_limit": 65536, "max_attempts": 2,
        "max_crashes": 1, "retry": { "base": "10s", "cap": "5m" }, "max_run_time": "1m 30s",
        "on_done": { "keep": "1h" }, "ledger_window": "7days",
        "enqueue_paused": false, "claim_paused": false,
    });
    assert_eq!(told, expected);
    assert_eq!(queuectl.json(&["topic", "show", "told"]), expected);
    let list = queuectl.say(&["topic", "list"]);
    assert_eq!(
        cells(&list),
        [
            ["plain", "open", "4 MiB", "16", "3", "none", "none"],
            ["told", "open", "64 KiB", "2", "1", "1m 30s", "1h"]
        ]
    );
    let list = queuectl.json(&["topic", "list"]);
    assert_eq!(list[0]["on_done"], "delete");
    assert_eq!(list[1], expected);
}

#[tokio::test]
async fn what_is_not_named_stays_as_it_was_set() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail", "--max-attempts", "2", "--max-run-time", "5m"]);
    let shown = queuectl.say(&["topic", "set", "mail", "--max-run-time", "none"]);
    assert!(shown.contains("max run time   none"), "{shown}");
    let topic = queuectl.json(&["topic", "set", "mail", "--keep-done", "3s"]);
    assert_eq!(topic["max_attempts"], 2);
    assert_eq!(topic["max_run_time"], json!(null));
    assert_eq!(topic["on_done"], json!({ "keep": "3s" }));
    assert!(queuectl.say(&["topic", "show", "mail"]).contains("keep done      3s"));
}

#[tokio::test]
async fn pause_stops_claims_unless_told_and_resume_opens_both() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    let state = |command: &[&str]| {
        let topic = queuectl.json(command);
        assert_eq!(topic, queuectl.json(&["topic", "show", "mail"]));
        let paused = |name: &str| topic[name].as_bool().expect("a boolean");
        (paused("enqueue_paused"), paused("claim_paused"))
    };
    assert_eq!(state(&["topic", "pause", "mail"]), (false, true));
    assert_eq!(state(&["topic", "pause", "mail", "--enqueue"]), (true, true));
    assert_eq!(state(&["topic", "resume", "mail", "--claim"]), (true, false));
    assert_eq!(state(&["topic", "pause", "mail", "--claim", "--enqueue"]), (true, true));
    assert_eq!(state(&["topic", "resume", "mail"]), (false, false));
    let sentence = queuectl.say(&["topic", "pause", "mail", "--enqueue"]);
    assert_eq!(sentence, "The topic 'mail' takes no messages; consumers go on.\n");
}
