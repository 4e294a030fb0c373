//! The library with a spill journal: while its server is away, and afterwards.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::setup::{depth, lanes, messages, stored, stored_ids};
use futures_util::future::{join, join_all};
use rowmq_core::model::{Backlog, TopicSettings};
use rowmq_core::store::{self, lane};
use rowmq_core::{Error, MsgId, NewMessage, Priority, TopicName};
use rowmq_producer::{
    Destination, Producer, ProducerOptions, ResendPolicy, SendError, SpillOptions,
};
use rowmq_test::TestDatabase;
use rowmq_test::proxy::FaultProxy;
use rowmq_test::proxy::statement::STORE_IN_LANE;

/// A topic, a proxy in front of its server, and a directory for a journal.
struct Scene {
    database: TestDatabase,
    topic: TopicName,
    proxy: FaultProxy,
    folder: tempfile::TempDir,
}

impl Scene {
    async fn new() -> Self {
        let database = TestDatabase::new().await;
        let topic = database.topic("mail").await.name;
        let proxy = FaultProxy::start(database.url()).await;
        Self { database, topic, proxy, folder: tempfile::tempdir().expect("a folder") }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    /// Returns options of a producer that spills as early as possible.
    fn options(&self) -> ProducerOptions {
        let mut spill = SpillOptions::new(self.dir());
        spill.after = Duration::ZERO;
        ProducerOptions { spill: Some(spill), ..ProducerOptions::default() }
    }

    async fn producer(&self) -> Producer {
        self.connect(self.options()).await.expect("connected")
    }

    async fn connect(&self, options: ProducerOptions) -> Result<Producer, Error> {
        Producer::connect(self.proxy.url(self.database.url()), options).await
    }

    async fn stored(&self) -> Vec<MsgId> {
        stored_ids(&self.database, "mail").await
    }

    /// Sends `n` messages, one after another; returns their ids, and how many were spilled.
    async fn send(&self, producer: &Producer, n: usize) -> (Vec<MsgId>, usize) {
        let (mut ids, mut spilled) = (Vec::new(), 0);
        for message in messages(n) {
            let sent = producer.send(&self.topic, message).await.expect("stored or spilled");
            ids.push(sent.msg_id);
            spilled += usize::from(!sent.destination.is_stored());
        }
        (ids, spilled)
    }

    /// Returns the lines of a file of messages that were set aside.
    fn aside(&self, file: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.dir().join(file)).expect("there is the file");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of NDJSON")).collect()
    }
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "spill")).collect()
}

#[tokio::test]
async fn what_a_server_that_is_away_does_not_take_is_stored_in_order_and_once_when_it_is_back() {
    let scene = Scene::new().await;
    let producer = scene.producer().await;
    let (mut sent, none) = scene.send(&producer, 20).await;
    assert_eq!((none, segments(&scene.dir()).len()), (0, 0), "the server has taken them");
    scene.proxy.refuse();
    let (away, spilled) = scene.send(&producer, 200).await;
    assert_eq!((spilled, producer.in_journal()), (200, 200));
    assert_eq!(scene.stored().await, sent, "nothing has come through");
    sent.extend(away);
    scene.proxy.pass();
    // Messages that come before the journal is empty queue behind it.
    sent.extend(scene.send(&producer, 50).await.0);
    producer.drained().await.expect("open");
    let (last, none) = scene.send(&producer, 5).await;
    assert_eq!((none, producer.in_journal()), (0, 0));
    sent.extend(last);
    assert_eq!(scene.stored().await, sent);
    assert_eq!(segments(&scene.dir()).len(), 0, "what is sent takes no room");
    producer.close().await;
}

#[tokio::test]
async fn a_message_says_where_it_is_and_later_that_it_is_stored() {
    let scene = Scene::new().await;
    let producer = scene.producer().await;
    scene.proxy.refuse();
    let receipt = producer.send_async(&scene.topic, NewMessage::new("a")).await.expect("room");
    let Destination::Spilled(one) = receipt.await.expect("spilled").destination else {
        panic!("stored")
    };
    let all = producer.send_all(&scene.topic, messages(3)).await.expect("spilled");
    let Destination::Spilled(all) = all[2].destination.clone() else { panic!("stored") };
    scene.proxy.pass();
    one.stored().await.expect("stored");
    all.stored().await.expect("stored");
    assert_eq!(scene.stored().await.len(), 4);
    producer.close().await;
    all.stored().await.expect("that does not change");
}

