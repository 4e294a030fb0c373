//! What may be done with topics: each with its own rule, and the switch for all of them.

use queue_test::TestDatabase;
use serde_json::json;

use crate::run::{Queuectl, cells};

#[tokio::test]
async fn pause_stops_claims_unless_told_and_resume_opens_both() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    let access = |command: &[&str]| {
        let topic = queuectl.json(command);
        assert_eq!(topic, queuectl.json(&["topic", "show", "mail"]));
        topic["access"].as_str().expect("a word").to_owned()
    };
    assert_eq!(access(&["topic", "pause", "mail"]), "write-only");
    assert_eq!(access(&["topic", "pause", "mail", "--enqueue"]), "denied");
    assert_eq!(access(&["topic", "resume", "mail", "--claim"]), "read-only");
    assert_eq!(access(&["topic", "pause", "mail", "--claim", "--enqueue"]), "denied");
    assert_eq!(access(&["topic", "resume", "mail"]), "read-write");
    let sentence = queuectl.say(&["topic", "pause", "mail", "--enqueue"]);
    assert_eq!(sentence, "The topic 'mail' is read-only: it takes no messages; consumers go on.\n");
}

#[tokio::test]
async fn a_rule_is_set_in_a_word_and_shown() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    for rule in ["denied", "write-only", "read-only", "read-write"] {
        let topic = queuectl.json(&["topic", "access", "mail", rule]);
        assert_eq!((&topic["access"], &topic["effective_access"]), (&json!(rule), &json!(rule)));
        assert_eq!(cells(&queuectl.say(&["topic", "list"]))[0][2], rule);
        assert!(queuectl.say(&["topic", "show", "mail"]).contains(rule));
        assert_eq!(cells(&queuectl.say(&["stats"]))[0][1], rule);
    }
    let wrong = queuectl.run(&["topic", "access", "mail", "open"]).refused(2);
    assert!(wrong.contains("read-only or denied"), "{wrong}");
    let unknown = queuectl.refuse(&["topic", "access", "none", "denied"]);
    assert!(unknown.contains("There is no topic 'none'"), "{unknown}");
}

#[tokio::test]
async fn the_switch_holds_for_every_topic_and_doctor_warns_of_it() {
    let database = TestDatabase::new().await;
    let queuectl = Queuectl::on(&database);
    queuectl.say(&["topic", "create", "mail"]);
    queuectl.say(&["topic", "create", "jobs"]);
    queuectl.say(&["topic", "access", "jobs", "write-only"]);
    assert_eq!(queuectl.json(&["access"]), json!({ "access": "read-write" }));
    let told = queuectl.say(&["access", "read-only"]);
    assert_eq!(told, "All topics are read-only: they take no messages; consumers go on.\n");
    assert_eq!(queuectl.json(&["access"]), json!({ "access": "read-only" }));
    let list = queuectl.say(&["topic", "list"]);
    let access: Vec<_> = cells(&list).into_iter().map(|row| row[2]).collect();
    assert_eq!(access, ["denied (itself write-only)", "read-only (itself read-write)"]);
    let jobs = queuectl.json(&["stats", "jobs"]);
    assert_eq!(
        (&jobs[0]["access"], &jobs[0]["effective_access"]),
        (&json!("write-only"), &json!("denied"))
    );
    let sentence = queuectl.refuse(&["enqueue", "mail", "x"]);
    assert_eq!(
        sentence,
        "The topic 'mail' takes no messages now, nor does any other: `queuectl access read-write` opens them again."
    );
    let sentence = queuectl.say(&["topic", "resume", "mail"]);
    assert!(sentence.contains("is read-write itself, but read-only now"), "{sentence}");
    let check = |queuectl: &Queuectl| {
        let report = queuectl.json(&["doctor"]);
        let checks = report["checks"].as_array().expect("checks").clone();
        checks.into_iter().find(|check| check["name"] == "access").expect("it is checked")
    };
    let found = check(&queuectl);
    assert_eq!(found["verdict"], "warning");
    assert!(found["detail"].to_string().contains("queuectl access read-write"), "{found}");
    queuectl.say(&["access", "read-write"]);
    assert_eq!(check(&queuectl)["verdict"], "ok");
    queuectl.say(&["enqueue", "mail", "x"]);
    queuectl.run(&["access", "closed"]).refused(2);
}
