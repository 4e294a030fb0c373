//! Middleware around handlers of every kind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::RunQueryDsl;
use rowmq_consumer::{Middleware, Next, TopicOptions};
use rowmq_core::handler::{
    Context, HandlerError, RawBatchHandler, RawHandler, RawTxHandler, RunOutcome,
};
use rowmq_core::store::inspect;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic, TopicName, enqueue};
use rowmq_test::TestDatabase;

use crate::handling::running::{Running, With, dead, drained, one_at_a_time, quick, send};

/// What happened, in order.
type Notes = Arc<Mutex<Vec<String>>>;

fn note(notes: &Notes, text: impl Into<String>) {
    notes.lock().expect("unpoisoned").push(text.into());
}

fn body(context: &Context) -> String {
    String::from_utf8(context.delivery.body.clone()).expect("text")
}

/// Records what goes in and what comes out.
struct Noting(&'static str, Notes);

impl Middleware for Noting {
    async fn around(&self, run: &[Context], next: Next<'_>) -> Vec<RunOutcome> {
        let Self(name, notes) = self;
        let bodies: Vec<_> = run.iter().map(body).collect();
        note(notes, format!("{name} in: {}", bodies.join(" ")));
        let outcomes = next.run().await;
        let words: Vec<_> = outcomes.iter().map(RunOutcome::word).collect();
        note(notes, format!("{name} out: {}", words.join(" ")));
        outcomes
    }
}

/// Blocks messages with the body "stranger"; does what other bodies say.
struct Guard;

impl Middleware for Guard {
    async fn around(&self, run: &[Context], next: Next<'_>) -> Vec<RunOutcome> {
        let says = |text: &str| run.iter().any(|context| body(context) == text);
        if says("panic before") {
            panic!("on purpose, before");
        }
        let mut outcomes = next
            .run_if(|context| match body(context).as_str() {
                "stranger" => Err(HandlerError::dead("not allowed")),
                "late" if context.delivery.delivery_no.0 == 1 => {
                    Err(HandlerError::Snooze(Duration::from_millis(1)))
                }
                _ => Ok(()),
            })
            .await;
        if says("panic after") {
            panic!("on purpose, after");
        }
        if says("fail after") {
            outcomes = vec![RunOutcome::Returned(Err(HandlerError::dead("too late")))];
        }
        if says("lose") {
            outcomes.clear();
        }
        outcomes
    }
}

/// Records its message, and does what the body says.
struct Noted(Notes);

impl Noted {
    fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        note(&self.0, format!("handler: {}", body(context)));
        match body(context).as_str() {
            "fail once" if context.delivery.failures == 0 => Err(HandlerError::retry("no")),
            "panic" => panic!("on purpose"),
            _ => Ok(()),
        }
    }
}

impl RawHandler for Noted {
    async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
        self.handle(context)
    }
}

impl RawBatchHandler for Noted {
    async fn handle(&self, batch: &[Context]) -> Vec<Result<(), HandlerError>> {
        batch.iter().map(|context| self.handle(context)).collect()
    }
}

/// Enqueues the body to "effects" in the transaction.
impl RawTxHandler for Noted {
    async fn handle(
        &self,
        context: &Context,
        tx: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        let effects = TopicName::new("effects")?;
        enqueue(tx, &effects, &NewMessage::new(context.delivery.body.clone())).await?;
        if body(context) == "end" {
            diesel::sql_query("COMMIT").execute(tx).await?;
        }
        self.handle(context)
    }
}

async fn stage(bodies: &[&str]) -> (TestDatabase, Topic, Notes) {
    let database = TestDatabase::new().await;
    let topic = database.topic_with("work", &quick()).await;
    let messages: Vec<_> = bodies.iter().map(|body| NewMessage::new(*body)).collect();
    send(&database, &topic, &messages).await;
    (database, topic, Notes::default())
}

