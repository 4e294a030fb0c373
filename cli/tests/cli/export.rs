//! Exporting a topic into a file, and what happens when the export is cut off.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rowmq_core::{NewMessage, Priority, Topic, enqueue_to};
use rowmq_test::TestDatabase;
use serde_json::{Value, json};

use crate::run::Rowmq;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Creates a topic with 300 delayed messages, and 450 ready ones in two priorities.
async fn filled(database: &TestDatabase) -> Topic {
    let topic = database.topic("mail").await;
    let mut messages = Vec::new();
    for n in 0..750 {
        let message = NewMessage::new(format!("{n}")).with_header("n", n.to_string());
        messages.push(match n {
            0..300 => message.with_delay(Duration::from_secs(3600 + n % 7)),
            300..400 => message.with_priority(Priority::LAST),
            _ => message,
        });
    }
    enqueue_to(&mut database.connect().await, &topic, &messages).await.expect("enqueued");
    topic
}

#[tokio::test]
async fn export_writes_what_import_and_producer_send_read() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let topic = database.topic("mail").await;
    let mut bytes = NewMessage::new(vec![0xff, 0]).with_priority(Priority::FIRST);
    bytes.key = Some(b"k".to_vec());
    bytes.headers.0.insert("h".to_owned(), "v".to_owned());
    let mut messages = vec![bytes.clone()];
    messages.extend((0..450).map(|n| NewMessage::new(n.to_string())));
    enqueue_to(&mut database.connect().await, &topic, &messages).await.expect("enqueued");
    let lines = lines(&rowmq.say(&["export", "mail"]));
    assert_eq!(lines.len(), 451);
    assert_eq!(lines[0]["msg_id"], bytes.msg_id.to_string());
    assert_eq!(lines[0]["body_base64"], "/wA=");
    assert_eq!((&lines[0]["key"], &lines[0]["headers"]["h"]), (&json!("k"), &json!("v")));
    assert_eq!([&lines[1]["body"], &lines[450]["body"]], [&json!("0"), &json!("449")]);
}

#[tokio::test]
async fn an_export_has_what_waits_for_its_time_and_tells_how_many_it_wrote() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mail.ndjson");
    let path = file.to_str().expect("text");
    let told = rowmq.json(&["export", "mail", "--to", path]);
    let expected = json!({ "topic": "mail", "file": path, "messages": 750, "earlier": 0 });
    assert_eq!(told, expected);
    let lines = lines(&fs::read_to_string(&file).expect("written"));
    assert_eq!(lines.iter().filter(|line| line["deliver"].is_string()).count(), 300);
    let mut seen: Vec<u32> = lines
        .iter()
        .map(|line| line["body"].as_str().expect("text").parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..750).collect::<Vec<u32>>());
    let sentence = rowmq.refuse(&["export", "mail", "--to", path]);
    assert!(sentence.contains("--resume"), "{sentence}");
}

#[tokio::test]
async fn wherever_a_file_ends_the_export_goes_on_behind_it() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let topic = filled(&database).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    let resume = |file: &Path| {
        rowmq.json(&["export", "mail", "--to", file.to_str().expect("text"), "--resume"])
    };
    assert_eq!(resume(&whole)["messages"], 750, "there was no file: a new one");
    let expected = fs::read(&whole).expect("written");
    // This message sorts behind the last row of the export that has begun.
    let late = [NewMessage::new("late").with_priority(Priority::LAST)];
    enqueue_to(&mut database.connect().await, &topic, &late).await.expect("enqueued");
    let ends: Vec<usize> =
        (0..expected.len()).filter(|at| expected[*at] == b'\n').map(|at| at + 1).collect();
    let in_delayed = ends[150];
    let in_ready = ends[610];
    for at in
        [1, ends[0], in_delayed - 5, in_delayed, ends[299], in_ready - 1, in_ready, ends[749] - 1]
    {
        fs::write(&cut, &expected[..at]).expect("cut");
        let told = resume(&cut);
        let lines = ends.iter().filter(|end| **end <= at).count();
        if lines == 0 {
            // Nothing shows where the export began: it begins now.
            assert_eq!((&told["messages"], &told["earlier"]), (&json!(751), &json!(0)));
            continue;
        }
        assert_eq!((&told["messages"], &told["earlier"]), (&json!(750), &json!(lines)), "at {at}");
        assert!(fs::read(&cut).expect("there") == expected, "the same bytes, cut at {at}");
    }
    assert_eq!(resume(&whole)["earlier"], 750);
    assert!(fs::read(&whole).expect("there") == expected, "nothing comes behind the end");
}

#[tokio::test]
async fn an_export_that_the_system_kills_in_a_line_goes_on_behind_it() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    rowmq.say(&["export", "mail", "--to", whole.to_str().expect("text")]);
    let expected = fs::read_to_string(&whole).expect("written");
    let export = rowmq.command(&["export", "mail", "--to", cut.to_str().expect("text")]);
    // A limit on the file size kills the export in the middle of a page.
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -c 0; ulimit -f 50; exec \"$@\"", "sh"]);
    limited.arg(export.get_program()).args(export.get_args());
    limited.env("ROWMQ_URL", database.url().expose());
    let ended = limited.output().expect("it runs");
    assert!(!ended.status.success(), "{ended:?}");
    let written = fs::read_to_string(&cut).expect("written");
    assert!(!written.is_empty() && !written.ends_with('\n') && written.len() < expected.len());
    rowmq.say(&["export", "mail", "--to", cut.to_str().expect("text"), "--resume"]);
    let of = |text: &str| {
        let without_place = |mut line: Value| {
            // The last row of a server covers the databases of all tests.
            line.as_object_mut().expect("an object").remove("place");
            line
        };
        lines(text).into_iter().map(without_place).collect::<Vec<_>>()
    };
    assert_eq!(of(&fs::read_to_string(&cut).expect("there")), of(&expected));
}

#[tokio::test]
async fn a_file_of_something_else_is_left_as_it_is() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database).await;
    database.topic("other").await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let path = file.to_str().expect("text");
    rowmq.say(&["export", "mail", "--to", path]);
    let exported = fs::read_to_string(&file).expect("written");
    let sentence = rowmq.refuse(&["export", "other", "--to", path, "--resume"]);
    assert!(sentence.contains("it is one of 'mail'"), "{sentence}");
    for content in ["notes\n", "{\"body\":\"x\"}\n", "{\"topic\":\"mail\",\"place\":\"here\"}\n"] {
        let content = format!("{exported}{content}");
        fs::write(&file, &content).expect("written");
        let sentence = rowmq.refuse(&["export", "mail", "--to", path, "--resume"]);
        assert!(sentence.starts_with("Line 751 of"), "{sentence}");
        assert_eq!(fs::read_to_string(&file).expect("there"), content);
    }
    for content in ["notes", "{\"a\":1}", "{\"messages\":"] {
        fs::write(&file, content).expect("written");
        let sentence = rowmq.refuse(&["export", "mail", "--to", path, "--resume"]);
        assert!(sentence.contains("is not what an export has written"), "{sentence}");
        assert_eq!(fs::read_to_string(&file).expect("there"), content);
    }
    fs::write(&file, &exported).expect("written");
    let writer = OpenOptions::new().append(true).open(&file).expect("opened");
    writer.lock().expect("locked");
    let sentence = rowmq.refuse(&["export", "mail", "--to", path, "--resume"]);
    assert!(sentence.contains("Another export is writing"), "{sentence}");
}
