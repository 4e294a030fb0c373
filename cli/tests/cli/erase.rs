//! `rowmq erase`.

use rowmq_core::account::Account;
use rowmq_core::model::{DeadCause, OnDone, Settlement};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{MsgId, NewMessage, TopicName, enqueue, store};
use rowmq_test::{PATIENCE, TestDatabase, greeted};
use serde_json::json;

use crate::audit::newest;
use crate::run::{Rowmq, cells};

/// Enqueues a message into the stream `orders` and gives it its offset.
async fn logged(database: &TestDatabase) -> MsgId {
    let mut conn = database.connect().await;
    let name = TopicName::new("orders").expect("a name");
    let message = NewMessage::new("secret").with_header("name", "Ada").with_key("k");
    enqueue(&mut conn, &name, &message).await.expect("enqueued");
    let stream = store::topic::existing(&mut conn, &name).await.expect("it is there");
    sequence(&mut conn, stream.id, 100, Contention::Wait).await.expect("sequenced");
    message.msg_id
}

/// Has a group give up the oldest message that it has not read.
async fn bury(database: &TestDatabase, group: &str) {
    let name = TopicName::new(group).expect("a name");
    let topic = store::topic::existing(&mut database.connect().await, &name).await.expect("there");
    let mut options = WorkerOptions::new(database.url().clone(), "test");
    options.lease = PATIENCE;
    let worker = greeted(async || Worker::start(options.clone()).await).await.expect("started");
    let group = topic.group().expect("a group");
    let claimed = worker.claim_range(group, 1).await.expect("claimed").deliveries;
    let end = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    let dead = Settled::new(&claimed[0], end, OnDone::Delete);
    worker.settle(vec![dead]).await.expect("settled");
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn an_operator_erases_a_message_and_is_shown_what_removes_its_copies() {
    let database = TestDatabase::new().await;
    let own = Rowmq::on(&database);
    own.say(&["topic", "create", "orders", "--kind", "stream"]);
    for group in ["orders@bill", "orders@mail"] {
        own.say(&["group", "create", group]);
    }
    let id = logged(&database).await.to_string();
    for group in ["orders@bill", "orders@mail"] {
        bury(&database, group).await;
    }
    let rowmq = Rowmq::at(&database.account_of(Account::Operator).await);
    let sentence = rowmq.refuse(&["erase", "orders", &id]);
    assert!(sentence.contains("cannot be undone") && sentence.contains("--yes"), "{sentence}");
    let said = rowmq.say(&["erase", "orders", &id, "--yes"]);
    let expected =
        format!("The message {id} of 'orders' is erased, at 0:0. There are copies of it:");
    assert_eq!(said.lines().next(), Some(expected.as_str()));
    let (_, table) = said.split_once("\n\n").expect("a table");
    let removes = ["bill", "mail"].map(|group| format!("rowmq dead purge orders@{group} {id}"));
    let rows = cells(table);
    assert_eq!(rows[0], ["orders@bill", "dead", &removes[0]]);
    assert_eq!(rows[1], ["orders@mail", "dead", &removes[1]]);
    let (action, target, messages, detail) = newest(&rowmq);
    assert_eq!((action.as_str(), target.as_str(), messages), ("erase", "orders", 1));
    assert_eq!(detail, id);
    let found = rowmq.json(&["find", "orders", "--offset", "0:0", "--body"]);
    let found = &found["found"][0];
    assert_eq!((&found["msg_id"], &found["key"]), (&json!(id), &json!("k")));
    assert_eq!((&found["headers"], &found["body_bytes"]), (&json!({}), &json!(0)));

    for command in removes {
        let words: Vec<_> = command.split(' ').skip(1).chain(["--yes"]).collect();
        rowmq.say(&words);
    }
    let said = rowmq.say(&["erase", "orders", &id, "--yes"]);
    let expected = format!(
        "The message {id} of 'orders' was erased before, at 0:0. No copy of it was found.\n"
    );
    assert_eq!(said, expected);
    assert_eq!(newest(&rowmq).0, "purge-dead", "nothing was changed");
}

#[tokio::test]
async fn what_cannot_be_erased_is_one_sentence() {
    let database = TestDatabase::new().await;
    let rowmq = Rowmq::on(&database);
    rowmq.say(&["topic", "create", "mail"]);
    rowmq.say(&["topic", "create", "orders", "--kind", "stream"]);
    rowmq.say(&["group", "create", "orders@mail"]);
    let unknown = MsgId::new().to_string();
    let early = rowmq.say(&["enqueue", "orders", "x"]);
    for (arguments, part) in [
        (["erase", "mail", &unknown, "--yes"], "'mail' is a queue"),
        (["erase", "orders@mail", &unknown, "--yes"], "`rowmq erase orders "),
        (["erase", "none", &unknown, "--yes"], "There is no topic 'none'"),
        (["erase", "orders", &unknown, "--yes"], "has no message"),
        (["erase", "orders", early.trim(), "--yes"], "has no offset yet"),
    ] {
        let said = rowmq.refuse(&arguments);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    assert_eq!(rowmq.run(&["erase", "orders", "7"]).code, Some(2));
}