/// Returns the bodies of a topic's messages, in order.
async fn bodies(database: &TestDatabase, topic: &Topic) -> Vec<String> {
    let peeked = inspect::peek(&mut database.connect().await, topic.id, 100).await.expect("peeked");
    peeked.into_iter().map(|one| String::from_utf8(one.body).expect("text")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn middleware_is_around_a_handler_in_the_order_in_which_it_was_registered() {
    let (database, topic, notes) = stage(&["a", "fail once", "panic"]).await;
    let (outer, inner) = (Noting("outer", notes.clone()), Noting("inner", notes.clone()));
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.middleware(outer).middleware(inner);
        consumer.raw_handler(topic.name.clone(), one_at_a_time(), Noted(notes.clone()))
    });
    drained(&database, &topic).await;
    running.stop().await;
    let notes = notes.lock().expect("unpoisoned");
    let run = |body: &str, word: &str| {
        [
            format!("outer in: {body}"),
            format!("inner in: {body}"),
            format!("handler: {body}"),
            format!("inner out: {word}"),
            format!("outer out: {word}"),
        ]
    };
    let first = [run("a", "ok"), run("fail once", "error"), run("panic", "panic")].concat();
    assert_eq!(notes[..15], first);
    let of = |line: &str| notes.iter().filter(|note| *note == line).count();
    assert_eq!((of("handler: fail once"), of("handler: panic")), (2, 3), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_middleware_may_decide_instead_of_the_handler_also_for_a_part_of_a_batch() {
    let (database, topic, notes) = stage(&["a", "stranger", "late", "b"]).await;
    let noting = Noting("outer", notes.clone());
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.middleware(noting).middleware(Guard);
        let (name, handler) = (topic.name.clone(), Noted(notes.clone()));
        consumer.raw_batch_handler(name, one_at_a_time(), 4, handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(dead(&database, &topic).await, [("stranger".to_owned(), "not allowed".to_owned())]);
    let notes = notes.lock().expect("unpoisoned");
    let mut handled: Vec<_> = notes.iter().filter_map(|it| it.strip_prefix("handler: ")).collect();
    handled.sort_unstable();
    assert_eq!(handled, ["a", "b", "late"], "{notes:?}");
}

/// Like a handler's, it fails the run: for every message of a batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_a_middleware_and_an_outcome_that_is_missing_are_failures() {
    let (database, topic, notes) = stage(&["panic before", "panic after", "lose", "a"]).await;
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.middleware(Noting("outer", notes.clone())).middleware(Guard);
        consumer.raw_handler(topic.name.clone(), one_at_a_time(), Noted(notes.clone()))
    });
    drained(&database, &topic).await;
    running.stop().await;
    let dead = dead(&database, &topic).await;
    let errors: Vec<_> = dead.iter().map(|(_, error)| error.as_str()).collect();
    assert_eq!(
        errors,
        [
            "the handler panicked: a middleware gave no outcome of this message",
            "the handler panicked: on purpose, after",
            "the handler panicked: on purpose, before",
        ]
    );
    let notes = notes.lock().expect("unpoisoned");
    let of = |line: &str| notes.iter().filter(|note| *note == line).count();
    assert_eq!((of("outer out: panic"), of("outer out: ok")), (9, 1), "{notes:?}");
}

/// Whatever a middleware returns after the commit: the effect and the ack are there together, once.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_transactional_handler_has_committed_no_middleware_takes_back() {
    let all = ["a", "fail once", "stranger", "late", "fail after", "panic after", "lose", "end"];
    let (database, topic, notes) = stage(&all).await;
    let effects = database.topic("effects").await;
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.middleware(Noting("outer", notes.clone())).middleware(Guard);
        let (name, handler) = (topic.name.clone(), Noted(notes.clone()));
        consumer.raw_tx_handler(name, TopicOptions::default(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    let mut done = bodies(&database, &effects).await;
    done.sort_unstable();
    let once = ["a", "end", "fail after", "fail once", "late", "lose", "panic after"];
    assert_eq!(done, once, "each effect once, and none of what was not let through");
    let dead = dead(&database, &topic).await;
    let letters: Vec<_> = dead.iter().map(|(body, _)| body.as_str()).collect();
    assert_eq!(letters, ["end", "stranger"], "{dead:?}");
}

/// Drops a transactional run half-way, as no middleware should.
struct Impatient(Notes);

impl Middleware for Impatient {
    async fn around(&self, run: &[Context], next: Next<'_>) -> Vec<RunOutcome> {
        if run.iter().all(|context| context.delivery.delivery_no.0 > 1) {
            return next.run().await;
        }
        let begun = async {
            while self.0.lock().expect("unpoisoned").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = next.run() => panic!("it does not come back"),
            () = begun => vec![RunOutcome::Returned(Ok(()))],
        }
    }
}

/// An unknown outcome does not lose the message.
#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_run_that_a_middleware_drops_is_looked_after() {
    struct Slow(Notes);
    impl RawTxHandler for Slow {
        async fn handle(
            &self,
            context: &Context,
            tx: &mut AsyncMysqlConnection,
        ) -> Result<(), HandlerError> {
            let effects = TopicName::new("effects")?;
            enqueue(tx, &effects, &NewMessage::new(context.delivery.body.clone())).await?;
            note(&self.0, "begun");
            if context.delivery.delivery_no.0 == 1 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }
    let (database, topic, notes) = stage(&["a"]).await;
    let effects = database.topic("effects").await;
    let running = Running::start(&database, |consumer| {
        let consumer = consumer.middleware(Impatient(notes.clone()));
        consumer.raw_tx_handler(topic.name.clone(), TopicOptions::default(), Slow(notes.clone()))
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(bodies(&database, &effects).await, ["a"]);
    assert_eq!(notes.lock().expect("unpoisoned").len(), 2, "begun twice, committed once");
}

/// A `tracing` span or a task-local around the run applies to the handler.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_middleware_sets_for_its_task_the_handler_sees() {
    tokio::task_local!(static TENANT: String);
    struct Scoped;
    impl Middleware for Scoped {
        async fn around(&self, run: &[Context], next: Next<'_>) -> Vec<RunOutcome> {
            TENANT.scope(format!("tenant of {}", body(&run[0])), next.run()).await
        }
    }
    let (database, topic, notes) = stage(&["a"]).await;
    let seen = notes.clone();
    let running = Running::start(&database, |consumer| {
        let handler = With(move |_| {
            let seen = seen.clone();
            async move {
                note(&seen, TENANT.get());
                Ok(())
            }
        });
        consumer.middleware(Scoped).raw_handler(topic.name.clone(), one_at_a_time(), handler)
    });
    drained(&database, &topic).await;
    running.stop().await;
    assert_eq!(*notes.lock().expect("unpoisoned"), ["tenant of a"]);
}
