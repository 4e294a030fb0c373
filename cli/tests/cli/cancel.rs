//! `rowmq cancel`.

use std::time::Duration;

use rowmq_core::worker::{Worker, WorkerOptions};
use rowmq_core::{MsgId, NewMessage, enqueue};
use rowmq_test::TestQueue;

use crate::run::Rowmq;

#[tokio::test]
async fn a_message_is_cancelled_whatever_it_is_doing() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("rides").await;
    let rowmq = Rowmq::on(queue.database());
    let claimed = NewMessage::new("claimed");
    enqueue(&mut queue.connect().await, &topic.name, &claimed).await.expect("enqueued");
    let options = WorkerOptions::new(queue.database().url().clone(), "deaf");
    let worker = Worker::start(options).await.expect("a worker");
    assert_eq!(worker.claim(topic.id, 1).await.expect("a claim").deliveries.len(), 1);
    let other = NewMessage::new("claimed, too");
    let at_once = other.msg_id;
    enqueue(&mut queue.connect().await, &topic.name, &other).await.expect("enqueued");
    assert_eq!(worker.claim(topic.id, 1).await.expect("a claim").deliveries[0].msg_id, at_once);
    let (ready, later) =
        (NewMessage::new("ready"), NewMessage::new("later").with_delay(Duration::from_secs(600)));
    for message in [&ready, &later] {
        enqueue(&mut queue.connect().await, &topic.name, message).await.expect("enqueued");
    }
    let cancel =
        |id: MsgId, grace: &str| rowmq.say(&["cancel", "rides", &id.to_string(), "--grace", grace]);
    assert!(cancel(later.msg_id, "300ms").contains("had not come to its time"));
    assert!(cancel(ready.msg_id, "300ms").contains("no handler had begun"));
    assert!(cancel(claimed.msg_id, "300ms").contains("its claim is taken away"));
    assert!(cancel(at_once, "0s").contains("its claim is taken away"));
    let depth = queue.depth("rides").await;
    assert_eq!((depth.unsettled, depth.scheduled), (0, 0));
    let found = rowmq.json(&["find", "rides", &claimed.msg_id.to_string()]);
    let first = &found["found"][0];
    assert_eq!(
        (&first["state"], &first["error"]),
        (&"discarded".into(), &"it was cancelled".into())
    );
    for (entry, id) in [at_once, claimed.msg_id, ready.msg_id, later.msg_id].iter().enumerate() {
        let told = &rowmq.json(&["audit"])[entry];
        let told = (&told["action"], &told["messages"], &told["detail"]);
        assert_eq!(told, (&"cancel".into(), &1.into(), &id.to_string().into()), "one entry each");
    }
    worker.stop().await.expect("stopped");
}

#[tokio::test]
async fn what_cannot_be_cancelled_is_one_sentence() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("rides").await;
    let rowmq = Rowmq::on(queue.database());
    let nobody = MsgId::new().to_string();
    let gone = NewMessage::new("x");
    enqueue(&mut queue.connect().await, &topic.name, &gone).await.expect("enqueued");
    let gone = gone.msg_id.to_string();
    rowmq.say(&["cancel", "rides", &gone]);
    rowmq.say(&["topic", "create", "log", "--kind", "stream"]);
    let logged = rowmq.say(&["enqueue", "log", "x"]);
    for (arguments, part) in [
        (["cancel", "rides", &nobody], "There is no message"),
        (["cancel", "rides", &gone], "it is discarded"),
        (["cancel", "nowhere", &nobody], "no topic 'nowhere'"),
        (["cancel", "log", logged.trim()], "in the log of the stream"),
    ] {
        let said = rowmq.refuse(&arguments);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
}
