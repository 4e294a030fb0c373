//! Finding a message, by a user and by a script.

use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::{NewMessage, enqueue_all};
use rowmq_test::TestQueue;

use crate::run::{Rowmq, cells};

/// Refuses messages that begin with `bad`.
struct Picky;

impl RawHandler for Picky {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        let body = String::from_utf8_lossy(&context.delivery.body).into_owned();
        if body.starts_with("bad") {
            return Err(HandlerError::dead(format!("cannot read \u{1b}[31m{body}")));
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_person_learns_what_became_of_an_order() {
    let queue = TestQueue::new().await;
    let rowmq = Rowmq::on(queue.database());
    rowmq.say(&["topic", "create", "orders", "--searchable", "on"]);
    let topic = rowmq.json(&["topic", "show", "orders"]);
    assert_eq!(topic["searchable"], "30days");
    let messages = [("bad", "4711"), ("good", "4712")]
        .map(|(body, order)| NewMessage::new(body).with_biz_id(order).with_key("k"));
    let name = rowmq_core::TopicName::new("orders").expect("a name");
    enqueue_all(&mut queue.connect().await, &name, &messages).await.expect("enqueued");
    let table = rowmq.say(&["find", "orders", "--biz-id", "4712"]);
    assert_eq!(cells(&table)[0][1], "ready");
    assert_eq!(queue.drain_raw("orders", &Picky).await.dead, 1);

    let table = rowmq.say(&["find", "orders", "--biz-id", "4711", "--body"]);
    assert!(!table.contains('\u{1b}'), "nothing steers the terminal: {table}");
    assert!(table.contains("dead (handler)") && table.contains("cannot read"), "{table}");
    assert!(table.contains("DELIVERY") && table.contains("all there are"), "{table}");
    let found = rowmq.json(&["find", "orders", "--key", "k", "--body"]);
    assert_eq!(found["next"], serde_json::Value::Null);
    assert_eq!(found["searched"][0]["searched"], "lookup");
    let [dead, gone] = [&found["found"][0], &found["found"][1]];
    assert_eq!(
        (&dead["state"], &dead["body"], &dead["history"][0]["delivery_no"]),
        (&"dead".into(), &"bad".into(), &1.into())
    );
    assert_eq!((&gone["state"], &gone["body"]), (&"gone".into(), &serde_json::Value::Null));
    let table = rowmq.say(&["find", "orders", "--biz-id", "4712"]);
    assert!(table.contains("gone") && table.contains("--keep-done"), "{table}");
    let page = rowmq.json(&["find", "orders", "--within", "1h", "-n", "1"]);
    let next = page["next"].as_str().expect("there is more");
    let rest = rowmq.json(&["find", "orders", "--within", "1h", "--after", next]);
    assert_eq!(
        (&rest["found"][0]["biz_id"], &rest["next"]),
        (&"4712".into(), &serde_json::Value::Null)
    );
    assert!(rowmq.say(&["find", "orders", "--biz-id", "0"]).contains("No such message"));
}

#[tokio::test]
async fn a_topic_that_is_not_searchable_says_how_far_it_was_searched() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("mail").await;
    let rowmq = Rowmq::on(queue.database());
    let messages = [NewMessage::new("m").with_key("k"), NewMessage::new("m")];
    enqueue_all(&mut queue.connect().await, &topic.name, &messages).await.expect("enqueued");
    let table = rowmq.say(&["find", "mail", "--key", "k"]);
    assert!(table.contains("all 2 rows of the table of ready messages"), "{table}");
    let id = messages[1].msg_id.to_string();
    assert_eq!(rowmq.json(&["find", "mail", &id])["found"][0]["state"], "ready");
    let refused = rowmq.run(&["find", "mail", "--after", "nowhere"]).refused(2);
    assert!(refused.contains("a page token is"), "{refused}");
    rowmq.run(&["find", "mail", "7"]).refused(2);
    let refused = rowmq.run(&["topic", "set", "mail", "--searchable", "soon"]).refused(2);
    assert!(refused.contains("on, off or a time"), "{refused}");
}
