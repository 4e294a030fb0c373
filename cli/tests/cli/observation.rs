use std::process::Stdio;
use std::time::Duration;

use rowmq_core::model::{OnDone, Settlement};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, enqueue_to, store};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::TestDatabase;
use serde_json::json;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn workers_shows_who_holds_what_and_why_it_counts_as_alive() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.say(&["workers"]).contains("No worker is registered"));
    let mut conn = database.connect().await;
    enqueue_to(&mut conn, &topic, &[NewMessage::new("a")]).await.expect("enqueued");
    let options = WorkerOptions::new(database.url().clone(), "host 192.0.2.7 4711");
    let worker = Worker::start(options).await.expect("started");
    let claimed = worker.claim(topic.id, 1).await.expect("claimed");
    assert_eq!(claimed.deliveries.len(), 1);

    let workers = rowmq.json(&["workers"]);
    let row = store::worker::find(&mut conn, worker.id()).await.expect("read").expect("there");
    assert_eq!(workers[0]["id"], worker.id().0);
    let client = workers[0]["client_id"].as_str().expect("text");
    assert!(client.starts_with("host 192.0.2.7 4711"), "{client}");
    assert_eq!(workers[0]["claims"], 1);
    assert_eq!(workers[0]["work_conn_id"], row.conn.0);
    assert_eq!(workers[0]["life_conn_id"], row.life_conn.0);
    assert_eq!(workers[0]["alive_by"], json!(["lock", "list", "beat"]));
    let table = rowmq.say(&["workers"]);
    assert!(table.contains("host 192.0.2.7 4711") && table.contains("lock, list, beat"), "{table}");
    let peeked = rowmq.json(&["peek", "mail"]);
    assert_eq!(peeked[0]["conn_id"], row.conn.0);

    worker.stop().await.expect("stopped");
    assert_eq!(rowmq.json(&["workers"]), json!([]));
    let ended = rowmq.json(&["workers", "--all"]);
    assert_eq!(ended[0]["state"], "stopped");
    assert!(rowmq.say(&["workers", "--all"]).contains("stopped"));
}

#[tokio::test]
async fn stats_counts_what_waits_is_claimed_is_scheduled_and_is_dead() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    database.topic("quiet").await;
    let rowmq = Rowmq::on(&database);
    let mut conn = database.connect().await;
    let messages: Vec<_> = (0..5).map(|n| NewMessage::new(vec![n])).collect();
    enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    let options = WorkerOptions::new(database.url().clone(), "test");
    let worker = Worker::start(options).await.expect("started");
    let first = worker.claim(topic.id, 1).await.expect("claimed");
    let later = Settlement::Retry { delay: Duration::from_secs(3600), error: "x".to_owned() };
    let retry = Settled::new(&first.deliveries[0], later, OnDone::Delete);
    worker.settle(vec![retry]).await.expect("settled");
    worker.claim(topic.id, 2).await.expect("claimed");

    let stats = rowmq.json(&["stats"]);
    assert_eq!(stats[0]["topic"], "mail");
    let counts = ["unsettled", "claimed", "scheduled", "dead"].map(|name| stats[0][name].as_u64());
    assert_eq!(counts, [Some(4), Some(2), Some(1), Some(0)]);
    assert!(stats[0]["oldest_age_ms"].is_u64());
    assert_eq!(stats[1]["oldest_age_ms"], json!(null));
    let table = rowmq.say(&["stats", "quiet", "mail"]);
    let rows = cells(&table);
    assert_eq!(rows[0], ["quiet", "read-write", "0", "0", "0", "0", "-", "0", "-"]);
    assert_eq!(rows[1][..6], ["mail", "read-write", "4", "2", "1", "0"]);
    assert_eq!((&stats[0]["messages"], &stats[0]["bytes"]), (&json!(4), &json!(4)));
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn stats_shows_what_the_log_of_a_stream_keeps_and_ranks_by_bytes() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "a-queue"]);
    rowmq.say(&["enqueue", "a-queue", "12345"]);
    rowmq.say(&["topic", "create", "--kind", "stream", "orders"]);
    for body in ["0123456789", "0123456789", "0123456789"] {
        rowmq.say(&["enqueue", "orders", body]);
    }
    let driver = Driver::new(DriverOptions::new(database.url().clone(), "test"));
    assert!(driver.run_once().await.expect("swept"));
    let stats = rowmq.json(&["stats", "--largest"]);
    assert_eq!((&stats[0]["topic"], &stats[0]["bytes"]), (&json!("orders"), &json!(30)));
    assert_eq!((&stats[1]["topic"], &stats[1]["log"]), (&json!("a-queue"), &json!(null)));
    let log = &stats[0]["log"];
    assert_eq!((&log["messages"], &log["appended"]), (&json!(3), &json!(3)));
    assert!(log["oldest_age_ms"].is_u64());
    let table = rowmq.say(&["stats", "orders"]);
    assert!(table.contains("~30 bytes") && table.contains("3, "), "{table}");
}

#[tokio::test]
async fn janitor_shows_what_each_duty_did_last() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    assert!(rowmq.say(&["janitor"]).contains("No duty has run yet"));
    let mut conn = database.connect().await;
    for _ in 0..2 {
        let recorded = store::duty::record(&mut conn, "prune", "host 1", b"{\"rows\":3}").await;
        recorded.expect("recorded");
    }
    let table = rowmq.say(&["janitor"]);
    let rows = cells(&table);
    assert_eq!((rows[0][0], rows[0][2], rows[0][3]), ("prune", "2", "host 1"));
    assert!(table.contains("{\"rows\":3}") && rows[0][1].ends_with(" ago"), "{table}");
    let duties = rowmq.json(&["janitor"]);
    assert_eq!(duties[0]["report"]["rows"], 3);
    assert!(duties[0]["age_ms"].is_u64());
}

#[test]
fn completions_are_made_for_every_command() {
    let script = Rowmq::at_text("").say(&["completions", "bash"]);
    for command in ["migrate", "doctor", "topic", "enqueue", "peek", "workers", "stats", "janitor"]
    {
        assert!(script.contains(command), "{command}");
    }
}

#[test]
fn a_reader_that_has_had_enough_is_no_failure() {
    let mut command = Rowmq::at_text("").command(&["completions", "bash"]);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("rowmq starts");
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("rowmq ends");
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
}
