//! Streams and their groups on the command line.

use rowmq_core::store::stream::inbox;
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::{Worker, WorkerOptions};
use rowmq_core::{NewMessage, TopicName, enqueue_all, store};
use rowmq_test::{TestDatabase, until};
use serde_json::json;

use crate::audit::newest;
use crate::run::{Rowmq, cells};

/// Creates a stream of `n` messages that have their offsets.
async fn filled(database: &TestDatabase, rowmq: &Rowmq, n: usize) {
    rowmq.say(&["topic", "create", "orders", "--kind", "stream", "--partitions", "2"]);
    let mut conn = database.connect().await;
    let name = TopicName::new("orders").expect("a name");
    let messages: Vec<_> = (0..n).map(|n| NewMessage::new(n.to_string())).collect();
    enqueue_all(&mut conn, &name, &messages).await.expect("enqueued");
    let stream = store::topic::existing(&mut conn, &name).await.expect("it is there");
    sequence(&mut conn, stream.id, 10_000, Contention::Wait).await.expect("sequenced");
    assert!(inbox::is_empty(&mut conn, stream.id).await.expect("read"));
}

#[tokio::test]
async fn a_group_is_created_watched_reset_and_replayed() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, &rowmq, 100).await;
    assert!(rowmq.say(&["group", "list"]).contains("There are no groups"));
    assert_eq!(
        rowmq.say(&["group", "create", "orders@mail"]),
        "The group 'orders@mail' is created.\n"
    );
    let made = rowmq.json(&["group", "create", "orders@bill", "--ordered", "--from", "latest"]);
    assert_eq!((&made["kind"], &made["ordered"]), (&json!("group"), &json!(true)));
    assert!(made["retry"].as_str().is_some_and(|retry| retry.starts_with("ladder 10s 20s 30s 1m")));
    let list = rowmq.json(&["group", "list", "orders"]);
    assert_eq!((&list[0]["name"], &list[0]["lag"]), (&json!("orders@mail"), &json!(100)));
    assert_eq!((&list[1]["name"], &list[1]["lag"]), (&json!("orders@bill"), &json!(0)));
    assert!(list[0]["lag_ms"].is_u64() && list[1]["lag_ms"].is_null());

    let worker = Worker::start(WorkerOptions::new(database.url().clone(), "test")).await;
    let worker = worker.expect("started");
    let mut conn = database.connect().await;
    let mail = TopicName::new("orders@mail").expect("a name");
    let mail = store::topic::existing(&mut conn, &mail).await.expect("it is there");
    let group = mail.group().expect("a group");
    let claimed = worker.claim_range(group, 30).await.expect("claimed").deliveries.len();
    assert_eq!(claimed, 30);
    let shown = rowmq.say(&["group", "show", "orders@mail"]);
    let shown = cells(&shown);
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().any(|row| row[7] == "30" && row[8] != "-"), "{shown:?}");
    assert!(shown.iter().any(|row| row[7] == "0" && row[8] == "-"), "{shown:?}");
    members_and_their_claims_are_shown(&rowmq, &worker);
    assert_eq!(rowmq.say(&["group", "blocked", "orders@bill"]), "Nothing is held back.\n");

    let sentence = rowmq.refuse(&["group", "reset", "orders@mail", "--to", "latest"]);
    assert!(sentence.contains("--yes"), "{sentence}");
    rowmq.say(&["group", "reset", "orders@mail", "--to", "latest", "--yes"]);
    assert_eq!(rowmq.json(&["group", "list"])[1]["lag"], 0);
    let replayed = rowmq.json(&["group", "replay", "orders@mail", "--from", "10", "--to", "20"]);
    assert_eq!(replayed, json!({ "group": "orders@mail", "messages": 20 }));
    let (action, target, messages, detail) = newest(&rowmq);
    assert_eq!((action.as_str(), target.as_str(), messages), ("replay", "orders@mail", 20));
    assert_eq!(detail, "from 10 to 20");
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn a_group_is_paused_resumed_and_deleted() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, &rowmq, 10).await;
    rowmq.say(&["group", "create", "orders@mail"]);
    for command in ["pause", "resume", "delete"] {
        let sentence = rowmq.refuse(&["group", command, "orders"]);
        assert!(sentence.contains("'orders' is no group"), "{command}: {sentence}");
    }
    let sentence = rowmq.say(&["group", "pause", "orders@mail"]);
    assert!(sentence.starts_with("The group 'orders@mail' is write-only"), "{sentence}");
    let worker = Worker::start(WorkerOptions::new(database.url().clone(), "test")).await;
    let worker = worker.expect("started");
    let mail = TopicName::new("orders@mail").expect("a name");
    let mail = store::topic::existing(&mut database.connect().await, &mail).await;
    let group = mail.expect("it is there").group().expect("a group");
    let claimed = async || worker.claim_range(group, 30).await.expect("claimed").deliveries.len();
    assert_eq!(claimed().await, 0);
    let sentence = rowmq.say(&["group", "resume", "orders@mail"]);
    assert!(sentence.starts_with("The group 'orders@mail' is read-write"), "{sentence}");
    until("the group goes on", async || claimed().await > 0).await;
    worker.stop().await.expect("stopped");

    let sentence = rowmq.refuse(&["topic", "delete", "orders", "--purge", "--yes"]);
    assert!(sentence.contains("`rowmq group delete orders@mail`"), "{sentence}");
    let sentence = rowmq.say(&["group", "delete", "orders@mail"]);
    assert_eq!(sentence, "The group 'orders@mail' is deleted, and 0 messages with it.\n");
    rowmq.say(&["topic", "delete", "orders", "--purge", "--yes"]);
}

