//! Consumers that are members of a broadcast group.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rowmq_consumer::{Consumer, ConsumerOptions, Receiver, Shutdown};
use rowmq_core::dead::redrive;
use rowmq_core::handler::{Context, HandlerError, TxHandler};
use rowmq_core::model::{MemberName, OffsetSpec, RetryPolicy, TopicSettings};
use rowmq_core::store::inspect;
use rowmq_core::store::stream::member;
use rowmq_core::stream::broadcast::create_broadcast;
use rowmq_core::stream::group::create_stream;
use rowmq_core::{AsyncMysqlConnection, NewMessage, Topic, TopicName, store};
use rowmq_test::{TestDatabase, until};
use tokio_util::sync::CancellationToken;

use crate::handling::running::{Running, With, one_at_a_time, patient, send};

/// Creates a stream of 3 partitions, and a broadcast group whose retries come back at once.
async fn stage(start: OffsetSpec) -> (TestDatabase, Topic, Topic) {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let stream = TopicName::new("orders").expect("a name");
    create_stream(&mut conn, &stream, 3, &TopicSettings::default()).await.expect("made");
    let retry = RetryPolicy::Fixed(Duration::from_millis(1));
    let settings = TopicSettings { retry, max_attempts: 3, ..TopicSettings::default() };
    let group = TopicName::of_group(&stream, "cache").expect("a name");
    create_broadcast(&mut conn, &group, start, &settings).await.expect("made");
    let group = store::topic::existing(&mut conn, &group).await.expect("it is there");
    let stream = store::topic::existing(&mut conn, &stream).await.expect("it is there");
    (database, stream, group)
}

fn numbered(n: std::ops::Range<usize>) -> Vec<NewMessage> {
    n.map(|n| NewMessage::new(n.to_string()).with_key(format!("k{}", n % 16))).collect()
}

fn called(name: &str) -> ConsumerOptions {
    let member = Some(MemberName::new(name).expect("a name"));
    ConsumerOptions { member, ..patient() }
}

/// How often each message was handled to its end.
type Seen = Arc<Mutex<BTreeMap<usize, usize>>>;

fn number(context: &Context) -> usize {
    String::from_utf8_lossy(&context.delivery.body).parse().expect("a number")
}

/// Starts a member that records what it has handled, and fails where `fails` says.
fn start(
    database: &TestDatabase,
    group: &Topic,
    options: ConsumerOptions,
    fails: fn(usize, u32) -> bool,
) -> (Running, Seen) {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let handle = move |context: Context| {
        let noted = Arc::clone(&noted);
        async move {
            let n = number(&context);
            if fails(n, context.delivery.failures) {
                return Err(HandlerError::retry("not yet"));
            }
            *noted.lock().expect("a lock").entry(n).or_default() += 1;
            Ok(())
        }
    };
    let name = group.name.clone();
    let running = Running::start(database, |builder| {
        let topic = rowmq_consumer::TopicOptions::default();
        builder.options(options).raw_handler(name, topic, With(handle))
    });
    (running, seen)
}

fn count(seen: &Seen) -> usize {
    seen.lock().expect("a lock").len()
}

#[tokio::test]
async fn each_of_five_members_handles_every_message_once_and_tries_its_own_failures_again() {
    let (database, stream, group) = stage(OffsetSpec::Earliest).await;
    let fails = |n: usize, failures: u32| n == 77 || (n % 10 == 3 && failures < 2);
    let options = ["", "", "", "a", "b"].map(|name| match name {
        "" => patient(),
        name => called(name),
    });
    let members = options.map(|options| start(&database, &group, options, fails));
    send(&database, &stream, &numbered(0..400)).await;
    let mut conn = database.connect().await;
    for (_, seen) in &members {
        until("all but one handled", async || count(seen) == 399).await;
    }
    until("dead letters of all", async || {
        inspect::depth(&mut conn, group.id).await.expect("a depth").dead == 5
    })
    .await;
    for (running, seen) in members {
        running.stop().await;
        let seen = seen.lock().expect("a lock");
        assert!(!seen.contains_key(&77) && seen.values().all(|times| *times == 1));
    }
    let group = group.broadcast().expect("a broadcast group");
    let progress = member::progress(&mut conn, group).await.expect("their progress");
    assert_eq!(progress.len(), 6, "of two names, in three partitions");
    assert!(progress.iter().all(|one| one.lag == 0 && one.worker.is_none()));
}

#[tokio::test]
async fn a_second_process_with_a_members_name_waits_for_the_first_one_and_takes_its_place() {
    let (database, stream, group) = stage(OffsetSpec::Earliest).await;
    let never = |_: usize, _: u32| false;
    let (first, of_first) = start(&database, &group, called("a"), never);
    send(&database, &stream, &numbered(0..50)).await;
    until("handled", async || count(&of_first) == 50).await;
    let noted = Seen::default();
    let seen = Arc::clone(&noted);
    let handle = move |context: Context| {
        seen.lock().expect("a lock").insert(number(&context), 1);
        async { Ok(()) }
    };
    let name = group.name.clone();
    let second = Running::start(&database, |builder| {
        builder.options(called("a")).raw_handler(name, one_at_a_time(), With(handle))
    });
    let mut conn = database.connect().await;
    until("it has registered", async || {
        store::worker::alive(&mut conn).await.expect("the workers").len() == 2
    })
    .await;
    send(&database, &stream, &numbered(50..60)).await;
    until("handled", async || count(&of_first) == 60).await;
    first.stop().await;
    send(&database, &stream, &numbered(60..70)).await;
    until("handled", async || count(&noted) == 10).await;
    second.stop().await;
    assert!(noted.lock().expect("a lock").keys().all(|n| *n >= 60));
}

