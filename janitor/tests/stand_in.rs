//! A consumer that stands in for the janitor, until there is one.

use diesel_async::SimpleAsyncConnection;
use rowmq_core::store;
use rowmq_janitor::{Driver, DriverOptions, Role};
use rowmq_test::{Program, TestDatabase, until};

use crate::metrics::Janitor;

/// Starts a consumer that sweeps, because no other process does.
async fn stand_in(database: &TestDatabase) -> Program {
    database.topic("mail").await;
    let mut command = Program::built("rowmq-consumer");
    command.args(["exec", "mail", "--", "/bin/true"]);
    command.env("ROWMQ_URL", database.url().expose()).env_remove("RUST_LOG");
    let consumer = Program::start(&mut command);
    consumer.said("Sweeping.").await;
    consumer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_gives_way_to_a_janitor_and_stands_in_again_when_it_is_gone() {
    let database = TestDatabase::new().await;
    let consumer = stand_in(&database).await;
    let janitor = Janitor::start(database.url()).await;
    // The consumer does not measure topics.
    until("the topics are measured", async || janitor.shows("queue_depth{")).await;
    assert!(janitor.shows("queue_sweeping 1"));
    consumer.said("this consumer no longer sweeps").await;
    let before = consumer.lines("Sweeping.").len();
    drop(janitor);
    until("it stands in again", async || consumer.lines("Sweeping.").len() > before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_gives_way_to_a_janitor_that_runs_once() {
    let database = TestDatabase::new().await;
    let _consumer = stand_in(&database).await;
    until("it gives way", async || {
        let driver = Driver::new(DriverOptions::new(database.url().clone(), "cron"));
        driver.run_once().await.expect("swept")
    })
    .await;
    let mut conn = database.connect().await;
    let duties = store::duty::all(&mut conn).await.expect("duties");
    assert!(duties.iter().any(|duty| duty.holder == "cron"), "{duties:?}");
}

/// A consumer's account may not remove dead letters.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_kept_for_as_long_as_their_topic_says_and_removed_by_a_janitor() {
    let database = TestDatabase::new().await;
    let topic = database.topic("mail").await;
    let mut conn = database.connect().await;
    conn.batch_execute("UPDATE queue_topic SET keep_dead_ms = 3600000").await.expect("set");
    for minutes in [59, 61] {
        let died = format!(
            "INSERT INTO queue_dead (topic_id, priority, msg_id, delivery_no, failures, crashes, \
             suspicions, enqueued_at, body, cause, died_at) SELECT id, 5, UNHEX(REPEAT('ab', 16)), \
             1, 1, 0, 0, UTC_TIMESTAMP(6), 'x', 'handler', \
             UTC_TIMESTAMP(6) - INTERVAL {minutes} MINUTE FROM queue_topic"
        );
        conn.batch_execute(&died).await.expect("filled");
    }
    let mut left_by = async |role| {
        let options = DriverOptions::new(database.url().clone(), "test");
        let driver = Driver::new(DriverOptions { role, ..options });
        assert!(driver.run_once().await.expect("swept"));
        store::inspect::depth(&mut conn, topic.id).await.expect("depth").dead
    };
    assert_eq!(left_by(Role::StandIn).await, 2);
    assert_eq!(left_by(Role::Janitor).await, 1);
}
