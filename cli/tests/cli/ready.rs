//! Commands on ready messages: tail, move, purge, wait.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rowmq_core::model::{OnDone, Settlement};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, TopicName, enqueue_all, enqueue_to};
use rowmq_test::TestDatabase;
use serde_json::{Value, json};

use crate::run::Rowmq;

async fn filled(database: &TestDatabase, n: usize) -> rowmq_core::Topic {
    let topic = database.topic("mail").await;
    let messages: Vec<_> = (0..n).map(|n| NewMessage::new(n.to_string())).collect();
    enqueue_to(&mut database.connect().await, &topic, &messages).await.expect("enqueued");
    topic
}

async fn worker(database: &TestDatabase) -> Worker {
    let options = WorkerOptions::new(database.url().clone(), "test");
    Worker::start(options).await.expect("started")
}

#[tokio::test]
async fn purge_asks_and_deletes_what_is_ready() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, 700).await;
    let sentence = rowmq.refuse(&["purge", "mail"]);
    assert!(sentence.contains("ready messages of 'mail'") && sentence.contains("--yes"));
    let purged = rowmq.json(&["purge", "mail", "--yes"]);
    assert_eq!(purged, json!({ "topic": "mail", "messages": 700 }));
    assert_eq!(rowmq.say(&["purge", "mail", "--yes"]), "0 ready messages of 'mail' are deleted.\n");
}

#[tokio::test]
async fn streams_and_groups_are_refused_with_what_to_do_instead() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    rowmq.say(&["group", "create", "orders@a"]);
    database.topic("mail").await;
    for command in [
        &["purge", "orders"][..],
        &["move", "orders", "mail"],
        &["drain", "orders"],
        &["export", "orders"],
    ] {
        let sentence = rowmq.refuse(command);
        assert!(sentence.contains("topic set orders --retention"), "{sentence}");
    }
    let sentence = rowmq.refuse(&["purge", "orders@a"]);
    assert!(sentence.contains("group reset orders@a"), "{sentence}");
    let sentence = rowmq.refuse(&["tail", "orders@a"]);
    assert!(sentence.contains("group show orders@a"), "{sentence}");
    let sentence = rowmq.refuse(&["move", "mail", "mail", "--yes"]);
    assert!(sentence.contains("name another topic"), "{sentence}");
}

#[tokio::test]
async fn move_takes_what_is_ready_to_the_other_topic() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, 3).await;
    database.topic("later").await;
    assert!(rowmq.refuse(&["move", "mail", "later"]).contains("--yes"));
    let moved = rowmq.json(&["move", "mail", "later", "--yes"]);
    assert_eq!(moved, json!({ "from": "mail", "to": "later", "messages": 3 }));
    let peeked = rowmq.json(&["peek", "later", "--body"]);
    assert_eq!([&peeked[0]["body"], &peeked[2]["body"]], [&json!("0"), &json!("2")]);
    rowmq.say(&["topic", "pause", "mail", "--enqueue"]);
    let sentence = rowmq.refuse(&["move", "later", "mail", "--yes"]);
    assert!(sentence.contains("rowmq topic"), "{sentence}");
}

#[tokio::test]
async fn drain_says_what_is_left_and_waits_until_nothing_is() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let topic = filled(&database, 2).await;
    let left = rowmq.run(&["drain", "mail", "--wait", "--timeout", "1ms", "--json"]);
    assert_eq!(left.code, Some(1));
    let left: Value = serde_json::from_str(&left.out).expect("JSON");
    assert_eq!((&left["drained"], &left["unsettled"]), (&json!(false), &json!(2)));
    let child = rowmq.command(&["drain", "mail", "--wait"]).spawn().expect("it starts");
    let worker = worker(&database).await;
    let claimed = worker.claim(topic.id, 2).await.expect("claimed").deliveries;
    let ack = |one| Settled::new(one, Settlement::Ack, OnDone::Delete);
    worker.settle(claimed.iter().map(ack).collect()).await.expect("settled");
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success());
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "The topic 'mail' is drained.\n");
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn tail_shows_what_comes_into_a_queue_and_into_a_stream() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    filled(&database, 1).await;
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    for topic in ["mail", "orders"] {
        let mut command = rowmq.command(&["tail", topic, "-n", "2", "--interval", "20ms"]);
        let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let name = TopicName::new(topic).expect("a name");
        let mut conn = database.connect().await;
        // It starts after the last message that exists when it is up: earlier messages are not
        // shown.
        let mut sent = 0;
        let ended = loop {
            enqueue_all(&mut conn, &name, &[NewMessage::new("new")]).await.expect("enqueued");
            if topic == "orders" {
                let stream =
                    rowmq_core::store::topic::existing(&mut conn, &name).await.expect("there");
                let wait = rowmq_core::stream::Contention::Wait;
                rowmq_core::stream::sequence(&mut conn, stream.id, 10, wait).await.expect("done");
            }
            sent += 1;
            if let Some(ended) = child.try_wait().expect("asked") {
                break ended;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        };
        assert!(ended.success() && sent >= 2);
        let mut line = String::new();
        while out.read_line(&mut line).expect("read") > 0 {
            let shown: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!((&shown["topic"], &shown["body"]), (&json!(topic), &json!("new")));
            line.clear();
        }
    }
}

#[tokio::test]
async fn top_shows_topics_groups_and_workers_once() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.refuse(&["top"]).contains("say --once"));
    let topic = filled(&database, 3).await;
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    rowmq.say(&["group", "create", "orders@a"]);
    let worker = worker(&database).await;
    worker.claim(topic.id, 1).await.expect("claimed");
    let top = rowmq.say(&["top", "--once", "--interval", "10ms"]);
    for words in ["3 topics, 1 groups, 1 workers, 1 messages claimed", "CHANGE", "orders@a", "0/s"]
    {
        assert!(top.contains(words), "{words} in {top}");
    }
    let json = rowmq.json(&["top", "--once", "--interval", "10ms"]);
    let mail = json["topics"].as_array().expect("a list").iter().find(|it| it["topic"] == "mail");
    assert_eq!(mail.expect("it is there")["change_per_second"], json!(0.0));
    assert_eq!(json["workers"][0]["claims"], 1);
    worker.stop().await.expect("stopped");
}
