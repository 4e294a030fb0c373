//! Dead letters, from a handler that fails to messages that run again.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::{NewMessage, enqueue, enqueue_all};
use rowmq_test::TestQueue;

use crate::audit::newest;
use crate::run::{Rowmq, cells};

/// Refuses messages that begin with `bad`, or all.
struct Picky {
    everything: bool,
    handled: Mutex<BTreeMap<String, String>>,
}

impl Picky {
    fn new(everything: bool) -> Self {
        Self { everything, handled: Mutex::default() }
    }
}

impl RawHandler for Picky {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let body = String::from_utf8_lossy(&context.delivery.body).into_owned();
        if self.everything || body.starts_with("bad") {
            return Err(HandlerError::dead(format!("cannot read \u{1b}[31m{body}")));
        }
        let id = context.delivery.msg_id.to_string();
        self.handled.lock().expect("not poisoned").insert(id, body);
        Ok(())
    }
}

#[tokio::test]
async fn dead_letters_are_listed_shown_and_put_back() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    let rowmq = Rowmq::on(queue.database());
    assert!(rowmq.say(&["dead", "list", "mail"]).contains("no such dead letter"));
    let messages = ["bad 1", "good", "bad 2"].map(|body| {
        NewMessage::new(body).with_key("k").with_biz_id("order-7").with_header("trace", "t1")
    });
    enqueue_all(&mut queue.connect().await, &topic.name, &messages).await.expect("enqueued");
    assert_eq!(queue.drain_raw("mail", &Picky::new(false)).await.dead, 2);

    let table = rowmq.say(&["dead", "list", "mail"]);
    assert!(!table.contains('\u{1b}'), "nothing steers the terminal: {table}");
    let ids: Vec<_> = cells(&table).iter().map(|row| row[0].to_owned()).collect();
    assert_eq!(ids, [messages[0].msg_id.to_string(), messages[2].msg_id.to_string()]);
    let some = rowmq.json(&["dead", "list", "mail", "--error", "bad 2"]);
    assert_eq!(some.as_array().map(Vec::len), Some(1));
    assert_eq!(some[0]["msg_id"], ids[1]);
    assert_eq!(some[0]["cause"], "handler");
    assert_eq!(some[0]["failures"], 1);
    let none = ["--older-than", "1h"];
    assert_eq!(rowmq.json(&[&["dead", "list", "mail"][..], &none].concat()), serde_json::json!([]));
    let recent =
        rowmq.json(&["dead", "list", "mail", "--within", "1h", "--cause", "handler", "-n", "1"]);
    assert_eq!(recent[0]["msg_id"], ids[0]);

    let shown = rowmq.json(&["dead", "show", "mail", &ids[0]]);
    assert_eq!(shown["body"], "bad 1");
    assert_eq!(shown["headers"]["trace"], "t1");
    assert_eq!((&shown["key"], &shown["biz_id"]), (&"k".into(), &"order-7".into()));
    let shown = rowmq.say(&["dead", "show", "mail", &ids[1]]);
    assert!(
        shown.contains("cannot read \\u{1b}[31mbad 2") && shown.contains("trace=t1"),
        "{shown}"
    );

    assert_eq!(rowmq.json(&["dead", "redrive", "mail", &ids[1]])["messages"], 1);
    queue.assert_enqueued("mail", 1).await;
    let sentence = rowmq.say(&["dead", "purge", "mail", "--error", "bad 1", "--yes"]);
    assert_eq!(sentence, "1 dead letter of 'mail' is deleted.\n");
    assert_eq!(queue.depth("mail").await.dead, 0);
}

/// Fails with the delivery's number as its error.
struct Failing;

impl RawHandler for Failing {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        Err(HandlerError::retry(format!("failure\u{1b} {}", context.delivery.delivery_no)))
    }
}