#[tokio::test]
async fn a_batch_in_doubt_when_the_server_goes_away_is_stored_once() {
    for arm in [FaultProxy::drop_reply_after, FaultProxy::cut_before, FaultProxy::strand] {
        for n in [1, 100] {
            let scene = Scene::new().await;
            let producer = scene.producer().await;
            let mut sent = scene.send(&producer, 1).await.0;
            arm(&scene.proxy, STORE_IN_LANE);
            scene.proxy.refuse_new();
            let batch = messages(n);
            sent.extend(batch.iter().map(|message| message.msg_id));
            let places = producer.send_all(&scene.topic, batch).await.expect("spilled");
            let stored = places.iter().any(|sent| sent.destination.is_stored());
            assert!(!stored, "nobody can say so yet");
            sent.extend(scene.send(&producer, 3).await.0);
            // Another process finds the journal.
            producer.close().await;
            let producer = scene.producer().await;
            scene.proxy.pass();
            producer.drained().await.expect("open");
            scene.proxy.release();
            sent.extend(scene.send(&producer, 1).await.0);
            assert_eq!(scene.stored().await, sent);
            producer.close().await;
        }
    }
}

#[tokio::test]
async fn a_connection_that_breaks_while_the_journal_is_sent_costs_nothing_and_doubles_nothing() {
    for arm in [FaultProxy::drop_reply_after, FaultProxy::cut_before, FaultProxy::strand] {
        let scene = Scene::new().await;
        let producer = scene.producer().await;
        scene.proxy.refuse();
        let (sent, _) = scene.send(&producer, 10).await;
        // The proxy's task does not run between the two calls.
        scene.proxy.pass();
        arm(&scene.proxy, STORE_IN_LANE);
        producer.drained().await.expect("open");
        scene.proxy.release();
        assert_eq!(scene.stored().await, sent);
        let (after, _) = scene.send(&producer, 1).await;
        assert_eq!(scene.stored().await, [sent, after].concat());
        producer.close().await;
    }
}

#[tokio::test]
async fn a_producer_can_begin_and_end_while_the_server_is_away() {
    let scene = Scene::new().await;
    scene.proxy.refuse();
    let mut sent = Vec::new();
    for _ in 0..3 {
        let producer = scene.producer().await;
        let (ids, spilled) = scene.send(&producer, 30).await;
        assert_eq!(spilled, 30);
        sent.extend(ids);
        producer.close().await;
    }
    scene.proxy.pass();
    let producer = scene.producer().await;
    assert!(producer.in_journal() <= 90);
    producer.drained().await.expect("open");
    assert_eq!(scene.stored().await, sent);
    producer.close().await;
}

#[tokio::test]
async fn a_message_is_sent_from_the_journal_with_all_it_has() {
    let scene = Scene::new().await;
    let producer = scene.producer().await;
    scene.proxy.refuse();
    let message = NewMessage::new([0, 255, b'a'])
        .with_priority(Priority::FIRST)
        .with_key("k")
        .with_biz_id("b")
        .with_header("h", "1")
        .with_expiry(Duration::from_secs(3600));
    producer.send(&scene.topic, message.clone()).await.expect("spilled");
    let later = NewMessage::new("later").with_delay(Duration::from_secs(3600));
    producer.send(&scene.topic, later).await.expect("spilled");
    scene.proxy.pass();
    producer.drained().await.expect("open");
    let found = stored(&scene.database, "mail").await.remove(0);
    assert_eq!((found.msg_id, &found.body), (message.msg_id, &message.body));
    assert_eq!((found.priority, &found.headers), (message.priority, &message.headers));
    assert_eq!((found.key.as_deref(), found.biz_id.as_deref()), (Some("k"), Some("b")));
    assert_eq!(depth(&scene.database, "mail").await.scheduled, 1);
    producer.close().await;
}

