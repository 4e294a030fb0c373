//! The backlog guard: producers at full speed, no consumer, and a janitor that measures.

#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot be set up has failed"
)]

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use rowmq_core::model::{OnDone, Settlement, TopicSettings, WhenFull};
use rowmq_core::store::inspect::{self, MessageTable};
use rowmq_core::worker::{Settled, Worker, WorkerOptions};
use rowmq_core::{Error, NewMessage, Topic, store};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_producer::{Producer, ProducerOptions, SendError};
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LIMIT: u64 = 20_000;

/// A database with a topic, and a janitor that runs until it is dropped.
struct Guarded {
    database: TestDatabase,
    topic: Topic,
    stop: CancellationToken,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Guarded {
    async fn new(settings: TopicSettings) -> Self {
        let database = TestDatabase::new().await;
        let topic = database.topic_with("work", &settings).await;
        let stop = CancellationToken::new();
        let options = DriverOptions::new(database.url().clone(), "test");
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let driver = Driver::new(options).run(stopped, |_| {});
            runtime.expect("a runtime").block_on(driver);
        });
        Self { database, topic, stop }
    }

    async fn producer(&self, give_up_after: Duration) -> Producer {
        let mut options = ProducerOptions::default();
        options.resend.give_up_after = give_up_after;
        Producer::connect(self.database.url().clone(), options).await.expect("connected")
    }

    async fn depth(&self) -> u64 {
        let mut conn = self.database.connect().await;
        let count = "SELECT COUNT(*) AS n FROM queue_message WHERE topic_id > 0";
        count_of(&mut conn, count).await
    }

    async fn is_full(&self) -> bool {
        let mut conn = self.database.connect().await;
        let topic = store::topic::existing(&mut conn, &self.topic.name).await.expect("read");
        topic.backlog.is_some_and(|backlog| backlog.full)
    }
}

async fn count_of(conn: &mut rowmq_core::AsyncMysqlConnection, sql: &str) -> u64 {
    use diesel::QueryableByName;
    use diesel_async::RunQueryDsl;
    #[derive(QueryableByName)]
    struct Row {
        #[diesel(sql_type = diesel::sql_types::BigInt)]
        n: i64,
    }
    let rows: Vec<Row> = diesel::sql_query(sql).load(conn).await.expect("counted");
    rows[0].n.unsigned_abs()
}

fn limited(when_full: WhenFull) -> TopicSettings {
    let max_depth = NonZeroU64::new(LIMIT);
    TopicSettings { max_depth, when_full, ..TopicSettings::default() }
}

/// Sends batches of 100 until one fails or `wanted` are stored; returns how many are, and the
/// error.
fn sending(producer: Producer, topic: &Topic, wanted: u64) -> JoinHandle<(u64, Option<SendError>)> {
    let topic = topic.name.clone();
    tokio::spawn(async move {
        let mut stored = 0;
        while stored < wanted {
            let batch = (0..100).map(|_| NewMessage::new(vec![b'x'; 200])).collect();
            if let Err(error) = producer.send_all(&topic, batch).await {
                return (stored, Some(error));
            }
            stored += 100;
        }
        (stored, None)
    })
}

