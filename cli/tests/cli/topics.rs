use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::TestDatabase;
use serde_json::json;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn a_topic_is_created_with_the_defaults_or_as_told() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.say(&["topic", "list"]).contains("There are no topics"));
    assert_eq!(rowmq.json(&["topic", "list"]), json!([]));
    assert_eq!(rowmq.say(&["topic", "create", "plain"]), "The topic 'plain' is created.\n");
    let told = rowmq.json(&[
        "topic",
        "create",
        "told",
        "--body-limit",
        "64KiB",
        "--max-attempts",
        "2",
        "--max-crashes",
        "1",
        "--retry",
        "ladder 10s  30s 90s",
        "--max-run-time",
        "90s",
        "--keep-done",
        "1h",
        "--ledger-window",
        "7d",
        "--max-depth",
        "100000",
        "--max-bytes",
        "2GiB",
        "--when-full",
        "reject",
        "--searchable",
        "on",
        "--max-running",
        "8",
        "--max-running-per-key",
        "1",
        "--rate",
        "100/1s",
    ]);
    let expected = json!({
        "id": told["id"], "name": "told", "kind": "queue", "body_limit": 65536, "max_attempts": 2,
        "max_crashes": 1, "retry": "ladder 10s 30s 90s", "max_run_time": "1m 30s",
        "on_done": { "keep": "1h" }, "keep_dead": null, "dead_letter_topic": null,
        "ledger_window": "7days",
        "searchable": "30days", "dedupe_window": null, "max_depth": 100_000,
        "max_bytes": 2_147_483_648_u64, "when_full": "reject", "max_running": 8,
        "max_running_per_key": 1, "rate": "100/1s",
        "retention": null, "retention_bytes": null, "retention_hard": false,
        "prune_handled": false, "trace": "off", "filter": [], "access": "read-write",
        "effective_access": "read-write", "backlog": null,
    });
    assert_eq!(told, expected);
    assert_eq!(rowmq.json(&["topic", "show", "told"]), expected);
    let list = rowmq.say(&["topic", "list"]);
    assert_eq!(
        cells(&list),
        [
            ["plain", "queue", "read-write", "4 MiB", "16", "3", "none", "none"],
            ["told", "queue", "read-write", "64 KiB", "2", "1", "1m 30s", "1h"]
        ]
    );
    let list = rowmq.json(&["topic", "list"]);
    assert_eq!(list[0]["on_done"], "delete");
    assert_eq!(list[1], expected);
}

#[tokio::test]
async fn what_is_not_named_stays_as_it_was_set() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail", "--max-attempts", "2", "--max-run-time", "5m"]);
    let shown = rowmq.say(&["topic", "set", "mail", "--max-run-time", "none"]);
    assert!(shown.contains("max run time         none"), "{shown}");
    let topic = rowmq.json(&["topic", "set", "mail", "--keep-done", "3s"]);
    assert_eq!(topic["max_attempts"], 2);
    assert_eq!(topic["max_run_time"], json!(null));
    assert_eq!(topic["on_done"], json!({ "keep": "3s" }));
    let topic = rowmq.json(&["topic", "set", "mail", "--keep-dead", "90s"]);
    assert_eq!((&topic["max_attempts"], &topic["keep_dead"]), (&json!(2), &json!("1m 30s")));
    let shown = rowmq.say(&["topic", "show", "mail"]);
    assert!(shown.contains("keep done            3s") && shown.contains("keep dead            1m"));
}

#[tokio::test]
async fn dead_letters_go_to_the_topic_that_is_named_until_none_is() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "lost"]);
    let topic = rowmq.json(&["topic", "create", "mail", "--dead-letter-topic", "lost"]);
    assert_eq!(topic["dead_letter_topic"], "lost");
    let shown = rowmq.say(&["topic", "set", "mail", "--retry", "fixed 90s"]);
    assert!(shown.contains("dead-letter topic    lost") && shown.contains("fixed 90s"), "{shown}");
    let sentence = rowmq.refuse(&["topic", "delete", "lost"]);
    let fix = "`rowmq topic set mail --dead-letter-topic none`";
    assert!(sentence.contains("'mail'") && sentence.contains(fix), "{sentence}");
    for (name, other) in [("mail", "mail"), ("lost", "mail")] {
        let sentence = rowmq.refuse(&["topic", "set", name, "--dead-letter-topic", other]);
        assert!(sentence.contains("do not come back"), "{sentence}");
    }
    let sentence = rowmq.refuse(&["topic", "set", "mail", "--dead-letter-topic", "nowhere"]);
    assert!(sentence.contains("There is no topic 'nowhere'"), "{sentence}");
    let topic = rowmq.json(&["topic", "set", "mail", "--dead-letter-topic", "none"]);
    assert_eq!(topic["dead_letter_topic"], json!(null));
    rowmq.say(&["topic", "delete", "lost"]);
}

#[tokio::test]
async fn a_full_topic_is_shown_as_such_and_opened_by_another_limit() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail", "--max-depth", "2"]);
    let shown = rowmq.say(&["topic", "show", "mail"]);
    assert!(shown.contains("start a janitor") && shown.contains("block"), "{shown}");
    for _ in 0..2 {
        rowmq.say(&["enqueue", "mail", "x"]);
    }
    let driver = Driver::new(DriverOptions::new(database.url().clone(), "test"));
    assert!(driver.run_once().await.expect("swept"));
    let shown = rowmq.say(&["topic", "show", "mail"]);
    assert!(shown.contains("about 2 messages") && shown.contains("full"), "{shown}");
    let sentence = rowmq.refuse(&["enqueue", "mail", "x"]);
    assert!(sentence.contains("about 2 messages, the limit is 2"), "{sentence}");
    assert_eq!(rowmq.json(&["stats"])[0]["backlog"]["full"], true);
    assert!(rowmq.say(&["stats"]).contains("read-write, full "));
    rowmq.say(&["topic", "set", "mail", "--max-depth", "off"]);
    rowmq.say(&["enqueue", "mail", "x"]);
    for wrong in [["--max-depth", "0"], ["--max-bytes", "1GB"]] {
        rowmq.run(&["topic", "set", "mail", wrong[0], wrong[1]]).refused(2);
    }
}