#[tokio::test]
async fn a_dead_letter_is_shown_with_each_of_its_failed_runs() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    let rowmq = Rowmq::on(queue.database());
    let retry = "ladder 1m 2h";
    rowmq.say(&["topic", "set", "mail", "--max-attempts", "3", "--retry", retry]);
    let message = NewMessage::new("x");
    enqueue(&mut queue.connect().await, &topic.name, &message).await.expect("sent");
    for (failures, wait) in [(1, 60), (2, 7200), (3, 0)] {
        let drained = queue.drain_raw("mail", &Failing).await;
        assert_eq!((drained.retried, drained.dead), if failures < 3 { (1, 0) } else { (0, 1) });
        queue.advance(Duration::from_secs(wait)).await;
    }
    let id = message.msg_id.to_string();
    let shown = rowmq.json(&["dead", "show", "mail", &id]);
    let history = shown["history"].as_array().expect("an array");
    let told: Vec<_> = history.iter().map(|run| (&run["delivery_no"], &run["error"])).collect();
    let error = |n: i32| serde_json::json!(format!("failure\u{1b} {n}"));
    assert_eq!(told, [(&1.into(), &error(1)), (&2.into(), &error(2)), (&3.into(), &error(3))]);
    assert!(history.iter().all(|run| run["worker"].as_u64() > Some(0) && run["at"].is_string()));
    let table = rowmq.say(&["dead", "show", "mail", &id]);
    let (_, table) = table.split_once("\n\n").expect("two tables");
    let rows = cells(table);
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!((rows[2][0], rows[2][3]), ("3", "failure\\u{1b} 3"), "{table}");
}

#[tokio::test]
async fn dead_letters_run_again_with_their_bodies() {
    const N: usize = 300;
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    let messages: Vec<_> = (0..N).map(|n| NewMessage::new(n.to_string())).collect();
    enqueue_all(&mut queue.connect().await, &topic.name, &messages).await.expect("enqueued");
    assert_eq!(queue.drain_raw("mail", &Picky::new(true)).await.dead, N);
    let redriven = Rowmq::on(queue.database()).json(&["dead", "redrive", "mail", "--all"]);
    assert_eq!(redriven["messages"], N);
    let entry = newest(&Rowmq::on(queue.database()));
    assert_eq!((entry.0.as_str(), entry.2, entry.3.as_str()), ("redrive", N as u64, "all"));
    let handler = Picky::new(false);
    assert_eq!(queue.drain_raw("mail", &handler).await.acked, N);
    let sent: BTreeMap<_, _> = (messages.iter().enumerate())
        .map(|(n, message)| (message.msg_id.to_string(), n.to_string()))
        .collect();
    assert_eq!(*handler.handled.lock().expect("not poisoned"), sent);
}

#[tokio::test]
async fn what_is_not_said_is_not_meant() {
    let queue = TestQueue::new().await;
    queue.topic("mail").await;
    let rowmq = Rowmq::on(queue.database());
    for command in ["redrive", "purge"] {
        for arguments in
            [&[][..], &["--all", "--error", "x"], &["--cause", "boredom"], &["--within", "0s"]]
        {
            let all = [&["dead", command, "mail"], arguments].concat();
            assert_eq!(rowmq.run(&all).code, Some(2), "{all:?}");
        }
    }
    let sentence = rowmq.refuse(&["dead", "purge", "mail", "--all"]);
    assert!(sentence.contains("add --yes"), "{sentence}");
    let id = "019fc0de-0000-7000-8000-000000000001";
    let sentence = rowmq.refuse(&["dead", "show", "mail", id]);
    assert!(
        sentence.contains("no dead letter 019fc0de") && sentence.contains("rowmq dead list mail"),
        "{sentence}"
    );
    assert!(rowmq.refuse(&["dead", "list", "nowhere"]).contains("nowhere"));
    rowmq.say(&["topic", "pause", "mail", "--enqueue"]);
    assert!(rowmq.refuse(&["dead", "redrive", "mail", "--all"]).contains("takes no messages now"));
}