/// One worker has claimed 30 messages of the log of `orders@mail`; no worker has any of
/// `orders@bill`.
fn members_and_their_claims_are_shown(rowmq: &Rowmq, worker: &Worker) {
    let members = rowmq.json(&["group", "members", "orders@mail"]);
    let one = &members[0];
    assert_eq!((&one["worker"], &one["state"]), (&json!(worker.id()), &json!("alive")));
    assert_eq!((&one["of"], &one["mark"], &one["hi"]), (&json!("log"), &json!(0), &json!(30)));
    assert!(one["messages"] == 30 && one["age_ms"].is_u64() && members[1].is_null(), "{members}");
    let table = rowmq.say(&["group", "members", "orders@mail"]);
    let row = &cells(&table)[0];
    assert_eq!((row[0], row[2]), (worker.id().to_string().as_str(), "alive"), "{table}");
    assert_eq!(row[4..7], ["0", "30", "30"], "{table}");
    let none = rowmq.say(&["group", "members", "orders@bill"]);
    assert_eq!(none, "No member of the group has claimed anything.\n");
    let workers = rowmq.json(&["workers"]);
    let held = ["claims", "ranges", "range_messages"].map(|name| workers[0][name].as_u64());
    assert_eq!(held, [Some(0), Some(1), Some(30)]);
    let listed = rowmq.json(&["group", "list"]);
    assert!(listed[1]["held_ms"].is_u64() && listed[0]["held_ms"].is_null(), "{listed}");
}

