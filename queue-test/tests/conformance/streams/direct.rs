//! Batches appended to the log, past the inbox.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::model::Offset;
use rowmq_core::store::stream::{inbox, partition};
use rowmq_core::stream::{self, Appended};
use rowmq_core::{Delivery, NewMessage, enqueue};

use super::Stream;
use crate::scene::bodies;

impl Stream {
    async fn append(&mut self, messages: &[NewMessage]) -> Appended {
        let id = self.topic.id;
        let append = async |conn: &mut _| stream::append(conn, id, messages).await;
        transaction(&mut self.conn, "test", append).await.unwrap()
    }
}

fn messages(bodies: &[&str]) -> Vec<NewMessage> {
    bodies.iter().map(|body| NewMessage::new(*body)).collect()
}

/// History H15: a message that a producer enqueued in a transaction comes before those that it
/// appends afterwards.
#[tokio::test]
async fn what_was_committed_before_comes_before() {
    let mut stream = Stream::new(1).await;
    stream.enqueue(0..2).await;
    let appended = stream.append(&messages(&["a", "b"])).await;
    assert_eq!(appended, Appended { in_log: true, sequenced: 4 });
    stream.enqueue(2..3).await;
    let appended = stream.append(&messages(&["c"])).await;
    assert_eq!(appended, Appended { in_log: true, sequenced: 2 });
    assert_eq!(bodies(&stream.logged().await), ["0", "1", "a", "b", "2", "c"]);
    assert!(inbox::is_empty(&mut stream.conn, stream.topic.id).await.unwrap());
    let ends = partition::all(&mut stream.conn, stream.topic.id).await.unwrap();
    assert_eq!((ends[0].first, ends[0].next), (Offset(0), Offset(6)));
}

#[tokio::test]
async fn what_is_not_committed_leaves_no_gap() {
    let mut stream = Stream::new(1).await;
    let mut late = stream.db.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    enqueue(&mut late, &stream.topic.name, &NewMessage::new("late")).await.unwrap();
    stream.sql("BEGIN").await;
    let undone = stream::append(&mut stream.conn, stream.topic.id, &messages(&["undone"])).await;
    assert_eq!(undone.unwrap(), Appended { in_log: true, sequenced: 1 });
    stream.sql("ROLLBACK").await;
    stream.append(&messages(&["a"])).await;
    late.batch_execute("COMMIT").await.unwrap();
    stream.append(&messages(&["b"])).await;
    assert_eq!(bodies(&stream.logged().await), ["a", "late", "b"]);
    assert_eq!(stream.number("SELECT MAX(offset_no) FROM queue_log").await, 2);
}

#[tokio::test]
async fn nobody_waits_for_a_sequencer_and_nobody_empties_a_full_inbox() {
    let mut stream = Stream::new(2).await;
    let mut other = stream.db.connect().await;
    other.batch_execute("BEGIN").await.unwrap();
    assert_eq!(partition::lock(&mut other, stream.topic.id).await.unwrap().len(), 2);
    assert_eq!(stream.append(&messages(&["a"])).await, Appended::default());
    other.batch_execute("ROLLBACK").await.unwrap();
    stream.enqueue(0..1500).await;
    let appended = stream.append(&messages(&["a"])).await;
    assert_eq!(appended, Appended { in_log: false, sequenced: 1000 });
    assert_eq!(stream.number("SELECT SUM(messages) FROM queue_log").await, 1000);
}

#[tokio::test]
async fn a_message_has_all_that_it_had_and_its_key_the_same_partition() {
    let mut stream = Stream::new(7).await;
    let full = |n: usize| {
        let message = NewMessage::new(n.to_string()).with_key(format!("ключ {n}"));
        let message = message.with_biz_id("4711").with_header("a", "b");
        message.with_expiry(std::time::Duration::from_secs(3600))
    };
    let sent: Vec<_> = (0..50).map(full).collect();
    for message in &sent {
        enqueue(&mut stream.conn, &stream.topic.name, message).await.unwrap();
    }
    stream.sequence().await;
    let again: Vec<_> = (0..50).map(full).collect();
    assert!(stream.append(&again).await.in_log);
    let logged = stream.logged().await;
    for (old, new) in sent.iter().zip(&again) {
        let [old, new] = [old, new].map(|message| {
            logged.iter().find(|delivery| delivery.msg_id == message.msg_id).unwrap()
        });
        let has = |it: &Delivery| (it.key.clone(), it.biz_id.clone(), it.headers.clone());
        assert_eq!((has(old), &old.body), (has(new), &new.body));
        let ([from, to], life) = ([old, new].map(|it| it.position.unwrap()), new.expires_at);
        assert!(from.partition == to.partition && from.offset < to.offset);
        assert!((life.unwrap() - old.expires_at.unwrap()).num_seconds().abs() < 600);
        assert!(new.enqueued_at >= old.enqueued_at);
    }
    let group = stream.group("g", false).await;
    let worker = stream.worker().await;
    let mut ids: Vec<_> = sent.iter().chain(&again).map(|message| message.msg_id).collect();
    let claimed = super::claim_n(&worker, &group, 100).await;
    let mut found: Vec<_> = claimed.iter().map(|delivery| delivery.msg_id).collect();
    ids.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, ids);
}
