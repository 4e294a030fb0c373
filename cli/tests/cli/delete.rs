use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::model::{DeadCause, OnDone, Settlement};
use rowmq_core::store::inspect::{self, MessageTable};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{NewMessage, Topic, enqueue_to, store};
use rowmq_test::TestDatabase;
use serde_json::json;

use crate::run::Rowmq;

/// Creates messages in every table: ready and claimed, scheduled, dead, archived.
async fn filled(database: &TestDatabase, ready: usize) -> (Topic, Worker) {
    let topic = database.topic("mail").await;
    let mut conn = database.connect().await;
    let messages: Vec<_> = (0..ready + 4).map(|_| NewMessage::new("x")).collect();
    enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    let options = WorkerOptions::new(database.url().clone(), "test");
    let worker = Worker::start(options).await.expect("started");
    let claimed = worker.claim(topic.id, 4).await.expect("claimed").deliveries;
    let later = Settlement::Retry { delay: Duration::from_secs(3600), error: "x".to_owned() };
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "x".to_owned() };
    let kept = OnDone::Keep(Duration::from_secs(3600));
    let settled = vec![
        Settled::new(&claimed[0], later, OnDone::Delete),
        Settled::new(&claimed[1], dead, OnDone::Delete),
        Settled::new(&claimed[2], Settlement::Ack, kept),
    ];
    worker.settle(settled).await.expect("settled");
    (topic, worker)
}

#[tokio::test]
async fn a_topic_that_holds_messages_is_deleted_only_with_all_of_them() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let (topic, worker) = filled(&database, 2500).await;
    let sentence = rowmq.refuse(&["topic", "delete", "mail"]);
    assert!(
        sentence.contains("still holds messages") && sentence.contains("--purge"),
        "{sentence}"
    );
    let sentence = rowmq.refuse(&["topic", "delete", "mail", "--purge"]);
    assert!(sentence.contains("--yes"), "{sentence}");
    assert_eq!(rowmq.json(&["topic", "show", "mail"])["access"], "read-write");

    let deleted = rowmq.json(&["topic", "delete", "mail", "--purge", "--yes"]);
    assert_eq!(deleted, json!({ "topic": "mail", "purged": 2504 }));
    let mut conn = database.connect().await;
    for table in MessageTable::ALL {
        let left = inspect::purge_some(&mut conn, table, topic.id, 10).await.expect("purged");
        assert_eq!(left, 0, "{table:?}");
    }
    let found = store::topic::find(&mut conn, &topic.name).await.expect("read");
    assert_eq!(found, None);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn purging_one_topic_leaves_the_others_alone() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    let (_, worker) = filled(&database, 1).await;
    rowmq.say(&["topic", "create", "other"]);
    rowmq.say(&["enqueue", "other", "x"]);
    rowmq.say(&["topic", "delete", "mail", "--purge", "--yes"]);
    assert_eq!(rowmq.json(&["stats"])[0]["topic"], "other");
    assert_eq!(rowmq.json(&["stats", "other"])[0]["unsettled"], 1);
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn an_empty_topic_is_deleted_without_asking() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    let sentence = rowmq.say(&["topic", "delete", "mail"]);
    assert_eq!(sentence, "The topic 'mail' is deleted, and 0 messages with it.\n");
    assert!(rowmq.refuse(&["topic", "show", "mail"]).contains("There is no topic 'mail'"));
}

/// Otherwise its COMMIT would succeed, and no consumer would ever read the message.
#[tokio::test]
async fn a_topic_that_an_open_transaction_has_written_to_is_not_deleted() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    for arguments in
        [&["topic", "delete", "mail"][..], &["topic", "delete", "mail", "--purge", "--yes"]]
    {
        let mut conn = database.connect().await;
        conn.batch_execute("BEGIN; CALL queue_send('mail', 'x', NULL)").await.expect("enqueued");
        let sentence = rowmq.refuse(arguments);
        assert!(sentence.contains("An open transaction"), "{sentence}");
        assert_eq!(rowmq.json(&["topic", "show", "mail"])["access"], "read-write");
        conn.batch_execute("COMMIT").await.expect("committed");
        assert_eq!(rowmq.json(&["stats", "mail"])[0]["unsettled"], 1);
        rowmq.say(&["purge", "mail", "--yes"]);
    }
    rowmq.say(&["topic", "delete", "mail"]);
}
