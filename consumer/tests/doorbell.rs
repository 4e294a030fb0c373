//! The doorbell on real servers: idle consumers wait for the sweeper, and poll while there is none.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot be set up has failed")]

mod groups;
mod rung;

use std::time::Duration;

use diesel::QueryableByName;
use diesel::sql_types::{BigInt, Unsigned};
use diesel_async::{AsyncMysqlConnection, RunQueryDsl};
use rowmq_consumer::{ConsumerBuilder, ConsumerOptions, Receiver, TopicOptions};
use rowmq_core::connection::{Connection, ServerUrl};
use rowmq_core::handler::Context;
use rowmq_core::model::Access;
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lane::{self, LaneKind};
use rowmq_core::{NewMessage, Topic, enqueue_all, enqueue_to, store};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{PATIENCE, TestDatabase, until};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::handling::running::{Running, With, send};

/// Longer than any test: a message that is claimed while the doorbell rings was found by the
/// sweeper.
const NEVER: Duration = Duration::from_secs(3600);

/// With beats so rare that no worker learns anything by them: what it learns, it was rung for.
fn options() -> ConsumerOptions {
    let (lease, beat) = (NEVER, NEVER / 4);
    ConsumerOptions { lease, beat, safety_poll: NEVER, sweep: false, ..ConsumerOptions::default() }
}

/// A sweeper; it ends with the guard.
fn sweeper(database: &TestDatabase) -> DropGuard {
    let stop = CancellationToken::new();
    let (stopped, url) = (stop.clone(), database.url().clone());
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let driver = Driver::new(DriverOptions::new(url, "sweeper")).run(stopped, |_| {});
        runtime.expect("a runtime").block_on(driver);
    });
    stop.drop_guard()
}

