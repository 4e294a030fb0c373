//! Importing a file into a topic.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rowmq_core::model::TopicSettings;
use rowmq_core::{NewMessage, Priority, enqueue_to};
use rowmq_test::TestDatabase;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::run::Rowmq;

/// Writes a file of `n` messages for the topic `mail`; returns its folder and its path.
pub(crate) fn file_of(n: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mail.ndjson");
    let line = |n: usize| {
        let msg_id = format!("0199f5a0-0000-7000-8000-{n:012}");
        format!("{}\n", json!({ "topic": "mail", "msg_id": msg_id, "body": n.to_string() }))
    };
    fs::write(&path, (0..n).map(line).collect::<String>()).expect("written");
    (folder, path)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Returns the lines of an export, without the fields for where and when they were stored.
fn messages(export: &str) -> Vec<Value> {
    let of = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("JSON");
        for field in ["place", "topic", "enqueued_at"] {
            line.as_object_mut().expect("an object").remove(field);
        }
        line
    };
    export.lines().map(of).collect()
}

#[tokio::test]
async fn what_is_imported_is_what_was_exported() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let (from, _to) = (database.topic("mail").await, database.topic("copy").await);
    let mut all = NewMessage::new(vec![0xff, 0, b'\n']).with_priority(Priority::FIRST);
    (all.key, all.biz_id) = (Some(vec![0xfe]), Some(vec![0xfd, b'x']));
    let messages_sent = [
        all.with_header("a", "ä\n").with_expiry(Duration::from_secs(7200)),
        NewMessage::new("").with_key("k").with_biz_id("4711"),
        NewMessage::new("later").with_delay(Duration::from_secs(3600)).with_key("k"),
        NewMessage::new("later still")
            .with_priority(Priority::LAST)
            .with_delay(Duration::from_secs(7200))
            .with_expiry(Duration::from_secs(7201)),
    ];
    enqueue_to(&mut database.connect().await, &from, &messages_sent).await.expect("enqueued");
    // Like some retries, it is due after it has expired; an enqueue cannot do that.
    let too_late = NewMessage::new("too late").with_delay(Duration::from_secs(60));
    let too_late = too_late.with_expiry(Duration::from_secs(120));
    let id = too_late.msg_id.to_string();
    enqueue_to(&mut database.connect().await, &from, &[too_late]).await.expect("enqueued");
    rowmq.say(&["scheduled", "reschedule", "mail", &id, "--deliver", "9h"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mail.ndjson");
    rowmq.say(&["export", "mail", "--to", text(&file)]);
    let told = rowmq.json(&["import", text(&file), "--topic", "copy"]);
    let expected = json!({ "file": text(&file), "messages": 5, "earlier": 0, "duplicates": 0 });
    assert_eq!(told, expected);
    let in_order = |export: &str| {
        let mut messages = messages(export);
        messages.sort_by_key(|message| message["msg_id"].to_string());
        messages
    };
    let copied = in_order(&rowmq.say(&["export", "copy"]));
    assert_eq!(copied, in_order(&fs::read_to_string(&file).expect("there")));
    let of = |id: String| copied.iter().find(|one| one["msg_id"] == id).expect("it is there");
    let later = of(messages_sent[2].msg_id.to_string());
    assert_eq!(later["deliver"].as_str().map(str::len), Some(27), "to the microsecond");
    assert_eq!((&of(id)["deliver"], copied.len()), (&Value::Null, 5));
}

#[tokio::test]
async fn the_same_command_again_stores_nothing_again() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    database.topic("mail").await;
    let (_folder, file) = file_of(1200);
    let said = rowmq.say(&["import", text(&file)]);
    assert_eq!(said, format!("1200 messages of {} are imported.\n", text(&file)));
    let again = rowmq.say(&["import", text(&file)]);
    assert!(again.contains("were imported before, as the database says"), "{again}");
    let told = rowmq.json(&["import", text(&file)]);
    assert_eq!((&told["messages"], &told["earlier"]), (&json!(1200), &json!(1200)));
    assert_eq!(rowmq.json(&["stats"])[0]["unsettled"], 1200);
}

