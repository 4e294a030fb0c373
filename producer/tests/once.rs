//! Messages that must not be stored twice: given ids, and unique keys.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::setup::{stored, stored_ids};
use futures_util::future::join_all;
use rowmq_core::model::TopicSettings;
use rowmq_core::{Enqueued, MsgId, NewMessage, Topic, Unique};
use rowmq_producer::{Producer, ProducerOptions, Sent};
use rowmq_test::TestDatabase;
use rowmq_test::proxy::FaultProxy;

async fn topic(database: &TestDatabase) -> Topic {
    let window = Some(Duration::from_secs(3600));
    let settings = TopicSettings { dedupe_window: window, ..TopicSettings::default() };
    database.topic_with("mail", &settings).await
}

fn enqueued(sent: &[Sent]) -> Vec<Enqueued> {
    sent.iter().map(|one| one.enqueued().expect("on the server")).collect()
}

#[tokio::test]
async fn what_is_there_already_is_told_and_the_rest_of_its_batch_is_stored() {
    let database = TestDatabase::new().await;
    let topic = topic(&database).await.name;
    let options = ProducerOptions::default();
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let (known, new) = (MsgId::new(), MsgId::new());
    let given = |id| NewMessage::new("given").with_msg_id(id);
    let unique = || NewMessage::new("unique").with_unique(Unique::until_done("k"));
    assert_eq!(producer.send(&topic, given(known)).await.expect("sent").msg_id, known);
    let holder = producer.send(&topic, unique()).await.expect("sent").msg_id;
    let plain = NewMessage::new("plain");
    let batch = vec![given(known), plain.clone(), unique(), given(new)];
    let sent = producer.send_all(&topic, batch.clone()).await.expect("sent");
    let expected = [
        Enqueued::Duplicate(known),
        Enqueued::Stored(plain.msg_id),
        Enqueued::Duplicate(holder),
        Enqueued::Stored(new),
    ];
    assert_eq!(enqueued(&sent), expected);
    let mut receipts = Vec::new();
    for message in batch {
        receipts.push(producer.send_async(&topic, message).await.expect("accepted"));
    }
    let told: Vec<_> = join_all(receipts).await.into_iter().map(|it| it.expect("sent")).collect();
    let told = enqueued(&told);
    assert_eq!(told[2], Enqueued::Duplicate(holder));
    assert_eq!(told.iter().filter(|told| told.is_stored()).count(), 1, "the plain one");
    assert_eq!(producer.send(&topic, unique()).await.expect("sent").msg_id, holder);
    producer.close().await;
    assert_eq!(stored(&database, "mail").await.len(), 5);
}

/// A batch is not a duplicate of itself: its outcome is known from before its commit, and the lane
/// shows whether the commit happened.
#[tokio::test]
async fn a_batch_whose_reply_is_lost_at_any_statement_is_stored_once_and_its_outcome_known() {
    for statement in [
        "BEGIN",
        "INSERT INTO queue_dedupe",
        "INSERT INTO queue_unique",
        "INSERT INTO queue_message (topic_id, priority, id",
        "COMMIT",
    ] {
        for arrives in [true, false] {
            let database = TestDatabase::new().await;
            let topic = topic(&database).await.name;
            let proxy = FaultProxy::start(database.url()).await;
            let options = ProducerOptions::default();
            let url = proxy.url(database.url());
            let producer = Producer::connect(url, options).await.expect("connected");
            let known = MsgId::new();
            let given = |id| NewMessage::new("m").with_msg_id(id);
            producer.send(&topic, given(known)).await.expect("sent");
            if arrives {
                proxy.drop_reply_after(statement);
            } else {
                proxy.cut_before(statement);
            }
            let unique = NewMessage::new("m").with_unique(Unique::until_done("k"));
            let batch = vec![given(MsgId::new()), given(known), unique];
            let ids: Vec<_> = batch.iter().map(|message| message.msg_id).collect();
            let sent = producer.send_all(&topic, batch).await.expect("sent");
            proxy.sprung().await;
            let expected =
                [Enqueued::Stored(ids[0]), Enqueued::Duplicate(known), Enqueued::Stored(ids[2])];
            assert_eq!(enqueued(&sent), expected, "{statement} {arrives}");
            producer.close().await;
            let stored = stored_ids(&database, "mail").await;
            assert_eq!(stored, [known, ids[0], ids[2]], "{statement} {arrives}");
        }
    }
}

#[tokio::test]
async fn lines_with_ids_and_keys_may_be_sent_again() {
    let database = TestDatabase::new().await;
    topic(&database).await;
    let lines = [
        r#"{"body":"a","msg_id":"0199f5a0-0000-7000-8000-000000000001"}"#,
        r#"{"body":"b","unique":"k","unique_for":"1h"}"#,
        r#"{"body":"c","unique":"d","on_conflict":"debounce","max_wait":"1h","deliver":"10m"}"#,
        r#"{"body":"d"}"#,
    ];
    for expected in ["sent 4  resent 0", "sent 4 (3 of them duplicates)  resent 0"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rowmq-producer"))
            .args(["send", "mail", "--ndjson", "-"])
            .env("ROWMQ_URL", database.url().expose())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        input.write_all(lines.join("\n").as_bytes()).expect("it reads");
        drop(input);
        let ended = child.wait_with_output().expect("it ends");
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(out.starts_with(expected), "{out}");
    }
    assert_eq!(stored(&database, "mail").await.len(), 4, "a, b and twice d");
}