#[tokio::test]
async fn a_groups_filter_is_created_shown_changed_and_removed() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, &rowmq, 1).await;
    let made = rowmq.json(&[
        "group",
        "create",
        "orders@mail",
        "--filter",
        "type = created",
        "--filter",
        "region=us,eu",
    ]);
    assert_eq!(made["filter"], json!(["type=created", "region=eu,us"]));
    let list = rowmq.say(&["group", "list"]);
    assert_eq!(cells(&list)[0][3], "type=created and region=eu,us");
    let kept = rowmq.json(&["group", "set", "orders@mail", "--max-attempts", "3"]);
    assert_eq!((&kept["filter"], &kept["max_attempts"]), (&made["filter"], &json!(3)));
    assert_eq!(rowmq.json(&["topic", "show", "orders@mail"]), kept);
    let shown = rowmq.say(&["group", "set", "orders@mail", "--filter", "type!=test"]);
    assert!(shown.contains("filter               type!=test"), "{shown}");
    let none = rowmq.json(&["group", "set", "orders@mail", "--filter", "none"]);
    assert_eq!((&none["filter"], &none["max_attempts"]), (&json!([]), &json!(3)));
    for (wrong, says) in [("=a", "the name of a header"), ("type=", "a value is missing")] {
        let sentence = rowmq.run(&["group", "set", "orders@mail", "--filter", wrong]).refused(2);
        assert!(sentence.contains(says), "{sentence}");
    }
    assert_eq!(rowmq.run(&["group", "set", "orders@mail"]).code, Some(2), "set what?");
    let long = format!("type={}", "x".repeat(5000));
    let sentence = rowmq.refuse(&["group", "set", "orders@mail", "--filter", &long]);
    assert!(sentence.contains("4096 bytes"), "{sentence}");
    let sentence = rowmq.refuse(&["group", "set", "orders", "--filter", "type"]);
    assert!(sentence.contains("is no group of a stream"), "{sentence}");
}

#[tokio::test]
async fn what_makes_no_sense_of_streams_is_refused_in_a_sentence() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, &rowmq, 10).await;
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["group", "create", "orders@g"]);
    for (arguments, says) in [
        (vec!["group", "create", "none@g"], "There is no topic 'none'"),
        (vec!["group", "create", "mail@g"], "'mail' is no stream"),
        (vec!["group", "create", "orders"], "is not a name"),
        (vec!["group", "create", "orders@g"], "already"),
        (vec!["group", "show", "orders"], "is no group of a stream"),
        (vec!["group", "show", "orders@x"], "There is no group 'orders@x'"),
        (vec!["group", "list", "mail"], "'mail' is no stream"),
        (vec!["group", "members", "mail"], "is no group of a stream"),
        (vec!["group", "reset", "orders@g", "--to", "1000", "--yes"], "beyond the end"),
        (vec!["topic", "create", "a@b"], "is not a name"),
        (vec!["topic", "create", "s", "--kind", "stream", "--partitions", "0"], "1 to 256"),
        (vec!["topic", "set", "orders", "--partitions", "1"], "cannot be changed"),
        (vec!["topic", "create", "orders", "--kind", "stream", "--partitions", "1"], "already"),
        (vec!["group", "replay", "orders@g", "--from", "1000"], "beyond the end"),
        (vec!["group", "create", "orders@late", "--from", "1000"], "beyond the end"),
        (vec!["group", "forget-member", "orders@g", "a"], "is no group of a stream whose"),
        (vec!["topic", "delete", "orders", "--purge", "--yes"], "reads the stream 'orders'"),
    ] {
        let sentence = rowmq.refuse(&arguments);
        assert!(sentence.contains(says), "{arguments:?}: {sentence}");
    }
    for (setting, wrong, says) in [
        ("--retention", "0s", "a time is above zero"),
        ("--retention", "never", "or `none`"),
        ("--retention-size", "0", "a size is a number of bytes"),
    ] {
        let sentence = rowmq.run(&["topic", "set", "orders", setting, wrong]).refused(2);
        assert!(sentence.contains(says), "{setting} {wrong}: {sentence}");
    }
    assert_eq!(rowmq.json(&["topic", "show", "orders"])["partitions"], 2);
    rowmq.say(&["topic", "delete", "orders@g"]);
    let sentence = rowmq.refuse(&["topic", "delete", "orders"]);
    assert!(sentence.contains("still holds messages"), "{sentence}");
    let deleted = rowmq.json(&["topic", "delete", "orders", "--purge", "--yes"]);
    assert_eq!(deleted, json!({ "topic": "orders", "purged": 10 }));
    let mut conn = database.connect().await;
    let rows = store::topic::all(&mut conn).await.expect("read");
    assert_eq!(rows.len(), 1);
}
