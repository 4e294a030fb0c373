//! What the sweeper takes back from workers, and what it leaves to them.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::ServerUrl;
use rowmq_core::model::{OffsetSpec, OnDone, PartitionNo, Settlement, TopicSettings, WorkerId};
use rowmq_core::rescue::rows_held;
use rowmq_core::store::duty;
use rowmq_core::store::inspect::{depth, peek};
use rowmq_core::store::stream::range::of_partition;
use rowmq_core::store::topic::existing;
use rowmq_core::stream::group::{create_group, create_stream};
use rowmq_core::worker::{SettleOutcome, Settled, Worker, WorkerOptions};
use rowmq_core::{Delivery, NewMessage, Topic, TopicName, enqueue, enqueue_to};
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{TestDatabase, until};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Starts the duties, which run until this is dropped.
fn sweeper(database: &TestDatabase) -> DropGuard {
    sweeper_with(DriverOptions::new(database.url().clone(), "sweeper"))
}

fn sweeper_with(options: DriverOptions) -> DropGuard {
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let driver = Driver::new(options).run(stopped, |_| {});
        runtime.expect("a runtime").block_on(driver);
    });
    stop.drop_guard()
}

fn name(name: &str) -> TopicName {
    TopicName::new(name).expect("a name")
}

fn runs_of(time: Duration) -> TopicSettings {
    TopicSettings { max_run_time: Some(time), ..TopicSettings::default() }
}

const HOUR: Duration = Duration::from_secs(3600);

/// The shortest time that can be set: a claim is overdue one lease later.
const SHORT: Duration = Duration::from_millis(1);

async fn worker(database: &TestDatabase) -> Worker {
    worker_by(database.url().clone()).await
}

async fn worker_by(url: ServerUrl) -> Worker {
    let mut options = WorkerOptions::new(url, "test");
    (options.lease, options.beat) = (Duration::from_secs(2), Duration::from_millis(500));
    Worker::start(options).await.expect("registered")
}

async fn acked(worker: &Worker, deliveries: &[Delivery]) -> Vec<SettleOutcome> {
    let ack = |delivery: &Delivery| Settled::new(delivery, Settlement::Ack, OnDone::Delete);
    worker.settle(deliveries.iter().map(ack).collect()).await.expect("settled")
}

/// History P4: the server's clock stepped a day ahead, and every claim was taken from its worker.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_step_of_the_clock_makes_old_stays_and_what_is_held_for_too_long_is_taken_back() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let mut topics = Vec::new();
    for (topic, time) in [("patient", HOUR), ("short", SHORT)] {
        topics.push(database.topic_with(topic, &runs_of(time)).await);
        enqueue(&mut conn, &name(topic), &NewMessage::new("m")).await.expect("enqueued");
    }
    let worker = worker(&database).await;
    let mut held = Vec::new();
    for topic in &topics {
        held.push(worker.claim(topic.id, 1).await.expect("claimed").deliveries);
    }
    let back = "UPDATE queue_claim SET claimed_at = claimed_at - INTERVAL 1 DAY";
    conn.batch_execute(back).await.expect("set back");
    let _sweeper = sweeper(&database);
    let mut claimed =
        async |topic: &Topic| depth(&mut conn, topic.id).await.expect("a depth").claimed;
    until("taken back", async || claimed(&topics[1]).await == 0).await;
    assert_eq!(claimed(&topics[0]).await, 1, "it has been held for seconds, not for a day");
    let held_then = rows_held(&mut conn, worker.id()).await.expect("counted");
    assert!(held_then > 1, "its handler may run on, and the worker die of it");
    assert_eq!(acked(&worker, &held[1]).await, [SettleOutcome::Fenced]);
    assert_eq!(acked(&worker, &held[0]).await, [SettleOutcome::Settled]);
}

/// Each message of a range may use its full time: a range grows old only while its mark stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_whose_mark_stands_for_too_long_is_taken_from_its_living_owner() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    create_stream(&mut conn, &name("log"), 1, &TopicSettings::default()).await.expect("made");
    let mut groups = Vec::new();
    for (group, time) in [("log@patient", HOUR), ("log@short", SHORT), ("log@ordered", SHORT)] {
        let (settings, ordered) = (runs_of(time), group == "log@ordered");
        let group = name(group);
        let made = create_group(&mut conn, &group, ordered, OffsetSpec::Earliest, &settings);
        made.await.expect("made");
        groups.push(existing(&mut conn, &group).await.expect("it is there"));
    }
    let messages: Vec<_> = (0..4).map(|n| NewMessage::new(n.to_string())).collect();
    let stream = existing(&mut conn, &name("log")).await.expect("it is there");
    enqueue_to(&mut conn, &stream, &messages).await.expect("enqueued");
    let worker = worker(&database).await;
    let mut held = Vec::new();
    for group in &groups {
        let group = group.group().expect("a group");
        held.push(worker.claim_range(group, 4).await.expect("claimed").deliveries);
    }
    assert!(held.iter().all(|held| held.len() == 4));
    let back = "UPDATE queue_range SET claimed_at = claimed_at - INTERVAL 1 DAY";
    conn.batch_execute(back).await.expect("set back");
    let _sweeper = sweeper(&database);
    let mut is_held = async |group: &Topic| {
        let ranges = of_partition(&mut conn, group.id, PartitionNo(0)).await.expect("ranges");
        ranges[0].fence.worker == worker.id()
    };
    for group in &groups[1..] {
        until("taken back", async || !is_held(group).await).await;
    }
    assert!(is_held(&groups[0]).await, "it has been held for seconds, not for a day");
    // The worker learns of the loss when its report is refused; nothing that it reports of the
    // range counts.
    for held in &held[1..] {
        acked(&worker, held).await;
        until("found lost", async || worker.has_lost(held[0].claim_no)).await;
    }
    let ranges = of_partition(&mut conn, groups[1].id, PartitionNo(0)).await.expect("ranges");
    assert_eq!((ranges[0].mark.0, ranges[0].hi.0, ranges[0].suspicions), (0, 4, 1));
    // Another member continues.
    let other = self::worker(&database).await;
    let again = other.claim_range(groups[1].group().expect("a group"), 4).await.expect("claimed");
    assert_eq!(again.deliveries.len(), 4);
}