#[tokio::test]
async fn what_a_member_was_at_when_it_was_stopped_it_handles_when_it_comes_back() {
    let (database, stream, group) = stage(OffsetSpec::Earliest).await;
    let begun = Arc::new(Mutex::new(0));
    let noted = Arc::clone(&begun);
    let handle = move |context: Context| {
        *noted.lock().expect("a lock") += 1;
        async move {
            context.cancelled.cancelled().await;
            Err(HandlerError::Release)
        }
    };
    let name = group.name.clone();
    let running = Running::start(&database, |builder| {
        builder.options(called("a")).raw_handler(name, one_at_a_time(), With(handle))
    });
    send(&database, &stream, &numbered(0..5)).await;
    until("at work", async || *begun.lock().expect("a lock") == 1).await;
    running.shutdown.quit.cancel();
    running.stop().await;
    let (running, seen) = start(&database, &group, called("a"), |_, _| false);
    until("handled", async || count(&seen) == 5).await;
    running.stop().await;
}

#[tokio::test]
async fn a_receiver_is_a_member_too() {
    let (database, stream, group) = stage(OffsetSpec::Earliest).await;
    send(&database, &stream, &numbered(0..3)).await;
    for _ in 0..2 {
        let (url, name) = (database.url().clone(), group.name.clone());
        let receiver = Receiver::connect(url, name, 10, patient()).await;
        let mut receiver = receiver.expect("there");
        let first = receiver.receive().await.expect("a message");
        let n = first.body.clone();
        first.fail(HandlerError::retry("no")).await.expect("told");
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let received = receiver.receive().await.expect("a message");
            assert_eq!(received.failures, u32::from(received.body == n));
            seen.push(received.body.clone());
            received.ack().await.expect("told");
        }
        seen.sort();
        assert_eq!(seen, [b"0", b"1", b"2"]);
        receiver.close().await.expect("closed");
    }
}

/// A redriven dead letter is a message of the group's own topic.
#[tokio::test]
async fn a_redriven_dead_letter_is_handled_by_one_member() {
    let (database, stream, group) = stage(OffsetSpec::Earliest).await;
    let fails = |_: usize, _: u32| true;
    let (failing, _) = start(&database, &group, patient(), fails);
    send(&database, &stream, &numbered(0..1)).await;
    let mut conn = database.connect().await;
    until("dead", async || inspect::depth(&mut conn, group.id).await.expect("a depth").dead == 1)
        .await;
    failing.stop().await;
    let never = |_: usize, _: u32| false;
    let members = [0; 2].map(|_| start(&database, &group, patient(), never));
    for (_, seen) in &members {
        until("handled", async || count(seen) == 1).await;
    }
    let filter = store::dead::DeadFilter::default();
    let mut session = database.session().await;
    let redriven = redrive(&mut session, &group, &filter, None, |_| ()).await.expect("redriven");
    assert_eq!(redriven, 1);
    let times = |seen: &Seen| seen.lock().expect("a lock").values().sum::<usize>();
    until("handled by one", async || {
        members.iter().map(|(_, seen)| times(seen)).sum::<usize>() == 3
    })
    .await;
    for (running, _) in members {
        running.stop().await;
    }
}

struct Nothing;

impl TxHandler for Nothing {
    type Payload = serde_json::Value;

    async fn handle(
        &self,
        _: &Context,
        _: serde_json::Value,
        _: &mut AsyncMysqlConnection,
    ) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test]
async fn what_makes_no_sense_of_a_broadcast_group_is_refused_at_the_start() {
    let (database, stream, group) = stage(OffsetSpec::Latest).await;
    let run = async |consumer: Consumer| {
        let shutdown = Shutdown { drain: CancellationToken::new(), quit: CancellationToken::new() };
        consumer.run(shutdown).await.expect_err("refused").to_string()
    };
    let builder = || Consumer::builder(database.url().clone());
    let transactional = builder().tx_handler(group.name.clone(), one_at_a_time(), Nothing);
    let error = run(transactional.build().expect("built")).await;
    assert!(error.contains("are not acked in transactions"), "{error}");
    let mut conn = database.connect().await;
    let queue = TopicName::new("mail").expect("a name");
    store::topic::create(&mut conn, &queue, &TopicSettings::default()).await.expect("made");
    let named = builder().options(called("a"));
    let named = named.raw_handler(queue.clone(), one_at_a_time(), With(|_| async { Ok(()) }));
    let error = run(named.build().expect("built")).await;
    assert!(error.contains("only members of a broadcast group have names"), "{error}");
    let url = database.url().clone();
    let receiver = Receiver::connect(url, queue, 1, called("a")).await.err().expect("refused");
    assert!(receiver.to_string().contains("only members of a broadcast group"), "{receiver}");
    let ledger =
        TopicSettings { ledger_window: Some(Duration::from_secs(9)), ..Default::default() };
    let error = store::topic::set(&mut conn, &group.name, &ledger).await.expect_err("refused");
    assert!(error.to_string().contains("keeps no ledger"), "{error}");
    drop(stream);
}