#[tokio::test]
async fn within_a_dedupe_window_ids_that_are_known_are_not_stored_and_that_is_said() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let settings = TopicSettings {
        dedupe_window: Some(Duration::from_secs(3600)),
        ..TopicSettings::default()
    };
    database.topic_with("mail", &settings).await;
    let (folder, file) = file_of(700);
    rowmq.say(&["import", text(&file)]);
    let other = folder.path().join("other.import");
    let arguments = ["import", text(&file), "--journal", text(&other)];
    let said = rowmq.say(&arguments);
    assert!(said.contains("; 700 of them were not stored, as their topic knows"), "{said}");
    assert_eq!(rowmq.json(&["stats"])[0]["unsettled"], 700);
}

#[tokio::test]
async fn an_import_that_a_topic_refuses_goes_on_when_it_does_not_any_more() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    database.topic("mail").await;
    let (_folder, file) = file_of(900);
    rowmq.say(&["topic", "pause", "mail", "--enqueue"]);
    let sentence = rowmq.refuse(&["import", text(&file)]);
    for words in ["the same command goes on", "500 messages from line 1", "topic resume mail"] {
        assert!(sentence.contains(words), "{words}: {sentence}");
    }
    let sentence = rowmq.refuse(&["import", text(&file), "--topic", "other"]);
    assert!(sentence.contains("of an import without --topic"), "{sentence}");
    let content = fs::read_to_string(&file).expect("there");
    fs::write(&file, content.replacen("\"body\":\"0\"", "\"body\":\"1\"", 1)).expect("written");
    let sentence = rowmq.refuse(&["import", text(&file)]);
    assert!(sentence.contains("is not what it was when its import began"), "{sentence}");
    fs::write(&file, content).expect("written");
    rowmq.say(&["topic", "resume", "mail", "--enqueue"]);
    rowmq.say(&["import", text(&file)]);
    assert_eq!(rowmq.json(&["stats"])[0]["unsettled"], 900);
}

#[tokio::test]
async fn another_database_knows_nothing_of_the_import() {
    let (one, other) = (TestDatabase::new().await, TestDatabase::new().await);
    let (_folder, file) = file_of(3);
    one.topic("mail").await;
    Rowmq::on(&one).say(&["topic", "pause", "mail", "--enqueue"]);
    Rowmq::on(&one).refuse(&["import", text(&file)]);
    other.topic("mail").await;
    let sentence = Rowmq::on(&other).refuse(&["import", text(&file)]);
    assert!(sentence.contains("knows nothing of this import"), "{sentence}");
    Rowmq::on(&one).say(&["topic", "resume", "mail", "--enqueue"]);
    Rowmq::on(&one).say(&["import", text(&file)]);
    // Nor does it trust the journal about an import that has ended.
    let sentence = Rowmq::on(&other).refuse(&["import", text(&file)]);
    assert!(sentence.contains("knows nothing of this import"), "{sentence}");
    assert_eq!(Rowmq::on(&other).json(&["stats"])[0]["unsettled"], 0);
    assert_eq!(Rowmq::on(&one).json(&["stats"])[0]["unsettled"], 3);
}

#[tokio::test]
async fn what_is_no_import_is_refused_before_anything_is_stored() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    database.topic("mail").await;
    let (folder, file) = file_of(700);
    let content = fs::read_to_string(&file).expect("there");
    for (end, words) in [
        ("{\"topic\":\"mail\",\"bod", "Line 701 of"),
        ("{\"body\":\"x\"}\n", "--topic TOPIC"),
        ("{\"topic\":\"mail\",\"body\":\"x\",\"prio\":1}\n", "unknown field `prio`"),
    ] {
        fs::write(&file, format!("{content}{end}")).expect("written");
        let sentence = rowmq.refuse(&["import", text(&file)]);
        assert!(sentence.contains(words) && sentence.contains("nothing"), "{sentence}");
    }
    let sentence = rowmq.refuse(&["import", text(folder.path())]);
    assert!(sentence.contains("rowmq-producer send TOPIC --ndjson -"), "{sentence}");
    let sentence = rowmq.refuse(&["import", "nowhere.ndjson"]);
    assert!(sentence.starts_with("Cannot read nowhere.ndjson"), "{sentence}");
    fs::write(&file, content).expect("written");
    let sentence = rowmq.refuse(&["import", text(&file), "--journal", "/nowhere/journal"]);
    assert!(sentence.contains("say with --journal where"), "{sentence}");
    assert_eq!(rowmq.json(&["stats"])[0]["unsettled"], 0);
}