/// A dead letter that does not fit, or an unreadable row, affects one claim only.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_cannot_be_taken_back_holds_up_no_other() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    let topic = database.topic("work").await;
    let messages = ["stuck", "free"].map(NewMessage::new);
    enqueue_to(&mut conn, &topic, &messages).await.expect("enqueued");
    let worker = worker(&database).await;
    for _ in &messages {
        assert_eq!(worker.claim(topic.id, 1).await.expect("claimed").deliveries.len(), 1);
    }
    let stuck = "CREATE TRIGGER stuck BEFORE UPDATE ON queue_message FOR EACH ROW \
         IF OLD.body = 'stuck' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'stuck'; END IF";
    conn.batch_execute(stuck).await.expect("a trigger");
    let dead = "UPDATE queue_worker SET state = 'dead', ended_at = UTC_TIMESTAMP(6)";
    conn.batch_execute(dead).await.expect("dead");
    let _sweeper = sweeper(&database);
    let mut ready = async || {
        let rows = peek(&mut conn, topic.id, 10).await.expect("peeked");
        rows.iter().filter(|row| row.conn_id.is_none()).count()
    };
    until("the other is taken back", async || ready().await == 1).await;
    conn.batch_execute("DROP TRIGGER stuck").await.expect("dropped");
    let mut ready = async || depth(&mut conn, topic.id).await.expect("a depth").claimed == 0;
    until("tried again", async || ready().await).await;
}

/// Another session has the range locked in the sweep that declares its worker dead.
#[tokio::test(flavor = "multi_thread")]
async fn a_lone_crash_on_a_range_counts_as_one_although_the_range_was_locked_at_first() {
    let database = TestDatabase::new().await;
    let mut conn = database.connect().await;
    create_stream(&mut conn, &name("log"), 1, &TopicSettings::default()).await.expect("made");
    let (settings, billing) = (TopicSettings::default(), name("log@billing"));
    let made = create_group(&mut conn, &billing, false, OffsetSpec::Earliest, &settings);
    made.await.expect("made");
    let group = existing(&mut conn, &billing).await.expect("it is there");
    enqueue(&mut conn, &name("log"), &NewMessage::new("m")).await.expect("enqueued");
    let proxy = FaultProxy::start(database.url()).await;
    let owner = worker_by(proxy.url(database.url())).await;
    let range = owner.claim_range(group.group().expect("a group"), 1).await.expect("claimed");
    assert_eq!(range.deliveries.len(), 1);
    let mut reader = database.connect().await;
    reader.batch_execute("BEGIN; SELECT 1 FROM queue_range FOR UPDATE").await.expect("locked");
    proxy.refuse();
    let _sweeper = sweeper(&database);
    let mut is_locked = async || {
        let duties = duty::all(&mut conn).await.expect("duties");
        duties.iter().any(|duty| duty.name == "rescue" && duty.report["still_locked"] == 1)
    };
    until("found locked", async || is_locked().await).await;
    reader.batch_execute("ROLLBACK").await.expect("unlocked");
    let mut range = async || {
        let ranges = of_partition(&mut conn, group.id, PartitionNo(0)).await.expect("ranges");
        ranges.into_iter().next().expect("one range")
    };
    until("taken back", async || range().await.fence.worker == WorkerId(0)).await;
    let range = range().await;
    assert_eq!((range.crashes, range.suspicions), (1, 0), "a lone crash");
}

/// Found by the review of performance: one session performed all duties in turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_duty_that_waits_for_the_server_holds_up_no_rescue() {
    let database = TestDatabase::new().await;
    let (mut conn, topic) = (database.connect().await, database.topic("work").await);
    enqueue_to(&mut conn, &topic, &[NewMessage::new("m")]).await.expect("enqueued");
    let [of_worker, of_sweeper] =
        [FaultProxy::start(database.url()).await, FaultProxy::start(database.url()).await];
    let worker = worker_by(of_worker.url(database.url())).await;
    assert_eq!(worker.claim(topic.id, 1).await.expect("claimed").deliveries.len(), 1);
    // The duty that promotes waits for an answer for half of this time.
    let lease = Duration::from_secs(600);
    of_sweeper.darken_at("SELECT due_at, UTC_TIMESTAMP(6) AS now FROM queue_scheduled");
    let url = of_sweeper.url(database.url());
    let _sweeper = sweeper_with(DriverOptions { lease, ..DriverOptions::new(url, "sweeper") });
    of_sweeper.sprung().await;
    of_worker.refuse();
    until("rescued", async || depth(&mut conn, topic.id).await.expect("a depth").claimed == 0)
        .await;
}
