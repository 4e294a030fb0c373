//! What topics allow: each by its own rule, and the switch for all of them.

use rowmq_test::TestDatabase;
use serde_json::json;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn pause_stops_claims_unless_told_and_resume_opens_both() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    let access = |command: &[&str]| {
        let topic = rowmq.json(command);
        assert_eq!(topic, rowmq.json(&["topic", "show", "mail"]));
        topic["access"].as_str().expect("a word").to_owned()
    };
    assert_eq!(access(&["topic", "pause", "mail"]), "write-only");
    assert_eq!(access(&["topic", "pause", "mail", "--enqueue"]), "denied");
    assert_eq!(access(&["topic", "resume", "mail", "--claim"]), "read-only");
    assert_eq!(access(&["topic", "pause", "mail", "--claim", "--enqueue"]), "denied");
    assert_eq!(access(&["topic", "resume", "mail"]), "read-write");
    let sentence = rowmq.say(&["topic", "pause", "mail", "--enqueue"]);
    assert_eq!(sentence, "The topic 'mail' is read-only: it takes no messages; consumers go on.\n");
}

#[tokio::test]
async fn a_rule_is_set_in_a_word_and_shown() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    for rule in ["denied", "write-only", "read-only", "read-write"] {
        let topic = rowmq.json(&["topic", "access", "mail", rule]);
        assert_eq!((&topic["access"], &topic["effective_access"]), (&json!(rule), &json!(rule)));
        assert_eq!(cells(&rowmq.say(&["topic", "list"]))[0][2], rule);
        assert!(rowmq.say(&["topic", "show", "mail"]).contains(rule));
        assert_eq!(cells(&rowmq.say(&["stats"]))[0][1], rule);
    }
    let wrong = rowmq.run(&["topic", "access", "mail", "open"]).refused(2);
    assert!(wrong.contains("read-only or denied"), "{wrong}");
    let unknown = rowmq.refuse(&["topic", "access", "none", "denied"]);
    assert!(unknown.contains("There is no topic 'none'"), "{unknown}");
}

#[tokio::test]
async fn the_switch_holds_for_every_topic_and_doctor_warns_of_it() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["topic", "create", "jobs"]);
    rowmq.say(&["topic", "access", "jobs", "write-only"]);
    assert_eq!(rowmq.json(&["access"]), json!({ "access": "read-write" }));
    let told = rowmq.say(&["access", "read-only"]);
    assert_eq!(told, "All topics are read-only: they take no messages; consumers go on.\n");
    assert_eq!(rowmq.json(&["access"]), json!({ "access": "read-only" }));
    let list = rowmq.say(&["topic", "list"]);
    let access: Vec<_> = cells(&list).into_iter().map(|row| row[2]).collect();
    assert_eq!(access, ["denied (itself write-only)", "read-only (itself read-write)"]);
    let jobs = rowmq.json(&["stats", "jobs"]);
    assert_eq!(
        (&jobs[0]["access"], &jobs[0]["effective_access"]),
        (&json!("write-only"), &json!("denied"))
    );
    let sentence = rowmq.refuse(&["enqueue", "mail", "x"]);
    assert_eq!(
        sentence,
        "The topic 'mail' takes no messages now, nor does any other: `rowmq access read-write` opens them again."
    );
    let sentence = rowmq.say(&["topic", "resume", "mail"]);
    assert!(sentence.contains("is read-write itself, but read-only now"), "{sentence}");
    let check = |rowmq: &Rowmq| {
        let report = rowmq.json(&["doctor"]);
        let checks = report["checks"].as_array().expect("checks").clone();
        checks.into_iter().find(|check| check["name"] == "access").expect("it is checked")
    };
    let found = check(&rowmq);
    assert_eq!(found["verdict"], "warning");
    assert!(found["detail"].to_string().contains("rowmq access read-write"), "{found}");
    rowmq.say(&["access", "read-write"]);
    assert_eq!(check(&rowmq)["verdict"], "ok");
    rowmq.say(&["enqueue", "mail", "x"]);
    rowmq.run(&["access", "closed"]).refused(2);
}
