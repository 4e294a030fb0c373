//! Bodies that are compressed, or encoded by a codec of the user's own.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use diesel_async::SimpleAsyncConnection;
use rowmq_consumer::{Receiver, TopicOptions};
use rowmq_core::codec::{CONTENT_ENCODING, Codec, Codecs, Encoding, Gzip, Owner};
use rowmq_core::handler::{BatchHandler, Context, Handler, HandlerError, RawTxHandler, TxHandler};
use rowmq_core::model::{BoxError, TopicSettings};
use rowmq_core::store::inspect;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic};
use rowmq_producer::{Producer, ProducerOptions};
use rowmq_test::TestDatabase;

use crate::handling::running::{Running, With, dead, drained, one_at_a_time, patient, quick, send};

/// Reverses the body, as a cipher without a key.
struct Turned;

impl Codec for Turned {
    fn name(&self) -> &str {
        "turned"
    }

    fn encode(&self, body: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(Some(body.iter().rev().copied().collect()))
    }

    fn decode(&self, body: &[u8], _: usize) -> Result<Vec<u8>, BoxError> {
        Ok(body.iter().rev().copied().collect())
    }
}

fn both() -> Encoding {
    Encoding::none().then(Gzip::default()).then(Turned)
}

fn codecs() -> Codecs {
    Codecs::default().with(Turned)
}

fn text(what: &str) -> String {
    format!("{what}, ").repeat(200)
}

