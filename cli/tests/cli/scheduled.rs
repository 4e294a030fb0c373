//! Messages that are not due yet.

use std::time::Duration;

use rowmq_core::{MsgId, NewMessage, enqueue};
use rowmq_test::TestQueue;

use crate::run::{Rowmq, cells};

#[tokio::test]
async fn a_message_for_later_is_listed_rescheduled_and_cancelled() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("rides").await;
    let rowmq = Rowmq::on(queue.database());
    assert!(rowmq.say(&["scheduled", "list", "rides"]).contains("No message of 'rides' waits"));
    let hours = ["--deliver", "48h", "--expires", "3d"];
    let id = rowmq.say(&[&["enqueue", "rides", "rate", "--biz-id", "r-1"][..], &hours].concat());
    let id = id.trim();
    let late = NewMessage::new("late").with_delay(Duration::from_secs(1_000_000));
    enqueue(&mut queue.connect().await, &topic.name, &late).await.expect("enqueued");

    let ids = || {
        let table = rowmq.say(&["scheduled", "list", "rides"]);
        cells(&table).iter().map(|row| row[0].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(), [id, &late.msg_id.to_string()]);
    let listed = rowmq.json(&["scheduled", "list", "rides", "-n", "1"]);
    assert_eq!((&listed[0]["biz_id"], &listed[0]["failures"]), (&"r-1".into(), &0.into()));

    let moment = "2999-12-24T18:00:00Z";
    rowmq.say(&["scheduled", "reschedule", "rides", id, "--deliver", moment]);
    assert_eq!(ids(), [&late.msg_id.to_string(), id]);
    assert!(rowmq.say(&["cancel", "rides", id]).contains("is cancelled"));
    assert_eq!(ids(), [late.msg_id.to_string()]);
}

#[tokio::test]
async fn what_makes_no_sense_is_one_sentence() {
    let queue = TestQueue::new().await;
    queue.topic("rides").await;
    let rowmq = Rowmq::on(queue.database());
    let id = MsgId::new().to_string();
    for (arguments, part) in [
        (vec!["enqueue", "rides", "x", "--deliver", "2001-01-01T00:00:00Z"], "has passed"),
        (vec!["enqueue", "rides", "x", "--expires", "2001-01-01T00:00:00Z"], "has passed"),
        (vec!["enqueue", "rides", "x", "--deliver", "2h", "--expires", "1h"], "not after"),
        (vec!["scheduled", "reschedule", "rides", &id, "--deliver", "1h"], "does not wait"),
        (vec!["scheduled", "list", "nowhere"], "no topic 'nowhere'"),
    ] {
        let said = rowmq.refuse(&arguments);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    let said = rowmq.run(&["enqueue", "rides", "x", "--deliver", "soon"]).refused(2);
    assert!(said.contains("'soon' is no moment"), "{said}");
    assert_eq!(queue.depth("rides").await.scheduled, 0);
}
