use std::env;

use rowmq_core::connection::ServerUrl;
use rowmq_test::TestDatabase;
use serde_json::json;

use crate::run::Rowmq;

/// Creates a database without the queue's tables.
async fn empty() -> TestDatabase {
    let server = env::var("ROWMQ_URL").expect("ROWMQ_URL names the server to test on");
    TestDatabase::empty_on(&ServerUrl::new(&server).expect("a URL")).await
}

#[tokio::test]
async fn a_dry_run_prints_the_sql_and_changes_nothing() {
    let database = empty().await;
    let rowmq = Rowmq::on(&database);
    for _ in 0..2 {
        let sql = rowmq.say(&["migrate", "--dry-run"]);
        assert!(sql.contains("CREATE TABLE queue_message ("), "{sql}");
        assert!(sql.starts_with("-- 2026-11-21-000001_queue\n"), "{sql}");
        let pending = rowmq.json(&["migrate", "--dry-run"]);
        assert_eq!(pending["pending"][0]["name"], "2026-11-21-000001_queue");
    }
    rowmq.say(&["migrate"]);
    let nothing = rowmq.say(&["migrate", "--dry-run"]);
    assert!(nothing.starts_with("-- ") && nothing.contains("up to date"), "{nothing}");
    assert_eq!(rowmq.json(&["migrate", "--dry-run"])["pending"], json!([]));
}

#[tokio::test]
async fn migrate_says_what_it_applied_and_then_that_nothing_is_left() {
    let database = empty().await;
    let rowmq = Rowmq::on(&database);
    let applied = rowmq.json(&["migrate"]);
    assert_eq!(applied["database"], database.name());
    assert_eq!(applied["applied"][0], "2026-11-21-000001_queue");
    assert!(rowmq.say(&["migrate"]).contains("is up to date"));
    assert_eq!(rowmq.json(&["migrate"])["applied"], json!([]));
}

#[tokio::test]
async fn without_the_tables_every_command_says_to_migrate() {
    let database = empty().await;
    let rowmq = Rowmq::on(&database);
    let commands: [&[&str]; 10] = [
        &["topic", "list"],
        &["topic", "create", "mail"],
        &["topic", "show", "mail"],
        &["topic", "set", "mail", "--max-attempts", "2"],
        &["topic", "pause", "mail"],
        &["topic", "delete", "mail"],
        &["enqueue", "mail", "hello"],
        &["peek", "mail"],
        &["workers"],
        &["janitor"],
    ];
    for command in commands {
        let sentence = rowmq.refuse(command);
        assert!(sentence.ends_with("run `rowmq migrate`."), "{command:?}: {sentence}");
        assert!(sentence.contains(database.name()), "{command:?}: {sentence}");
    }
}

#[tokio::test]
async fn doctor_shows_every_check_and_fails_when_one_fails() {
    let database = empty().await;
    let rowmq = Rowmq::on(&database);
    let ended = rowmq.run(&["doctor"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(1), ""));
    let line = ended.out.lines().find(|line| line.starts_with("schema"));
    assert!(line.is_some_and(|line| line.contains("FAILURE")), "{}", ended.out);

    rowmq.say(&["migrate"]);
    let table = rowmq.say(&["doctor"]);
    assert!(table.starts_with("CHECK"), "{table}");
    assert!(table.contains("SKIP LOCKED passes over another session's row"), "{table}");
    let report = rowmq.json(&["doctor"]);
    assert!(report["server"].as_str().is_some_and(|name| name.contains('.')), "{report}");
    let checks = report["checks"].as_array().expect("a list");
    assert!(checks.iter().any(|check| check["name"] == "schema" && check["verdict"] == "ok"));
    assert!(checks.iter().all(|check| check["verdict"] != "failure"), "{report}");
}
