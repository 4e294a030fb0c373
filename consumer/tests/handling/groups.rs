//! Consumers of a stream's groups.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_consumer::SettledListener;
use rowmq_core::connection::transaction;
use rowmq_core::handler::{BatchHandler, Context, HandlerError};
use rowmq_core::model::{HeaderCondition, OffsetSpec, RetryPolicy, TopicSettings};
use rowmq_core::store::stream::progress;
use rowmq_core::stream::group::{create_group, create_stream, reset_group};
use rowmq_core::stream::{Contention, sequence};
use rowmq_core::worker::SettleOutcome;
use rowmq_core::{NewMessage, Topic, TopicName, store};
use rowmq_test::TestDatabase;
use rowmq_test::until;
use tokio::sync::Notify;

use crate::handling::running::{Running, With, dead, one_at_a_time, patient, send};

/// Creates a stream of `partitions`, and groups of it whose retries come back at once.
async fn stage(
    partitions: u32,
    groups: &[&str],
    ordered: bool,
) -> (TestDatabase, Topic, Vec<Topic>) {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let stream = TopicName::new("orders").expect("a name");
    create_stream(&mut conn, &stream, partitions, &TopicSettings::default()).await.expect("made");
    let retry = RetryPolicy::Fixed(Duration::from_millis(1));
    let settings = TopicSettings { retry, max_attempts: 4, ..TopicSettings::default() };
    let mut made = Vec::new();
    for group in groups {
        let name = TopicName::of_group(&stream, group).expect("a name");
        create_group(&mut conn, &name, ordered, OffsetSpec::Earliest, &settings)
            .await
            .expect("made");
        made.push(store::topic::existing(&mut conn, &name).await.expect("it is there"));
    }
    let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
    (database, stream, made)
}

fn numbered(n: usize) -> Vec<NewMessage> {
    let message = |n: usize| NewMessage::new(n.to_string()).with_key(format!("k{}", n % 16));
    (0..n).map(message).collect()
}

/// What each handler has seen.
type Seen = Arc<Mutex<Vec<String>>>;

fn text(context: &Context) -> String {
    String::from_utf8_lossy(&context.delivery.body).into_owned()
}

#[tokio::test]
async fn every_group_handles_every_message_and_retries_its_own_failures() {
    let (database, stream, groups) = stage(3, &["mail", "bill"], false).await;
    let seen: Vec<Seen> = vec![Seen::default(), Seen::default()];
    let mut members = Vec::new();
    for (group, seen) in groups.iter().zip(&seen) {
        for _ in 0..2 {
            let (seen, fails) = (Arc::clone(seen), group.name.as_str().ends_with("bill"));
            let handle = move |context: Context| {
                let (seen, text) = (Arc::clone(&seen), text(&context));
                async move {
                    if fails && text.ends_with('7') && context.delivery.failures < 2 {
                        return Err(HandlerError::retry("not yet"));
                    }
                    seen.lock().expect("a lock").push(text);
                    Ok(())
                }
            };
            let (name, options) = (group.name.clone(), rowmq_consumer::TopicOptions::default());
            members.push(Running::start(&database, |builder| {
                builder.raw_handler(name, options, With(handle))
            }));
        }
    }
    send(&database, &stream, &numbered(500)).await;
    let all: BTreeSet<String> = (0..500).map(|n| n.to_string()).collect();
    until("handled by both groups", async || {
        seen.iter().all(|seen| seen.lock().expect("a lock").len() >= 500)
    })
    .await;
    for member in members {
        member.stop().await;
    }
    for seen in &seen {
        let seen = seen.lock().expect("a lock");
        assert_eq!(seen.len(), 500, "none is handled twice");
        assert_eq!(seen.iter().cloned().collect::<BTreeSet<_>>(), all);
    }
}