/// Creates a topic that accepts only small bodies, and sends these to it, encoded.
async fn sent(database: &TestDatabase, bodies: &[String]) -> Topic {
    let topic = database.topic_with("mail", &TopicSettings { body_limit: 500, ..quick() }).await;
    let options = ProducerOptions { encoding: both(), ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let bodies = bodies.iter().map(|body| NewMessage::json(body).expect("JSON"));
    let mut bodies: Vec<_> = bodies.map(|one| one.with_header("tenant", "acme")).collect();
    let (last, last_but_one) = (bodies.pop(), bodies.pop());
    producer.send_all(&topic.name, bodies).await.expect("stored");
    producer.send(&topic.name, last_but_one.expect("one")).await.expect("stored");
    let receipt = producer.send_async(&topic.name, last.expect("one")).await.expect("accepted");
    receipt.await.expect("stored");
    producer.close().await;
    topic
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn see(&self, context: &Context, body: String) {
        let names: Vec<_> = context.delivery.headers.0.keys().collect();
        assert_eq!(names, ["tenant"], "what is decoded is not called encoded");
        self.0.lock().expect("unpoisoned").push(body);
    }

    fn sorted(&self) -> Vec<String> {
        let mut seen = std::mem::take(&mut *self.0.lock().expect("unpoisoned"));
        seen.sort();
        seen
    }
}

impl Handler for Seen {
    type Payload = String;

    async fn handle(&self, context: &Context, body: String) -> Result<(), HandlerError> {
        self.see(context, body);
        Ok(())
    }
}

impl BatchHandler for Seen {
    type Payload = String;

    async fn handle(&self, batch: Vec<(Context, String)>) -> Vec<Result<(), HandlerError>> {
        let see = |(context, body): (Context, String)| {
            self.see(&context, body);
            Ok(())
        };
        batch.into_iter().map(see).collect()
    }
}

impl TxHandler for Seen {
    type Payload = String;

    async fn handle(
        &self,
        context: &Context,
        body: String,
        _: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        self.see(context, body);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_of_any_kind_gets_what_the_sender_had_and_the_database_what_is_encoded() {
    let bodies = ["a", "b", "c", "d"].map(text);
    for kind in 0..3 {
        let database = TestDatabase::new().await;
        let topic = sent(&database, &bodies).await;
        let peeked = inspect::peek(&mut database.connect().await, topic.id, 10).await;
        for stored in peeked.expect("peeked") {
            assert_eq!(stored.headers.get(CONTENT_ENCODING), Some("gzip, turned"));
            assert!(stored.body.len() < 200 && stored.body.ends_with(&[0x8b, 0x1f]), "turned gzip");
        }
        let (seen, name) = (Seen::default(), topic.name.clone());
        let running = Running::start(&database, |consumer| {
            let (consumer, options) = (consumer.codecs(codecs()), TopicOptions::default());
            match kind {
                0 => consumer.handler(name, options, seen.clone()),
                1 => consumer.batch_handler(name, options, 3, seen.clone()),
                _ => consumer.tx_handler(name, options, seen.clone()),
            }
        });
        drained(&database, &topic).await;
        running.stop().await;
        assert_eq!(seen.sorted(), bodies, "kind {kind}");
        assert!(dead(&database, &topic).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_hands_out_decoded_bodies_and_dead_letters_the_others() {
    let database = TestDatabase::new().await;
    let topic = sent(&database, &["a", "b"].map(text)).await;
    let strange = NewMessage::new("x").with_header(CONTENT_ENCODING, "vault");
    send(&database, &topic, &[strange, NewMessage::new("\"plain\"")]).await;
    let options = patient();
    let receiver = Receiver::connect(database.url().clone(), topic.name.clone(), 10, options).await;
    let mut receiver = receiver.expect("connected").with_codecs(codecs());
    for expected in [text("a"), text("b"), "plain".to_owned()] {
        let received = receiver.receive().await.expect("received");
        assert_eq!(received.json::<String>().expect("JSON"), expected);
        received.ack().await.expect("acked");
    }
    drained(&database, &topic).await;
    receiver.close().await.expect("closed");
    assert_eq!(dead(&database, &topic).await.len(), 1);
}

/// The decoded bytes of each batch.
#[derive(Clone, Default)]
struct Weighed(Arc<Mutex<Vec<usize>>>);

impl BatchHandler for Weighed {
    type Payload = String;

    async fn handle(&self, batch: Vec<(Context, String)>) -> Vec<Result<(), HandlerError>> {
        let bytes = batch.iter().map(|(context, _)| context.delivery.body.len()).sum();
        self.0.lock().expect("unpoisoned").push(bytes);
        batch.iter().map(|_| Ok(())).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_decodes_to_no_more_than_one_body_may_and_the_rest_comes_in_another() {
    let database = TestDatabase::new().await;
    let topic = sent(&database, &["a", "b", "c", "d", "e"].map(text)).await;
    let limit = NonZeroUsize::new(1_300).expect("not zero");
    let weighed = Weighed::default();
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.codecs(codecs().with_limit(limit));
        let (name, options) = (topic.name.clone(), one_at_a_time());
        consumer.batch_handler(name, options, 5, weighed.clone())
    });
    drained(&database, &topic).await;
    running.stop().await;
    let batches = std::mem::take(&mut *weighed.0.lock().expect("unpoisoned"));
    assert!(batches.iter().all(|bytes| *bytes <= 1_300), "{batches:?}");
    assert_eq!(batches.iter().sum::<usize>(), 5 * 602, "{batches:?}");
    assert!(dead(&database, &topic).await.is_empty());
}

/// None of them is handled, retried or lost, and none holds back the others of its batch.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_decoded_is_dead_lettered_at_once_with_its_body_and_the_reason() {
    let encoded = |body: Vec<u8>, encoding: Encoding| {
        NewMessage::new(body).encoded(&encoding).expect("encoded")
    };
    let gzip = || Encoding::none().then(Gzip::default());
    let messages = [
        NewMessage::new("plain"),
        NewMessage::new("no gzip").with_header(CONTENT_ENCODING, "gzip"),
        encoded(text("unknown").into_bytes(), Encoding::none().then(Turned)),
        encoded(vec![0; 1_000_001], gzip()),
        encoded(vec![b'x'; 1_000_000], gzip()),
    ];
    for transactional in [false, true] {
        let database = TestDatabase::new().await;
        let topic = database.topic_with("mail", &quick()).await;
        send(&database, &topic, &messages).await;
        let limit = NonZeroUsize::new(1_000_000).expect("not zero");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sizes = Arc::clone(&seen);
        let see = move |context: Context| {
            sizes.lock().expect("unpoisoned").push(context.delivery.body.len());
            async { Ok(()) }
        };
        let running = Running::start(&database, |consumer| {
            let consumer = consumer.codecs(Codecs::default().with_limit(limit));
            let (name, options) = (topic.name.clone(), one_at_a_time());
            if transactional {
                consumer.raw_tx_handler(name, options, InTransaction(see))
            } else {
                consumer.raw_handler(name, options, With(see))
            }
        });
        drained(&database, &topic).await;
        running.stop().await;
        assert_eq!(*seen.lock().expect("unpoisoned"), [5, 1_000_000]);
        let dead = dead(&database, &topic).await;
        assert_eq!(dead.len(), 3, "{dead:?}");
        let bodies = [&messages[1], &messages[2], &messages[3]]
            .map(|message| String::from_utf8_lossy(&message.body).into_owned());
        assert!(bodies.iter().all(|body| dead.iter().any(|(kept, _)| kept == body)), "{dead:?}");
        for part in [
            "The codec 'gzip' cannot decode the body",
            "encoded by 'turned', which this program does not know (it knows gzip)",
            "has more than 1000000 bytes once 'gzip' has decoded it",
        ] {
            assert!(dead.iter().any(|(_, error)| error.contains(part)), "{part}: {dead:?}");
        }
    }
}

/// A handler built from a closure, in a transaction that it does not need.
struct InTransaction<F>(F);

impl<F, R> RawTxHandler for InTransaction<F>
where
    F: Fn(Context) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), HandlerError>> + Send,
{
    async fn handle(
        &self,
        context: &Context,
        _: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        (self.0)(context.clone()).await
    }
}

/// Puts the owner before the body, as a seal that anyone can forge.
struct Sealed;

impl Codec for Sealed {
    fn name(&self) -> &str {
        "sealed"
    }

    fn encode(&self, _: &[u8]) -> Result<Option<Vec<u8>>, BoxError> {
        Err("it seals for a message".into())
    }

    fn decode(&self, _: &[u8], _: usize) -> Result<Vec<u8>, BoxError> {
        Err("it opens for a message".into())
    }

    fn encode_of(&self, body: &[u8], of: &Owner<'_>) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(Some([&of.to_bytes(), body].concat()))
    }

    fn decode_of(&self, body: &[u8], of: &Owner<'_>, _: usize) -> Result<Vec<u8>, BoxError> {
        let opened = body.strip_prefix(&of.to_bytes()[..]);
        Ok(opened.ok_or("it was sealed for another message")?.to_vec())
    }
}

/// A producer that may enqueue may send in clear, and a user that may write rows may move a body.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_requires_a_seal_handles_no_body_without_it_nor_one_of_another_message() {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("payments", &quick()).await;
    let encoding = Encoding::none().then(Gzip::default()).then(Sealed);
    let options = ProducerOptions { encoding, ..ProducerOptions::default() };
    let producer = Producer::connect(database.url().clone(), options).await.expect("connected");
    let sealed = ["right", "moved"].map(NewMessage::new).to_vec();
    producer.send_all(&topic.name, sealed).await.expect("stored");
    producer.close().await;
    let claimed = NewMessage::new("said to be sealed").with_header(CONTENT_ENCODING, "sealed");
    send(&database, &topic, &[NewMessage::new("in clear"), claimed]).await;
    let mut conn = database.connect().await;
    let move_it = "UPDATE queue_message SET msg_id = UNHEX(REPLACE(UUID(), '-', '')) \
         WHERE topic_id > 0 AND CONVERT(body USING latin1) LIKE '%moved'";
    conn.batch_execute(move_it).await.expect("moved");
    let (seen, name) = (Arc::new(Mutex::new(Vec::new())), topic.name.clone());
    let handled = Arc::clone(&seen);
    let running = Running::start(&database, |consumer| {
        let codecs = Codecs::default().with(Sealed).require("sealed");
        let handler = With(move |context: Context| {
            handled.lock().expect("unpoisoned").push(context.delivery.body.clone());
            async { Ok(()) }
        });
        consumer.codecs(codecs).raw_handler(name, TopicOptions::default(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(*seen.lock().expect("unpoisoned"), [b"right"]);
    let errors: Vec<_> = dead(&database, &topic).await.into_iter().map(|(_, why)| why).collect();
    let says = |part: &str| errors.iter().filter(|error| error.contains(part)).count();
    assert_eq!(says("not encoded by 'sealed'"), 1, "{errors:?}");
    assert_eq!(says("sealed for another message"), 2, "{errors:?}");
}

/// The memory of all handlers at once, at most.
#[tokio::test(flavor = "multi_thread")]
async fn decoded_bodies_have_one_budget_however_many_handlers_there_are() {
    const BODY: usize = 100 << 10;
    let database = TestDatabase::new().await;
    let topic = database.topic_with("mail", &quick()).await;
    let encoding = Encoding::none().then(Gzip::default());
    let message = |_| NewMessage::new(vec![7; BODY]).encoded(&encoding).expect("encoded");
    send(&database, &topic, &(0..30).map(message).collect::<Vec<_>>()).await;
    let (held, most) = (Arc::new(Mutex::new(0_usize)), Arc::new(Mutex::new(0_usize)));
    let (now, peak, name) = (Arc::clone(&held), Arc::clone(&most), topic.name.clone());
    let running = Running::start(&database, |consumer| {
        let bytes = |n| NonZeroUsize::new(n).expect("some");
        let codecs = Codecs::default().with_limit(bytes(BODY)).with_budget(bytes(3 * BODY));
        let handler = With(move |_| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                {
                    let mut now = now.lock().expect("unpoisoned");
                    *now += BODY;
                    let mut peak = peak.lock().expect("unpoisoned");
                    *peak = (*peak).max(*now);
                }
                // Other handlers begin in between, if the budget allows.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                *now.lock().expect("unpoisoned") -= BODY;
                Ok(())
            }
        });
        let options = TopicOptions { concurrency: 16, ..TopicOptions::default() };
        consumer.codecs(codecs).raw_handler(name, options, handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let most = *most.lock().expect("unpoisoned");
    assert!((1..=3 * BODY).contains(&most), "{most} bytes at once");
}