/// Waits until no more messages come; returns how many there are.
async fn at_rest(guarded: &Guarded) -> u64 {
    until("full", async || guarded.is_full().await).await;
    let mut last = (guarded.depth().await, Instant::now());
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let depth = guarded.depth().await;
        if depth != last.0 {
            last = (depth, Instant::now());
        }
        if last.1.elapsed() >= Duration::from_secs(3) {
            return depth;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_stop_near_the_limit_and_go_on_when_consumers_drain() {
    let guarded = Guarded::new(limited(WhenFull::Block)).await;
    let wanted = 10 * LIMIT;
    let producer = guarded.producer(Duration::from_secs(300)).await;
    let started = Instant::now();
    let senders: Vec<_> =
        (0..4).map(|_| sending(producer.clone(), &guarded.topic, wanted / 4)).collect();
    until("at the limit", async || guarded.depth().await >= LIMIT).await;
    let rate = LIMIT as f64 / started.elapsed().as_secs_f64();
    let depth = at_rest(&guarded).await;
    println!(
        "limit {LIMIT}, filled at {rate:.0}/s, came to rest at {depth}: {} beyond it, {:.0} ms",
        depth - LIMIT,
        (depth - LIMIT) as f64 / rate * 1000.0
    );
    assert!(depth < wanted, "producers are still at it");
    let mut options = WorkerOptions::new(guarded.database.url().clone(), "drain");
    options.lease = Duration::from_secs(60);
    let worker = Worker::start(options).await.expect("registered");
    let (mut handled, mut last) = (0, Instant::now());
    while handled < wanted {
        assert!(last.elapsed() < PATIENCE, "{handled} of {wanted} have come");
        let claimed = worker.claim(guarded.topic.id, 1000).await.expect("claimed").deliveries;
        let ack = |delivery| Settled::new(delivery, Settlement::Ack, OnDone::Delete);
        handled += claimed.len() as u64;
        if claimed.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        } else {
            last = Instant::now();
            worker.settle(claimed.iter().map(ack).collect()).await.expect("settled");
        }
    }
    for sender in senders {
        let (stored, error) = sender.await.expect("joined");
        assert!(stored == wanted / 4 && error.is_none(), "{stored} {error:?}");
    }
    assert_eq!((handled, guarded.depth().await), (wanted, 0), "each is stored once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_rejects_does_so_at_once_and_opens_after_a_purge() {
    let guarded = Guarded::new(limited(WhenFull::Reject)).await;
    let producer = guarded.producer(Duration::from_secs(300)).await;
    let (stored, error) =
        sending(producer.clone(), &guarded.topic, u64::MAX).await.expect("joined");
    let Some(SendError::Refused(error @ Error::TopicFull { .. })) = error else {
        panic!("{error:?}");
    };
    assert!(!error.is_transient());
    assert_eq!(guarded.depth().await, stored, "what was refused is not stored");
    let mut conn = guarded.database.connect().await;
    while inspect::purge_some(&mut conn, MessageTable::Ready, guarded.topic.id, 5000)
        .await
        .expect("purged")
        > 0
    {}
    until("open", async || !guarded.is_full().await).await;
    let sent = producer.send(&guarded.topic.name, NewMessage::new("after the purge")).await;
    assert!(sent.is_ok(), "{sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_limited_from_the_sizes_of_some_messages() {
    let max_bytes = NonZeroU64::new(10 << 20);
    let settings = TopicSettings { max_bytes, ..limited(WhenFull::Block) };
    let guarded = Guarded::new(TopicSettings { max_depth: None, ..settings }).await;
    let producer = guarded.producer(Duration::from_secs(5)).await;
    let mut sent: u64 = 0;
    let error = loop {
        let small = (0..50).map(|n| NewMessage::new(vec![b'x'; 1000 + 40 * (n % 50)])).collect();
        match producer.send_all(&guarded.topic.name, small).await {
            Ok(_) => sent += 50,
            Err(error) => break error,
        }
    };
    let SendError::GaveUp { source: Error::TopicFull { fill, .. }, .. } = &error else {
        panic!("{error:?}");
    };
    println!("given up after {sent} messages of some 2 KB: {fill}");
    assert!(fill.to_string().contains("the limit is 10485760"), "{fill}");
    let count = "SELECT CAST(SUM(LENGTH(body)) AS SIGNED) AS n FROM queue_message";
    let bytes = count_of(&mut guarded.database.connect().await, count).await;
    assert!(bytes > 5 << 20, "closed at {bytes}");
}

/// A full topic does not hold a lane: the other topics' messages go through.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_topic_holds_up_no_other() {
    let guarded = Guarded::new(limited(WhenFull::Block)).await;
    let other = guarded.database.topic("other").await;
    let producer = guarded.producer(Duration::from_secs(300)).await;
    let senders: Vec<_> =
        (0..16).map(|_| sending(producer.clone(), &guarded.topic, u64::MAX)).collect();
    at_rest(&guarded).await;
    for _ in 0..100 {
        let sent = producer.send(&other.name, NewMessage::new("m")).await;
        assert!(sent.is_ok(), "{sent:?}");
    }
    assert!(senders.iter().all(|sender| !sender.is_finished()), "they wait");
    senders.iter().for_each(JoinHandle::abort);
}
