//! Groups of streams while the doorbell rings: consumers also find what it does not ring for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rowmq_consumer::{ConsumerOptions, TopicOptions};
use rowmq_core::handler::{Context, HandlerError};
use rowmq_core::model::{MemberName, OffsetSpec, RetryPolicy, TopicSettings};
use rowmq_core::stream::broadcast::{create_broadcast, reset_members};
use rowmq_core::stream::group::{create_group, create_stream, reset_group};
use rowmq_core::{NewMessage, Topic, TopicName, store};
use rowmq_test::TestDatabase;
use rowmq_test::until;

use crate::doorbell::{options, sweeper, waiting};
use crate::handling::running::{Running, With, send};

/// How long a handler takes: a few ranges outlast the claim attempts that follow a ring.
const WORK: Duration = Duration::from_millis(40);

/// Creates the stream, and an ordered group of it whose retries come back at once.
async fn stage(database: &TestDatabase) -> (Topic, Topic) {
    let mut conn = database.connect().await;
    let stream = TopicName::new("orders").expect("a name");
    let name = TopicName::of_group(&stream, "bill").expect("a name");
    let retry = RetryPolicy::Fixed(Duration::from_millis(1));
    let settings = TopicSettings { retry, ..TopicSettings::default() };
    create_stream(&mut conn, &stream, 1, &TopicSettings::default()).await.expect("made");
    create_group(&mut conn, &name, true, OffsetSpec::Earliest, &settings).await.expect("made");
    let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
    (stream, store::topic::existing(&mut conn, &name).await.expect("it is there"))
}

/// The end of its range, a due retry, a reset cursor: no message is enqueued for any of them.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_group_goes_on_range_after_range_although_nobody_polls() {
    let database = TestDatabase::new().await;
    let (stream, group) = stage(&database).await;
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let handler = With(move |context: Context| {
        let fails = context.delivery.body.ends_with(b"7") && context.delivery.failures == 0;
        count.fetch_add(usize::from(!fails), Ordering::SeqCst);
        async move {
            tokio::time::sleep(WORK).await;
            if fails { Err(HandlerError::retry("not yet")) } else { Ok(()) }
        }
    });
    let (name, few) = (group.name.clone(), TopicOptions { max_batch: 4, ..Default::default() });
    let running = Running::start(&database, |consumer| {
        consumer.raw_handler(name, few, handler).options(options())
    });
    let _sweeper = sweeper(&database);
    waiting(&database, 1).await;
    let messages: Vec<_> = (0..40).map(|n| NewMessage::new(n.to_string())).collect();
    send(&database, &stream, &messages).await;
    until("handled", async || handled.load(Ordering::SeqCst) == 40).await;
    let mut conn = database.connect().await;
    reset_group(&mut conn, &group, OffsetSpec::Earliest).await.expect("reset");
    until("handled again", async || handled.load(Ordering::SeqCst) == 80).await;
    running.stop().await;
}

/// The doorbell rings for new messages and for a reset; the member looks for retries itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_broadcast_group_goes_on_although_nobody_polls() {
    let database = TestDatabase::new().await;
    let (stream, _) = stage(&database).await;
    let mut conn = database.connect().await;
    let name = TopicName::of_group(&stream.name, "cache").expect("a name");
    let retry = RetryPolicy::Fixed(Duration::from_millis(300));
    let settings = TopicSettings { retry, ..TopicSettings::default() };
    create_broadcast(&mut conn, &name, OffsetSpec::Earliest, &settings).await.expect("made");
    let group = store::topic::existing(&mut conn, &name).await.expect("it is there");
    let handled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handled);
    let handler = With(move |context: Context| {
        let fails = context.delivery.body.ends_with(b"7") && context.delivery.failures == 0;
        count.fetch_add(usize::from(!fails), Ordering::SeqCst);
        async move { if fails { Err(HandlerError::retry("not yet")) } else { Ok(()) } }
    });
    let running = Running::start(&database, |consumer| {
        let member = Some(MemberName::new("a").expect("a name"));
        let options = ConsumerOptions { member, ..options() };
        consumer.raw_handler(name, TopicOptions::default(), handler).options(options)
    });
    let _sweeper = sweeper(&database);
    waiting(&database, 1).await;
    let messages: Vec<_> = (0..40).map(|n| NewMessage::new(n.to_string())).collect();
    send(&database, &stream, &messages).await;
    until("handled", async || handled.load(Ordering::SeqCst) == 40).await;
    reset_members(&mut conn, &group, OffsetSpec::Earliest).await.expect("reset");
    until("handled again", async || handled.load(Ordering::SeqCst) == 80).await;
    running.stop().await;
}
