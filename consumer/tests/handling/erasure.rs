//! Consumers of a stream from whose log a message was erased before they read it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rowmq_consumer::{Receiver, TopicOptions};
use rowmq_core::erasure::erase;
use rowmq_core::handler::Context;
use rowmq_core::model::{Action, Actor, Change, OffsetSpec, TopicSettings};
use rowmq_core::stream::broadcast::{broadcast_settings, create_broadcast};
use rowmq_core::stream::group::{create_group, create_stream, group_settings};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::{AsyncMysqlConnection, MsgId, NewMessage, Topic, TopicName, store};
use rowmq_test::{TestDatabase, until};

use crate::handling::running::{Running, With, patient, send};

async fn existing(conn: &mut AsyncMysqlConnection, name: &TopicName) -> Topic {
    store::topic::existing(conn, name).await.expect("it is there")
}

async fn erased(database: &TestDatabase, stream: &Topic, id: MsgId) {
    let mut session = database.session().await;
    let actor = Actor { name: "ada".to_owned(), origin: "here".to_owned() };
    let target = stream.name.to_string();
    let by = Change { actor, action: Action::Erase, target, detail: Some(id.to_string()) };
    let erasure = erase(&mut session, stream, id, &by).await.expect("erased");
    assert_eq!(erasure.erased, 1);
}

#[tokio::test]
async fn handlers_members_and_receivers_do_not_see_a_message_that_was_erased_before() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let stream = TopicName::new("orders").expect("a name");
    create_stream(&mut conn, &stream, 1, &TopicSettings::default()).await.expect("made");
    let [mail, pull, cache] =
        ["mail", "pull", "cache"].map(|name| TopicName::of_group(&stream, name).expect("a name"));
    for group in [&mail, &pull] {
        let made =
            create_group(&mut conn, group, false, OffsetSpec::Earliest, &group_settings()).await;
        made.expect("made");
    }
    let settings = broadcast_settings();
    let made = create_broadcast(&mut conn, &cache, OffsetSpec::Earliest, &settings).await;
    made.expect("made");
    let stream = existing(&mut conn, &stream).await;
    let messages: Vec<_> = (0..5).map(|n| NewMessage::new(n.to_string())).collect();
    send(&database, &stream, &messages).await;
    sequence(&mut conn, stream.id, 100, Contention::Wait).await.expect("sequenced");
    erased(&database, &stream, messages[2].msg_id).await;
    let expected: BTreeSet<String> = ["0", "1", "3", "4"].map(str::to_owned).into();

    for group in [mail, cache] {
        let seen: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let handle = move |context: Context| {
            let text = String::from_utf8_lossy(&context.delivery.body).into_owned();
            noted.lock().expect("a lock").insert(text);
            async { Ok(()) }
        };
        let topic = existing(&mut conn, &group).await;
        let running = Running::start(&database, |builder| {
            builder.raw_handler(group, TopicOptions::default(), With(handle))
        });
        until("the last one is handled", async || seen.lock().expect("a lock").contains("4")).await;
        running.stop().await;
        assert_eq!(*seen.lock().expect("a lock"), expected, "{}", topic.name);
        let dead = store::inspect::depth(&mut conn, topic.id).await.expect("a depth").dead;
        assert_eq!(dead, 0, "{}", topic.name);
    }

    let mut receiver =
        Receiver::connect(database.url().clone(), pull, 10, patient()).await.expect("there");
    let mut pulled = BTreeSet::new();
    while pulled.len() < expected.len() {
        let received = receiver.receive().await.expect("a message");
        pulled.insert(String::from_utf8_lossy(&received.body).into_owned());
        received.ack().await.expect("acked");
    }
    assert_eq!(pulled, expected);
    receiver.close().await.expect("closed");
}