/// Invariant I5.
#[tokio::test]
async fn an_ordered_group_keeps_each_keys_order_whatever_fails_and_however_many_members_it_has() {
    let (database, stream, groups) = stage(4, &["bill"], true).await;
    let done: Arc<Mutex<BTreeMap<Vec<u8>, Vec<usize>>>> = Arc::default();
    let tries: Arc<Mutex<HashMap<usize, u32>>> = Arc::default();
    let mut members = Vec::new();
    for _ in 0..4 {
        let (done, tries) = (Arc::clone(&done), Arc::clone(&tries));
        let handle = move |context: Context| {
            let (done, tries) = (Arc::clone(&done), Arc::clone(&tries));
            async move {
                let n: usize = text(&context).parse().expect("a number");
                let runs = {
                    let mut tries = tries.lock().expect("a lock");
                    *tries.entry(n).and_modify(|runs| *runs += 1).or_insert(1)
                };
                if n % 10 == 3 && runs < 3 {
                    assert_eq!(context.delivery.failures, runs - 1);
                    return Err(HandlerError::retry("not yet"));
                }
                let key = context.delivery.key.clone().expect("a key");
                done.lock().expect("a lock").entry(key).or_default().push(n);
                Ok(())
            }
        };
        let name = groups[0].name.clone();
        members.push(Running::start(&database, |builder| {
            builder.raw_handler(name, rowmq_consumer::TopicOptions::default(), With(handle))
        }));
    }
    send(&database, &stream, &numbered(400)).await;
    let count = || done.lock().expect("a lock").values().map(Vec::len).sum::<usize>();
    until("all handled", async || count() >= 400).await;
    for member in members {
        member.stop().await;
    }
    let done = done.lock().expect("a lock");
    assert_eq!(done.values().map(Vec::len).sum::<usize>(), 400, "none is handled twice");
    for (key, numbers) in done.iter() {
        assert!(numbers.is_sorted(), "{}: {numbers:?}", String::from_utf8_lossy(key));
    }
}

