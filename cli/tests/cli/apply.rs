use std::fs;

use rowmq_test::TestDatabase;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::run::{Rowmq, cells};

/// Topics whose dead-letter topic comes after them in the file, a stream with groups of each kind,
/// and a schedule.
const SHOP: &str = r#"
[topics.mail]
max_attempts = 5
retry = "ladder 10s 1m"
dead_letter_topic = "dead-mail"

[topics.dead-mail]
keep_dead = "30d"

[topics.orders]
kind = "stream"
partitions = 4
retention = "7d"
retention_hard = true
trace = "1%"

[groups."orders@billing"]
ordered = true
broadcast = false
filter = ["region=eu,us", "type!=test"]

[groups."orders@cache"]
broadcast = true

[schedules.nightly]
topic = "mail"
cron = "30 2 * * 1-5"
time_zone = "Europe/Berlin"
body = "true"
header = ["kind=report"]
"#;

/// A file that is applied.
struct Applied {
    rowmq: Rowmq,
    folder: TempDir,
}

impl Applied {
    fn on(database: &TestDatabase) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { rowmq: Rowmq::on(database), folder }
    }

    fn path(&self, text: &str) -> String {
        let path = self.folder.path().join("topics.toml");
        fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    }

    fn json(&self, text: &str, options: &[&str]) -> Value {
        self.rowmq.json(&[&["apply", &self.path(text)], options].concat())
    }

    /// What a run changes: `create topic mail`.
    fn changes(&self, text: &str, options: &[&str]) -> Vec<String> {
        let applied = self.json(text, options);
        let word = |change: &Value, field| change[field].as_str().expect("text").to_owned();
        let changes = applied["changes"].as_array().expect("a list").iter();
        changes
            .map(|one| ["change", "what", "name"].map(|field| word(one, field)).join(" "))
            .collect()
    }

    /// Returns the sentence of a run that fails; what it was about to do stands before it.
    fn refuse(&self, text: &str, options: &[&str]) -> String {
        let ended = self.rowmq.run(&[&["apply", &self.path(text)], options].concat());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        ended.err
    }
}

#[tokio::test]
async fn a_file_creates_what_it_declares_and_applied_again_changes_nothing() {
    let database = TestDatabase::new().await;
    let shop = Applied::on(&database);
    let created = [
        "create topic dead-mail",
        "create topic orders",
        "create topic mail",
        "create group orders@billing",
        "create group orders@cache",
        "create schedule nightly",
    ];
    assert_eq!(shop.changes(SHOP, &["--dry-run"]), created);
    assert_eq!(shop.rowmq.json(&["topic", "list"]), json!([]));
    let said = shop.rowmq.say(&["apply", &shop.path(SHOP)]);
    let rows = cells(&said);
    assert_eq!(rows[2][..3], ["create", "topic", "mail"]);
    assert!(rows[2][3].contains("max_attempts 5") && rows[2][3].contains("retry ladder 10s 1m"));
    assert!(said.ends_with("6 changes are made; 0 things are as declared.\n"), "{said}");
    let again = shop.json(SHOP, &["--prune"]);
    assert_eq!(again, json!({ "dry_run": false, "changes": [], "unchanged": 6 }));
    let billing = shop.rowmq.json(&["topic", "show", "orders@billing"]);
    assert_eq!((&billing["ordered"], &billing["trace"]), (&json!(true), &json!("1%")));
    assert_eq!(billing["filter"], json!(["region=eu,us", "type!=test"]));
    assert_eq!(shop.rowmq.json(&["topic", "show", "orders"])["retention_hard"], true);
    let nightly = shop.rowmq.json(&["cron", "list"]);
    assert_eq!(nightly[0]["headers"], json!({ "kind": "report" }));
    let audit = shop.rowmq.json(&["audit"]);
    assert_eq!(audit.as_array().expect("a list").len(), 6);
}

