//! The trace of one message, for a user and for a script.

use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{MsgId, NewMessage, TopicName, enqueue, store};
use rowmq_test::TestQueue;
use serde_json::{Value, json};

use crate::run::{Rowmq, cells};

/// Refuses everything.
struct Never;

impl RawHandler for Never {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Err(HandlerError::dead("no \u{1b}[31mway"))
    }
}

async fn sent(queue: &TestQueue, topic: &str) -> MsgId {
    let message = NewMessage::new("m").with_key("k").with_header("tenant", "acme");
    queue.enqueue(topic, &message).await;
    message.msg_id
}

#[tokio::test]
async fn a_message_of_a_queue_is_told_from_its_sender_to_its_end() {
    let queue = TestQueue::new().await;
    let rowmq = Rowmq::on(queue.database());
    rowmq.say(&["topic", "create", "orders", "--trace", "all"]);
    assert_eq!(rowmq.json(&["topic", "show", "orders"])["trace"], "all");
    let id = sent(&queue, "orders").await;
    assert_eq!(queue.drain_raw("orders", &Never).await.dead, 1);
    let id = id.to_string();
    let table = rowmq.say(&["trace", &id]);
    assert!(!table.contains('\u{1b}'), "nothing steers the terminal: {table}");
    let rows = cells(&table);
    let events: Vec<_> = rows[..3].iter().map(|row| row[1]).collect();
    assert_eq!(events, ["enqueued", "claimed", "settled"], "{table}");
    assert!(rows[2].contains(&"dead_letter") && table.contains(" ms "), "{table}");
    assert!(table.contains("dead (handler)") && !table.contains("not recorded"), "{table}");
    let told = rowmq.json(&["trace", "orders", &id]);
    assert_eq!((&told["topic"], &told["sampled"]), (&json!("orders"), &json!(true)));
    let events = told["events"].as_array().expect("events");
    assert_eq!(events.len(), 3);
    assert_eq!(
        (&events[2]["outcome"], &events[2]["delivery_no"]),
        (&json!("dead_letter"), &json!(1))
    );
    assert!(events[1]["worker"].is_u64() && events[1]["client"].is_string());
    assert_eq!(told["found"][0]["state"], "dead");
}

#[tokio::test]
async fn without_a_trace_what_is_known_is_shown_and_how_to_know_more() {
    let queue = TestQueue::new().await;
    let rowmq = Rowmq::on(queue.database());
    rowmq.say(&["topic", "create", "orders"]);
    let id = sent(&queue, "orders").await.to_string();
    let said = rowmq.say(&["trace", &id]);
    assert!(said.contains("Nothing is recorded") && said.contains("rowmq trace TOPIC"), "{said}");
    let said = rowmq.say(&["trace", "orders", &id]);
    assert!(said.contains("ready") && said.contains("topic set orders --trace all"), "{said}");
    assert_eq!(queue.drain_raw("orders", &Never).await.dead, 1);
    let said = rowmq.say(&["trace", &id]);
    assert!(said.contains("dead (handler)") && said.contains("no \\u{1b}[31mway"), "{said}");
    rowmq.say(&["topic", "set", "orders", "--trace", "0.0001%"]);
    let said = rowmq.say(&["trace", &id]);
    assert!(said.contains("traces 0.0001% of its messages"), "{said}");
    let refused = rowmq.run(&["topic", "set", "orders", "--trace", "often"]).refused(2);
    assert!(refused.contains("1%"), "{refused}");
    rowmq.run(&["trace", "7"]).refused(2);
    let refused = rowmq.refuse(&["trace", "none", &id]);
    assert!(refused.contains("There is no topic 'none'"), "{refused}");
}

#[tokio::test]
async fn a_message_of_a_stream_is_found_in_its_log_and_told_with_each_groups_part() {
    let queue = TestQueue::new().await;
    let rowmq = Rowmq::on(queue.database());
    let create = ["topic", "create", "orders", "--kind", "stream", "--partitions", "2"];
    rowmq.say(&[&create[..], &["--trace", "all"]].concat());
    rowmq.say(&["group", "create", "orders@mail"]);
    let refused = rowmq.refuse(&["topic", "set", "orders@mail", "--trace", "off"]);
    assert!(refused.contains("set it for the stream"), "{refused}");
    let refused = rowmq.refuse(&["group", "create", "orders@bill", "--trace", "1%"]);
    assert!(refused.contains("set it for the stream"), "{refused}");
    let mut conn = queue.connect().await;
    let name = TopicName::new("orders").expect("a name");
    let stream = store::topic::existing(&mut conn, &name).await.expect("it is there");
    let message = NewMessage::new("m").with_key("k").with_header("tenant", "acme");
    enqueue(&mut conn, &name, &message).await.expect("enqueued");
    sequence(&mut conn, stream.id, 10, Contention::Wait).await.expect("sequenced");
    let id = message.msg_id.to_string();
    let found = rowmq.json(&["find", "orders", &id]);
    let place = &found["found"][0];
    assert_eq!((&place["state"], &place["offset"]), (&json!("logged"), &json!(0)));
    let at = format!("{}:0", place["partition"]);
    for way in [["--offset", &at], ["--header", "tenant=acme"], ["--key", "k"], ["--within", "1h"]]
    {
        let found = rowmq.json(&[&["find", "orders"], &way[..]].concat());
        assert_eq!(found["found"][0]["msg_id"], Value::from(id.clone()), "{way:?}");
    }
    let said = rowmq.say(&["find", "orders", "--header", "tenant=other"]);
    assert!(said.contains("No such message") && said.contains("Searched the log: 1"), "{said}");
    let said = rowmq.say(&["trace", &id]);
    for part in ["enqueued", "sequenced", &format!("orders {at}"), "has not come so far"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    rowmq.run(&["find", "orders", "--offset", "7"]).refused(2);
    rowmq.run(&["find", "orders", "--header", "tenant"]).refused(2);
    rowmq.say(&["topic", "create", "mail"]);
    let refused = rowmq.refuse(&["find", "mail", "--offset", "0:0"]);
    assert!(refused.contains("'mail' is no stream"), "{refused}");
}
