//! Streams have no priorities: they would take a producer's messages out of their order.

use rowmq_core::model::{DeadCause, Settlement, TopicSettings};
use rowmq_core::store::topic;
use rowmq_core::{Error, NewMessage, Priority, TopicName, Unique, enqueue, enqueue_to};

use super::Stream;
use crate::scene::{all, bodies, claim_n, failure};

#[tokio::test]
async fn a_stream_takes_no_message_with_a_priority() {
    let mut stream = Stream::new(1).await;
    let urgent = NewMessage::new("urgent").with_priority(Priority::FIRST);
    let later = urgent.clone().with_delay(std::time::Duration::from_secs(60));
    for message in [urgent, later] {
        let refused = enqueue(&mut stream.conn, &stream.topic.name, &message).await.unwrap_err();
        assert!(matches!(refused, Error::NoPriorities { .. }), "{refused}");
        assert!(refused.to_string().contains("leave the priority out"), "{refused}");
    }
    let call = |priority| format!(r#"CALL queue_send('s', 'b', '{{"priority":{priority}}}')"#);
    let refused = failure(&mut stream.conn, &call("0")).await;
    assert!(format!("{refused:?}").contains("a stream takes no priorities"), "{refused:?}");
    for priority in ["5", "null"] {
        stream.sql(&call(priority)).await;
    }
    assert_eq!(stream.sequence().await, 2);
}

#[tokio::test]
async fn dead_letters_of_any_priority_join_a_stream_in_the_order_of_their_deaths() {
    let mut stream = Stream::new(1).await;
    let name = TopicName::new("q").unwrap();
    let settings =
        TopicSettings { dead_letter_topic: Some(stream.topic.name.clone()), ..Default::default() };
    topic::create(&mut stream.conn, &name, &settings).await.unwrap();
    let queue = topic::existing(&mut stream.conn, &name).await.unwrap();
    let worker = stream.worker().await;
    let dead = Settlement::DeadLetter { cause: DeadCause::Handler, error: "no".to_owned() };
    for (body, priority) in [("a", Priority::LAST), ("b", Priority::FIRST), ("c", Priority::LAST)] {
        let message = NewMessage::new(body).with_priority(priority);
        enqueue_to(&mut stream.conn, &queue, &[message]).await.unwrap();
        let got = claim_n(&worker, queue.id, 1).await;
        worker.settle(all(&got, &dead)).await.unwrap();
    }
    assert_eq!(stream.sequence().await, 3);
    assert_eq!(bodies(&stream.logged().await), ["a", "b", "c"]);
}

#[tokio::test]
async fn what_ends_with_a_message_is_not_for_streams() {
    let mut stream = Stream::new(1).await;
    let unique = NewMessage::new("m").with_unique(Unique::until_done("k"));
    let refused = enqueue(&mut stream.conn, &stream.topic.name, &unique).await.unwrap_err();
    assert!(refused.to_string().contains("never done"), "{refused}");
    let day = std::time::Duration::from_secs(86_400);
    let settings = TopicSettings { searchable: Some(day), ..TopicSettings::default() };
    let refused = topic::set(&mut stream.conn, &stream.topic.name, &settings).await.unwrap_err();
    assert!(refused.to_string().contains("looked up"), "{refused}");
}