#[tokio::test]
async fn what_the_file_leaves_out_has_its_default_and_what_it_does_not_name_stays() {
    let database = TestDatabase::new().await;
    let shop = Applied::on(&database);
    shop.rowmq.say(&["topic", "create", "other", "--max-attempts", "2"]);
    shop.rowmq.say(&["topic", "create", "mail", "--max-depth", "7", "--max-attempts", "5"]);
    shop.rowmq.say(&["topic", "pause", "mail"]);
    shop.rowmq.say(&["cron", "set", "nightly", "mail", "--cron", "@daily"]);
    let text = "[topics.mail]\nmax_attempts = 5\nsearchable = \"on\"\n\
                [schedules.nightly]\ntopic = \"mail\"\ncron = \"@hourly\"\n";
    let said = shop.rowmq.say(&["apply", &shop.path(text)]);
    assert_eq!(
        cells(&said)[..2],
        [
            ["set", "topic", "mail", "max_depth none, searchable 30days"],
            ["set", "schedule", "nightly", "@hourly UTC, to mail"]
        ]
    );
    let mail = shop.rowmq.json(&["topic", "show", "mail"]);
    assert_eq!((&mail["max_attempts"], &mail["max_depth"]), (&json!(5), &json!(null)));
    assert_eq!(mail["access"], "write-only");
    assert_eq!(shop.rowmq.json(&["topic", "show", "other"])["max_attempts"], 2);
    // A stream's trace changes in the same run as a setting of its group, which has the same trace.
    let stream = |trace: &str, attempts: u32| {
        format!(
            "[topics.s]\nkind = \"stream\"\ntrace = \"{trace}\"\n\
             [groups.\"s@g\"]\nmax_attempts = {attempts}\n"
        )
    };
    shop.changes(&stream("off", 3), &[]);
    assert_eq!(shop.changes(&stream("all", 4), &[]), ["set topic s", "set group s@g"]);
    assert_eq!(shop.rowmq.json(&["topic", "show", "s@g"])["trace"], "all");
    assert_eq!(shop.json(&stream("all", 4), &[])["unchanged"], 2);
}

#[tokio::test]
async fn pruning_deletes_what_is_not_declared_but_no_message() {
    let database = TestDatabase::new().await;
    let shop = Applied::on(&database);
    shop.changes(SHOP, &[]);
    assert_eq!(
        shop.changes("", &["--prune", "--yes"]),
        [
            "delete schedule nightly",
            "delete group orders@billing",
            "delete group orders@cache",
            "delete topic mail",
            "delete topic orders",
            "delete topic dead-mail",
        ]
    );
    shop.changes(SHOP, &[]);
    shop.rowmq.say(&["enqueue", "dead-mail", "x"]);
    assert_eq!(shop.changes("", &[]), [""; 0]);
    let sentence = shop.refuse("", &["--prune"]);
    assert!(sentence.contains("--yes"), "{sentence}");
    assert_eq!(shop.rowmq.json(&["topic", "list"]).as_array().map(Vec::len), Some(5));
    let kept = "[topics.mail]\n[topics.orders]\nkind = \"stream\"\npartitions = 4\n";
    let sentence = shop.refuse(kept, &["--prune", "--yes"]);
    assert!(
        sentence.contains("the topic 'dead-mail' failed: ") && sentence.contains("5 of 6"),
        "{sentence}"
    );
    shop.rowmq.say(&["purge", "dead-mail", "--yes"]);
    assert_eq!(shop.changes(kept, &["--prune", "--yes"]), ["delete topic dead-mail"]);
    assert_eq!(
        shop.changes("", &["--prune", "--yes"]),
        ["delete topic orders", "delete topic mail"]
    );
    assert_eq!(shop.rowmq.json(&["topic", "list"]), json!([]));
}