/// A consumer that reports every body it handles.
struct Bell {
    running: Running,
    handled: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Bell {
    fn start(url: &ServerUrl, topics: &[&Topic]) -> Self {
        Self::with(url, topics, options())
    }

    fn with(url: &ServerUrl, topics: &[&Topic], options: ConsumerOptions) -> Self {
        let (tell, handled) = mpsc::unbounded_channel();
        let running = Running::at(url, |mut consumer: ConsumerBuilder| {
            for topic in topics {
                let tell = tell.clone();
                let handler = With(move |context: Context| {
                    tell.send(context.delivery.body.clone()).expect("the test listens");
                    async { Ok(()) }
                });
                consumer =
                    consumer.raw_handler(topic.name.clone(), TopicOptions::default(), handler);
            }
            consumer.options(options)
        });
        Self { running, handled }
    }

    async fn handles(&mut self, body: &[u8]) {
        let handled = tokio::time::timeout(PATIENCE, self.handled.recv()).await;
        assert_eq!(handled.expect("in time").as_deref(), Some(body));
    }
}

/// Waits until this number of workers wait for their bells.
async fn waiting(database: &TestDatabase, workers: usize) {
    let mut conn = database.connect().await;
    until("they wait for their bells", async || waiters(&mut conn).await == Some(workers)).await;
}

/// Returns the sessions that wait for a bell. MySQL refuses to list them (3854) while any session
/// runs a statement whose text is not UTF-8: then the caller asks again.
async fn waiting_sessions(conn: &mut AsyncMysqlConnection) -> Option<Vec<u64>> {
    #[derive(QueryableByName)]
    struct Waiting {
        #[diesel(sql_type = Unsigned<BigInt>)]
        id: u64,
    }
    let sql = "SELECT CAST(ID AS UNSIGNED) AS id FROM information_schema.PROCESSLIST \
               WHERE DB = DATABASE() AND STATE = 'User lock'";
    let rows: Vec<Waiting> = diesel::sql_query(sql).load(conn).await.ok()?;
    Some(rows.into_iter().map(|row| row.id).collect())
}

async fn waiters(conn: &mut AsyncMysqlConnection) -> Option<usize> {
    waiting_sessions(conn).await.map(|sessions| sessions.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_process_is_claimed_although_nobody_polls() {
    let database = TestDatabase::new().await;
    let topics = [database.topic("one").await, database.topic("two").await];
    let _sweeper = sweeper(&database);
    let mut bell = Bell::start(database.url(), &[&topics[0], &topics[1]]);
    for n in 0..10_u8 {
        waiting(&database, 1).await;
        let body = vec![n; usize::from(n) * 1000];
        send(&database, &topics[usize::from(n % 2)], &[NewMessage::new(body.clone())]).await;
        bell.handles(&body).await;
    }
    bell.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_several_topics_in_one_statement_ring_for_each() {
    let database = TestDatabase::new().await;
    let topics = [database.topic("one").await, database.topic("two").await];
    let _sweeper = sweeper(&database);
    let mut bells: Vec<_> =
        topics.iter().map(|topic| Bell::start(database.url(), &[topic])).collect();
    waiting(&database, 2).await;
    let row = |topic: &Topic| {
        format!("({}, UNHEX(REPEAT('ab', 16)), 'key', REPEAT('h', 300), 'body')", topic.id.0)
    };
    let insert = format!(
        "INSERT INTO queue_message (topic_id, msg_id, ordering_key, headers, body) VALUES {}, {}",
        row(&topics[0]),
        row(&topics[1])
    );
    database.connect().await.batch(&insert).await.expect("inserted");
    for bell in &mut bells {
        bell.handles(b"body").await;
    }
    for bell in bells {
        bell.running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_a_producers_lane_rings_for_its_topic() {
    let database = TestDatabase::new().await;
    let topic = database.topic("in-lane").await;
    let mut conn = database.connect().await;
    let lane = lane::open(&mut conn, LaneKind::Passing, NewMessage::new("").msg_id.0)
        .await
        .expect("opened");
    let _sweeper = sweeper(&database);
    let mut bell = Bell::start(database.url(), &[&topic]);
    for seq in 1..4 {
        waiting(&database, 1).await;
        let messages = [NewMessage::new("x"), NewMessage::new("x")];
        insert_in_lane(&mut conn, topic.id, &messages, lane, seq).await.expect("stored");
        bell.handles(b"x").await;
        bell.handles(b"x").await;
    }
    bell.running.stop().await;
}

/// The look at the newest rows has passed its row when it is committed.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_committed_after_a_later_one_rings_too() {
    let database = TestDatabase::new().await;
    let (topic, other) = (database.topic("late").await, database.topic("other").await);
    let _sweeper = sweeper(&database);
    let mut bells =
        [Bell::start(database.url(), &[&topic]), Bell::start(database.url(), &[&other])];
    waiting(&database, 2).await;
    let mut slow = database.connect().await;
    slow.batch("BEGIN").await.expect("begun");
    enqueue_to(&mut slow, &topic, &[NewMessage::new("late")]).await.expect("enqueued");
    send(&database, &other, &[NewMessage::new("early")]).await;
    bells[1].handles(b"early").await;
    waiting(&database, 2).await;
    slow.batch("COMMIT").await.expect("committed");
    bells[0].handles(b"late").await;
    for bell in bells {
        bell.running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pull_api_is_woken_too() {
    let database = TestDatabase::new().await;
    let topic = database.topic("pulled").await;
    let url = database.url().clone();
    let _sweeper = sweeper(&database);
    let mut receiver =
        Receiver::connect(url, topic.name.clone(), 1, options()).await.expect("connected");
    let pulled = tokio::spawn(async move {
        for _ in 0..3 {
            receiver.receive().await.expect("received").ack().await.expect("acked");
        }
        receiver.close().await.expect("closed");
    });
    let mut conn = database.connect().await;
    for body in ["a", "b", "c"] {
        waiting(&database, 1).await;
        let message = [NewMessage::new(body)];
        enqueue_all(&mut conn, &topic.name, &message).await.expect("enqueued");
        until("claimed", async || {
            let depth = store::inspect::depth(&mut conn, topic.id).await.expect("a depth");
            depth.unsettled == 0
        })
        .await;
    }
    tokio::time::timeout(PATIENCE, pulled).await.expect("in time").expect("no panic");
}

/// Without a sweeper the bells are free. The next sweeper takes them.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_poll_while_there_is_no_sweeper() {
    let database = TestDatabase::new().await;
    let topic = database.topic("unswept").await;
    let mut bell = Bell::start(database.url(), &[&topic]);
    for _ in 0..2 {
        send(&database, &topic, &[NewMessage::new("polled")]).await;
        bell.handles(b"polled").await;
        let sweeper = sweeper(&database);
        waiting(&database, 1).await;
        send(&database, &topic, &[NewMessage::new("rung")]).await;
        bell.handles(b"rung").await;
        drop(sweeper);
        let mut conn = database.connect().await;
        until("no worker waits", async || waiters(&mut conn).await == Some(0)).await;
    }
    bell.running.stop().await;
}

/// A sweeper that cannot look must not keep the bells: the consumers would not poll.
#[tokio::test(flavor = "multi_thread")]
async fn a_sweeper_whose_look_fails_lets_go_of_the_bells() {
    let database = TestDatabase::new().await;
    let topic = database.topic("failing").await;
    let _sweeper = sweeper(&database);
    let mut bell = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    waiting(&database, 1).await;
    // The look reads this table too.
    conn.batch("RENAME TABLE queue_partition TO away").await.expect("renamed");
    until("no worker waits", async || waiters(&mut conn).await == Some(0)).await;
    send(&database, &topic, &[NewMessage::new("polled")]).await;
    bell.handles(b"polled").await;
    conn.batch("RENAME TABLE away TO queue_partition").await.expect("renamed");
    waiting(&database, 1).await;
    send(&database, &topic, &[NewMessage::new("rung")]).await;
    bell.handles(b"rung").await;
    bell.running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_killed_comes_back_and_nothing_waits_for_it() {
    let database = TestDatabase::new().await;
    let topic = database.topic("killed").await;
    let _sweeper = sweeper(&database);
    let mut bell = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    for _ in 0..2 {
        waiting(&database, 1).await;
        let mut listener = None;
        until("listed", async || {
            listener = waiting_sessions(&mut conn).await.and_then(|mut ids| ids.pop());
            listener.is_some()
        })
        .await;
        conn.batch(&format!("KILL {}", listener.expect("it waits"))).await.expect("killed");
        send(&database, &topic, &[NewMessage::new("polled")]).await;
        bell.handles(b"polled").await;
    }
    bell.running.stop().await;
}

/// The connections stay open and nothing arrives any more, as behind a cut cable.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_cut_off_in_silence_is_rung_again() {
    let database = TestDatabase::new().await;
    let topic = database.topic("dark").await;
    let proxy = FaultProxy::start(database.url()).await;
    let _sweeper = sweeper(&database);
    let lease = Duration::from_secs(6);
    let options = ConsumerOptions { lease, beat: lease / 4, ..options() };
    let mut bell = Bell::with(&proxy.url(database.url()), &[&topic], options);
    waiting(&database, 1).await;
    proxy.blackhole();
    send(&database, &topic, &[NewMessage::new("unheard")]).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.pass();
    bell.handles(b"unheard").await;
    waiting(&database, 1).await;
    send(&database, &topic, &[NewMessage::new("heard")]).await;
    bell.handles(b"heard").await;
    bell.running.stop().await;
}

/// No message comes, so nothing else is rung for.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_rules_rings_those_that_wait() {
    let database = TestDatabase::new().await;
    let topic = database.topic("ruled").await;
    let _sweeper = sweeper(&database);
    let bell = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    waiting(&database, 1).await;
    assert_eq!(rings(&mut conn).await, 0);
    until("the worker is rung", async || {
        // Until the sweeper has read the rules once, a change is nothing new to it.
        for access in [Access::WriteOnly, Access::ReadWrite] {
            store::topic::set_access(&mut conn, &topic.name, access).await.expect("set");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        rings(&mut conn).await > 0
    })
    .await;
    bell.running.stop().await;
}

/// Returns how often the sweeper has rung, as it recorded at last.
async fn rings(conn: &mut AsyncMysqlConnection) -> u64 {
    let duties = store::duty::all(conn).await.expect("read");
    let ring = duties.iter().find(|duty| duty.name == "ring");
    ring.and_then(|duty| duty.report["rung"].as_u64()).unwrap_or(0)
}

/// While the doorbell rings, workers that hold nothing rarely read the rules.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_of_one_topic_or_of_all_is_learned_although_nobody_polls() {
    let database = TestDatabase::new().await;
    let topic = database.topic("ruled").await;
    let _sweeper = sweeper(&database);
    let mut bell = Bell::start(database.url(), &[&topic]);
    let mut conn = database.connect().await;
    for one in [true, false] {
        for access in [Access::WriteOnly, Access::ReadWrite] {
            waiting(&database, 1).await;
            if one {
                store::topic::set_access(&mut conn, &topic.name, access).await.expect("set");
            } else {
                store::switch::set(&mut conn, access).await.expect("set");
            }
            if access == Access::ReadWrite {
                bell.handles(b"paused").await;
                continue;
            }
            until("claims are paused", async || {
                send(&database, &topic, &[NewMessage::new("paused")]).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                bell.handled.try_recv().is_err()
            })
            .await;
        }
    }
    bell.running.stop().await;
}