#[tokio::test]
async fn two_producers_do_not_share_a_directory() {
    let scene = Scene::new().await;
    let first = scene.producer().await;
    let refused = scene.connect(scene.options()).await.expect_err("in use");
    assert!(matches!(refused, Error::Spill { .. }), "{refused}");
    assert!(refused.to_string().contains("another producer is using it"), "{refused}");
    first.close().await;
    scene.producer().await.close().await;
}

#[tokio::test]
async fn a_full_journal_refuses_what_it_has_no_room_for_and_keeps_the_rest() {
    let scene = Scene::new().await;
    let mut options = scene.options();
    let give_up_after = Duration::from_millis(200);
    options.resend = ResendPolicy { give_up_after, ..ResendPolicy::default() };
    if let Some(spill) = &mut options.spill {
        spill.limit_bytes = NonZeroU64::new(10_000).expect("not zero");
    }
    let producer = scene.connect(options).await.expect("connected");
    scene.proxy.refuse();
    let mut spilled = Vec::new();
    let full = loop {
        match producer.send(&scene.topic, NewMessage::new(vec![b'x'; 1000])).await {
            Ok(sent) => spilled.push(sent.msg_id),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SendError::SpillFull { limit: 10_000, messages: 1, .. }), "{full}");
    assert!((5..10).contains(&spilled.len()), "{}", spilled.len());
    scene.proxy.pass();
    producer.drained().await.expect("open");
    assert_eq!(scene.stored().await, spilled);
    let sent = producer.send(&scene.topic, NewMessage::new("x")).await.expect("there is room");
    assert!(sent.destination.is_stored());
    producer.close().await;
}

#[tokio::test]
async fn a_batch_larger_than_the_journals_room_is_spilled_in_part() {
    let scene = Scene::new().await;
    let mut options = scene.options();
    options.resend.give_up_after = Duration::from_millis(500);
    options.batching.linger = Duration::from_millis(100);
    if let Some(spill) = &mut options.spill {
        spill.limit_bytes = NonZeroU64::new(10_000).expect("not zero");
    }
    let producer = scene.connect(options).await.expect("connected");
    scene.proxy.refuse();
    let mut receipts = Vec::new();
    for _ in 0..20 {
        let message = NewMessage::new(vec![b'x'; 1000]);
        receipts.push(producer.send_async(&scene.topic, message).await.expect("accepted"));
    }
    let (spilled, refused): (Vec<_>, Vec<_>) =
        join_all(receipts).await.into_iter().partition(Result::is_ok);
    assert!((5..10).contains(&spilled.len()), "{}", spilled.len());
    for error in refused.into_iter().filter_map(Result::err) {
        assert!(matches!(error, SendError::SpillFull { messages: 1, .. }), "{error}");
    }
    scene.proxy.pass();
    producer.drained().await.expect("open");
    let spilled: Vec<_> = spilled.into_iter().flatten().map(|sent| sent.msg_id).collect();
    assert_eq!(scene.stored().await, spilled, "in the order of the batch");
    producer.close().await;
}

#[tokio::test]
async fn a_sender_waits_for_room_in_a_full_journal_until_it_is_sent() {
    let scene = Scene::new().await;
    let mut options = scene.options();
    if let Some(spill) = &mut options.spill {
        spill.limit_bytes = NonZeroU64::new(10_000).expect("not zero");
    }
    let producer = scene.connect(options).await.expect("connected");
    scene.proxy.refuse();
    let large = |_| NewMessage::new(vec![b'x'; 1000]);
    let sends = (0..40).map(large).map(|message| producer.send(&scene.topic, message));
    let mut sends = std::pin::pin!(join_all(sends));
    let some = async {
        while producer.in_journal() < 5 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut sends => panic!("there is no room for all of them"),
        () = some => {}
    }
    scene.proxy.pass();
    for sent in sends.await {
        sent.expect("stored or spilled");
    }
    producer.drained().await.expect("open");
    assert_eq!(scene.stored().await.len(), 40);
    producer.close().await;
}