/// It finishes what it has begun; what it has only claimed it leaves to the next owner.
#[tokio::test]
async fn a_member_that_has_lost_its_range_to_a_reset_does_not_go_on_with_it() {
    let (database, stream, groups) = stage(1, &["bill"], true).await;
    send(&database, &stream, &numbered(10)).await;
    let (seen, begun, reset) = (Seen::default(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let fenced = Arc::new(Notify::new());
    let (noted, first, go, told) =
        (Arc::clone(&seen), Arc::clone(&begun), Arc::clone(&reset), Arc::clone(&fenced));
    let handle = move |context: Context| {
        let (noted, first, go, told) =
            (Arc::clone(&noted), Arc::clone(&first), Arc::clone(&go), Arc::clone(&told));
        async move {
            let text = text(&context);
            noted.lock().expect("a lock").push(text.clone());
            match text.as_str() {
                "0" => {
                    first.notify_one();
                    go.notified().await;
                    Err(HandlerError::discard("it is told at once"))
                }
                "1" => {
                    told.notified().await;
                    Ok(())
                }
                _ => Ok(()),
            }
        }
    };
    let found = Arc::clone(&fenced);
    let listener = SettledListener::new(move |settled| {
        if matches!(settled.outcome, Ok(SettleOutcome::Fenced)) {
            found.notify_one();
        }
    });
    let name = groups[0].name.clone();
    let member = Running::start(&database, |builder| {
        let options = rowmq_consumer::TopicOptions::default();
        builder.on_settled(listener).raw_handler(name, options, With(handle))
    });
    begun.notified().await;
    let mut conn = database.connect().await;
    reset_group(&mut conn, &groups[0], OffsetSpec::Latest).await.expect("reset");
    reset.notify_one();
    send(&database, &stream, &[NewMessage::new("after")]).await;
    until("it goes on", async || seen.lock().expect("a lock").iter().any(|it| it == "after")).await;
    member.stop().await;
    let seen = seen.lock().expect("a lock").clone();
    assert!(seen == ["0", "1", "after"] || seen == ["0", "after"], "{seen:?}");
}

#[tokio::test]
async fn a_group_with_a_filter_handles_what_it_wants_and_goes_on_past_the_rest() {
    let (database, stream, groups) = stage(2, &["mail", "pull"], false).await;
    let mut conn = database.connect().await;
    let wanted: HeaderCondition = "type=wanted".parse().expect("a condition");
    for group in &groups {
        let filter = vec![wanted.clone()].into();
        let settings = TopicSettings { filter, ..group.settings.clone() };
        store::topic::set(&mut conn, &group.name, &settings).await.expect("set");
    }
    let kind = |n: usize| if n % 100 == 7 { "wanted" } else { "other" };
    let message = |n: usize| NewMessage::new(n.to_string()).with_header("type", kind(n));
    send(&database, &stream, &(0..3000).map(message).collect::<Vec<_>>()).await;
    let expected: BTreeSet<String> = (0..30).map(|n| (n * 100 + 7).to_string()).collect();
    let seen = Seen::default();
    let name = groups[0].name.clone();
    let tell = Arc::clone(&seen);
    let running = Running::start(&database, |builder| {
        let handle = move |context: Context| {
            let tell = Arc::clone(&tell);
            async move {
                tell.lock().expect("a lock").push(text(&context));
                Ok(())
            }
        };
        builder.raw_handler(name, rowmq_consumer::TopicOptions::default(), With(handle))
    });
    let group = groups[0].group().expect("a group");
    until("the group is through with the stream", async || {
        let progress = progress::of_group(&mut conn, group).await.expect("read");
        let sequenced: u64 = progress.iter().map(|one| one.end.0).sum();
        sequenced == 3000 && progress.iter().all(|one| one.lag == 0)
    })
    .await;
    running.stop().await;
    let handled = std::mem::take(&mut *seen.lock().expect("a lock"));
    assert_eq!(handled.len(), 30, "none is handled twice");
    assert_eq!(handled.into_iter().collect::<BTreeSet<_>>(), expected);

    let (url, name) = (database.url().clone(), groups[1].name.clone());
    let options = patient();
    let mut receiver =
        rowmq_consumer::Receiver::connect(url, name, 10, options).await.expect("there");
    let mut pulled = BTreeSet::new();
    while pulled.len() < 30 {
        let received = receiver.receive().await.expect("a message");
        pulled.insert(String::from_utf8_lossy(&received.body).into_owned());
        received.ack().await.expect("told");
    }
    assert_eq!(pulled, expected);
    receiver.close().await.expect("closed");
}

#[tokio::test]
async fn a_stream_itself_has_no_consumers() {
    let (database, stream, _) = stage(1, &[], false).await;
    let consumer = rowmq_consumer::Consumer::builder(database.url().clone())
        .raw_handler(stream.name.clone(), one_at_a_time(), With(|_| async { Ok(()) }))
        .build()
        .expect("built");
    let shutdown = rowmq_consumer::Shutdown {
        drain: tokio_util::sync::CancellationToken::new(),
        quit: tokio_util::sync::CancellationToken::new(),
    };
    let error = consumer.run(shutdown).await.expect_err("refused").to_string();
    assert!(error.contains("rowmq group create orders@GROUP"), "{error}");
}

/// Records how many it gets at once.
struct Sizes(Arc<Mutex<Vec<usize>>>);

impl BatchHandler for Sizes {
    type Payload = u32;

    async fn handle(&self, batch: Vec<(Context, u32)>) -> Vec<Result<(), HandlerError>> {
        self.0.lock().expect("a lock").push(batch.len());
        batch.iter().map(|_| Ok(())).collect()
    }
}

/// Otherwise the messages behind a failed one would have overtaken it.
#[tokio::test]
async fn an_ordered_group_has_batches_of_one_and_a_receiver_of_it_one_delivery() {
    let (database, stream, groups) = stage(1, &["bill", "pull"], true).await;
    send(&database, &stream, &numbered(20)).await;
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let (name, handler) = (groups[0].name.clone(), Sizes(Arc::clone(&sizes)));
    let running = Running::start(&database, |builder| {
        builder.batch_handler(name, one_at_a_time(), 10, handler)
    });
    until("handled", async || sizes.lock().expect("a lock").len() >= 20).await;
    running.stop().await;
    assert_eq!(*sizes.lock().expect("a lock"), [1; 20]);
    let (url, name) = (database.url().clone(), groups[1].name.clone());
    let options = patient();
    let mut receiver =
        rowmq_consumer::Receiver::connect(url, name, 10, options).await.expect("there");
    receiver
        .receive()
        .await
        .expect("a message")
        .fail(HandlerError::retry("no"))
        .await
        .expect("told");
    let again = receiver.receive().await.expect("a message");
    assert_eq!((again.body.as_slice(), again.failures), (b"0".as_slice(), 1));
    again.ack().await.expect("told");
    receiver.close().await.expect("closed");
}

/// A range has no row per message in which a fence could be checked.
#[tokio::test]
async fn a_message_of_a_stream_has_no_checkpoint() {
    let (database, stream, groups) = stage(1, &["mail"], false).await;
    let seen = Seen::default();
    let (name, sink) = (groups[0].name.clone(), Arc::clone(&seen));
    let running = Running::start(&database, |consumer| {
        let handler = With(move |context: Context| {
            let sink = Arc::clone(&sink);
            async move {
                let refused = context.last_checkpoint().await.expect_err("refused");
                sink.lock().expect("unpoisoned").push(refused.to_string());
                Ok(())
            }
        });
        consumer.raw_handler(name, one_at_a_time(), handler)
    });
    send(&database, &stream, &[NewMessage::new("x")]).await;
    until("handled", async || !seen.lock().expect("unpoisoned").is_empty()).await;
    running.stop().await;
    assert!(seen.lock().expect("unpoisoned")[0].contains("messages of a stream have none"));
}

/// A byte of the log has changed on the disk.
#[tokio::test]
async fn a_damaged_page_never_reaches_a_handler_and_stops_nothing() {
    for ordered in [false, true] {
        let (database, stream, groups) = stage(1, &["g"], ordered).await;
        let sent: Vec<_> = (0..130).map(|n| NewMessage::new(n.to_string())).collect();
        send(&database, &stream, &sent).await;
        let mut conn = database.connect().await;
        let turn = async |conn: &mut _| sequence(conn, stream.id, 1000, Contention::Wait).await;
        transaction(&mut conn, "test", turn).await.expect("sequenced");
        let damage = "UPDATE queue_log SET body = INSERT(body, 1, 1, '?') WHERE offset_no = 127";
        conn.batch_execute(damage).await.expect("damaged");
        let seen = Seen::default();
        let running = Running::start(&database, |builder| {
            let (note, name) = (Arc::clone(&seen), groups[0].name.clone());
            let handle = move |context: Context| {
                note.lock().expect("a lock").push(text(&context));
                async { Ok(()) }
            };
            builder.raw_handler(name, rowmq_consumer::TopicOptions::default(), With(handle))
        });
        // Each claim that meets the page gets it, and one may end in the middle of it.
        until("it is a dead letter", async || !dead(&database, &groups[0]).await.is_empty()).await;
        until("the others are handled", async || seen.lock().expect("a lock").len() == 66).await;
        running.stop().await;
        let others: BTreeSet<_> = (0..64).chain(128..130).map(|n: usize| n.to_string()).collect();
        assert_eq!(seen.lock().expect("a lock").iter().cloned().collect::<BTreeSet<_>>(), others);
        let bodies: String = (65..128).map(|n| n.to_string()).collect();
        for (body, error) in dead(&database, &groups[0]).await {
            assert!(error.contains("page of the log") && error.contains("checksum"), "{error}");
            assert!(body.ends_with(&format!("?4{bodies}")), "all bytes of the page");
        }
    }
}