#[tokio::test]
async fn a_wrong_file_is_refused_with_its_line_before_anything_is_changed() {
    let database = TestDatabase::new().await;
    let shop = Applied::on(&database);
    let good = "[topics.good]\n";
    for (wrong, sentence) in [
        ("[topics", ":2: this is not TOML"),
        ("[topic.mail]", ":2: 'topic' may not stand at the top of the file; is 'topics' meant?"),
        ("[schedules]\nx = 1", ":3: 'x' is a table: write [schedules.x]"),
        (
            "[topics.mail]\nmax_atempts = 1",
            ":3: [topics.mail] has no setting 'max_atempts'; is 'max_attempts' meant?",
        ),
        ("[topics.mail]\nif_not_exists = true", ":3: [topics.mail] has no setting 'if_not_exists'"),
        ("[topics.mail]\n\nmax_attempts = 0", ":4: [topics.mail]: 'max_attempts' is '0': "),
        ("[topics.mail]\nretry = \"soon\"", ":3: [topics.mail]: 'retry' is 'soon': "),
        (
            "[topics.mail]\nmax_depth = [1, 2]",
            ":3: [topics.mail]: 'max_depth' has one value: write no list",
        ),
        (
            "[topics.mail]\nkind = \"group\"",
            ":3: [topics.mail]: 'kind' is 'group': use one of queue, stream",
        ),
        ("[topics.\"a b\"]", ":2: [topics.a b]: "),
        ("[groups.\"s@g\"]\nordered = \"yes\"", ":3: [groups.s@g]: 'ordered' is true or false"),
        (
            "[groups.\"s@g\"]\nordered = true\nbroadcast = true",
            ":2: [groups.s@g]: A broadcast group cannot be ordered",
        ),
        ("[schedules.x]\ncron = \"@daily\"", ":2: [schedules.x] has no 'topic'"),
        ("[schedules.x]\ntopic = \"good\"", ":2: [schedules.x] has no 'cron'"),
        (
            "[schedules.x]\ntopic = \"other\"\ncron = \"@daily\"",
            ":2: [schedules.x]: there is no topic 'other': declare [topics.other]",
        ),
        (
            "[schedules.x]\ntopic = \"good\"\ncron = \"61 * * * *\"",
            ":2: [schedules.x]: The cron pattern",
        ),
    ] {
        let said = shop.refuse(&format!("{good}{wrong}\n"), &[]);
        assert!(said.contains(&format!("topics.toml{sentence}")), "{said}");
    }
    assert_eq!(shop.rowmq.json(&["topic", "list"]), json!([]));
    shop.changes(SHOP, &[]);
    for (other, sentence) in [
        ("[topics.orders]", "'orders' exists, and its kind is 'stream'"),
        ("[topics.orders]\nkind = \"stream\"", "has 4 partitions, not 1"),
        ("[groups.\"orders@cache\"]", "'orders@cache' exists, and its kind is 'broadcast group'"),
        ("[groups.\"orders@billing\"]", "'orders@billing' exists, and its kind is 'ordered group'"),
    ] {
        let said = shop.refuse(&format!("{good}{other}\n"), &[]);
        assert!(said.contains(sentence), "{said}");
    }
}

#[tokio::test]
async fn a_topic_or_group_that_exists_may_be_created_again_if_that_is_asked_for() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let create = |words: &[&str]| rowmq.say(&[words, &["--if-not-exists"]].concat());
    assert_eq!(
        create(&["topic", "create", "mail", "--max-attempts", "2"]),
        "The topic 'mail' is created.\n"
    );
    assert_eq!(create(&["topic", "create", "mail"]), "The topic 'mail' exists.\n");
    assert_eq!(rowmq.json(&["topic", "show", "mail"])["max_attempts"], 2);
    create(&["topic", "create", "s", "--kind", "stream"]);
    create(&["group", "create", "s@g"]);
    assert_eq!(create(&["group", "create", "s@g"]), "The group 's@g' exists.\n");
    for words in [
        ["topic", "create", "s", "--if-not-exists"].as_slice(),
        &["group", "create", "s@g", "--ordered", "--if-not-exists"],
    ] {
        assert!(rowmq.refuse(words).contains("exists, and its kind is"));
    }
    assert!(rowmq.refuse(&["topic", "create", "mail"]).contains("exists"));
    assert_eq!(rowmq.json(&["audit"]).as_array().map(Vec::len), Some(3));
}