/// A full topic is not the server's fault: in the journal its messages would stop every topic.
#[tokio::test]
async fn a_full_topic_does_not_fill_the_journal_and_holds_up_no_other() {
    let scene = Scene::new().await;
    let settings = TopicSettings { max_depth: NonZeroU64::new(5), ..TopicSettings::default() };
    let full = scene.database.topic_with("full", &settings).await;
    let mut conn = scene.database.connect().await;
    let backlog = Backlog { depth: 5, bytes: None, full: true };
    assert!(store::backlog::publish(&mut conn, &full, backlog).await.expect("written"));
    let mut options = scene.options();
    options.resend.give_up_after = Duration::from_millis(500);
    let producer = scene.connect(options).await.expect("connected");
    let (waits, (sent, spilled)) =
        join(producer.send(&full.name, NewMessage::new("x")), scene.send(&producer, 20)).await;
    let Err(SendError::GaveUp { source: Error::TopicFull { .. }, tries, .. }) = &waits else {
        panic!("{waits:?}");
    };
    assert!(*tries > 1, "it has waited for room");
    assert_eq!((spilled, producer.in_journal()), (0, 0));
    let open = Backlog { depth: 4, full: false, ..backlog };
    assert!(store::backlog::publish(&mut conn, &full, open).await.expect("written"));
    let late = producer.send(&full.name, NewMessage::new("y")).await.expect("there is room");
    assert!(late.destination.is_stored());
    assert_eq!(scene.stored().await, sent);
    producer.close().await;
}

#[tokio::test]
async fn what_no_topic_takes_is_put_into_a_file_and_holds_nothing_up() {
    let scene = Scene::new().await;
    let settings = TopicSettings { body_limit: 10, ..TopicSettings::default() };
    scene.database.topic_with("small", &settings).await;
    let small = TopicName::new("small").expect("a name");
    let nowhere = TopicName::new("nowhere").expect("a name");
    let producer = scene.producer().await;
    scene.proxy.refuse();
    let bodies = ["1", "a body too long", "2", "3"];
    let mut places = Vec::new();
    for body in bodies {
        places
            .push(producer.send(&small, NewMessage::new(body)).await.expect("spilled").destination);
    }
    let odd = NewMessage::new([0xff]).with_key([0xfe]);
    let lost = producer.send(&nowhere, odd.clone()).await.expect("spilled").destination;
    let (sent, _) = scene.send(&producer, 2).await;
    scene.proxy.pass();
    producer.drained().await.expect("open");
    for (body, place) in bodies.iter().zip(places) {
        let Destination::Spilled(spilled) = place else { panic!("stored") };
        let outcome = spilled.stored().await;
        assert_eq!(outcome.is_ok(), body.len() == 1, "{body}: {outcome:?}");
    }
    let Destination::Spilled(lost) = lost else { panic!("stored") };
    let error = lost.stored().await.expect_err("there is no such topic");
    assert!(error.to_string().contains("There is no topic 'nowhere'"), "{error}");
    assert_eq!(stored(&scene.database, "small").await.len(), 3);
    assert_eq!(scene.stored().await, sent);
    assert_eq!(scene.aside("refused-small.ndjson")[0]["body"], "a body too long");
    let line = &scene.aside("refused-nowhere.ndjson")[0];
    assert_eq!(line["msg_id"], odd.msg_id.to_string());
    assert_eq!((&line["body_base64"], &line["key_base64"]), (&"/w==".into(), &"/g==".into()));
    producer.close().await;
}

#[tokio::test]
async fn a_message_that_no_server_would_take_is_refused_before_it_is_spilled() {
    let scene = Scene::new().await;
    let producer = scene.producer().await;
    scene.proxy.refuse();
    let refused = producer.send(&scene.topic, NewMessage::new("x").with_key([b'k'; 300])).await;
    assert!(matches!(refused, Err(SendError::Refused(Error::KeyTooLong { .. }))), "{refused:?}");
    assert_eq!(producer.in_journal(), 0);
    producer.close().await;
}

#[tokio::test]
async fn what_is_in_doubt_when_its_lane_is_gone_is_kept_for_a_person() {
    let scene = Scene::new().await;
    let producer = scene.producer().await;
    scene.proxy.drop_reply_after(STORE_IN_LANE);
    scene.proxy.refuse_new();
    let doubted = producer.send(&scene.topic, NewMessage::new("x")).await.expect("spilled");
    let (sent, _) = scene.send(&producer, 2).await;
    let mut conn = scene.database.connect().await;
    for id in lanes(&scene.database).await {
        lane::close(&mut conn, id).await.expect("removed");
    }
    scene.proxy.pass();
    producer.drained().await.expect("open");
    let Destination::Spilled(spilled) = doubted.destination else { panic!("stored") };
    let unknown = spilled.stored().await;
    assert!(matches!(unknown, Err(SendError::Unknown { .. })), "{unknown:?}");
    assert_eq!(scene.aside("unknown-mail.ndjson")[0]["msg_id"], doubted.msg_id.to_string());
    assert_eq!(scene.stored().await, [vec![doubted.msg_id], sent].concat(), "it was stored");
    producer.close().await;
}

/// A caller that asks too late learns that the outcome of the batch in doubt is unknown.
#[tokio::test]
async fn a_send_that_nobody_polls_does_not_keep_the_producer_open() {
    let scene = Scene::new().await;
    let mut options = ProducerOptions { lease: Duration::from_secs(5), ..scene.options() };
    options.resend.give_up_after = Duration::from_millis(100);
    let producer = scene.connect(options).await.expect("connected");
    scene.send(&producer, 1).await;
    scene.proxy.drop_reply_after(STORE_IN_LANE);
    scene.proxy.refuse_new();
    let messages = vec![NewMessage::new("x")];
    let mut send = std::pin::pin!(producer.send_all(&scene.topic, messages));
    assert!(futures_util::poll!(&mut send).is_pending());
    scene.proxy.sprung().await;
    producer.close().await;
    let unknown = send.await;
    assert!(matches!(unknown, Err(SendError::Unknown { .. })), "{unknown:?}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_says_why() {
    let scene = Scene::new().await;
    let file = scene.folder.path().join("file");
    std::fs::write(&file, "x").expect("written");
    let mut options = scene.options();
    options.spill = Some(SpillOptions::new(file.join("journal")));
    let refused = scene.connect(options).await.expect_err("no directory");
    assert!(refused.to_string().contains("name a directory that this process"), "{refused}");

    std::fs::create_dir(scene.dir()).expect("made");
    std::fs::write(scene.dir().join("cursor"), b"QSPCUR\x63\x00").expect("written");
    let refused = scene.connect(scene.options()).await.expect_err("another version");
    assert!(refused.to_string().contains("version 99"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_senders_over_an_outage_lose_and_double_nothing() {
    let scene = std::sync::Arc::new(Scene::new().await);
    let lanes = NonZeroU32::new(8).expect("not zero");
    let options = ProducerOptions { lanes, ..scene.options() };
    let producer = scene.connect(options).await.expect("connected");
    // Each sends 10 messages before the server goes away, 10 while it does, and 20 afterwards.
    let (step, steps) = tokio::sync::watch::channel(0);
    let senders: Vec<_> = (0..32)
        .map(|_| {
            let (scene, producer) = (std::sync::Arc::clone(&scene), producer.clone());
            let mut steps = steps.clone();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for (nth, messages) in [10, 10, 20].into_iter().enumerate() {
                    steps.wait_for(|step| *step >= nth).await.expect("the test goes on");
                    ids.extend(scene.send(&producer, messages).await.0);
                }
                ids
            })
        })
        .collect();
    let reach = async |n: usize| {
        rowmq_test::until("some are stored", async || scene.stored().await.len() >= n).await;
    };
    reach(100).await;
    scene.proxy.drop_reply_after(STORE_IN_LANE);
    scene.proxy.refuse_new();
    step.send_replace(1);
    scene.proxy.sprung().await;
    scene.proxy.refuse();
    step.send_replace(2);
    let filled = async || producer.in_journal() >= 200;
    rowmq_test::until("the journal has some", filled).await;
    scene.proxy.pass();
    let sent = join_all(senders).await;
    producer.drained().await.expect("open");
    let found = scene.stored().await;
    assert_eq!(found.len(), 32 * 40);
    for ids in sent {
        let ids = ids.expect("no panic");
        let of_this: Vec<_> = found.iter().copied().filter(|id| ids.contains(id)).collect();
        assert_eq!(of_this, ids, "the order of each sender is kept");
    }
    producer.close().await;
}
