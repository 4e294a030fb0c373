//! A consumer that stands in for the janitor, until there is one.

use janitor::{Driver, DriverOptions};
use queue_core::store;
use queue_test::{Program, TestDatabase, until};

use crate::metrics::Janitor;

/// A consumer that sweeps, because nobody else does.
async fn stand_in(database: &TestDatabase) -> Program {
    database.topic("mail").await;
    let mut command = Program::built("consumer");
    command.args(["exec", "mail", "--", "/bin/true"]);
    command.env("QUEUE_URL", database.url().expose()).env_remove("RUST_LOG");
    let consumer = Program::start(&mut command);
    consumer.said("Sweeping.").await;
    consumer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_gives_way_to_a_janitor_and_stands_in_again_when_it_is_gone() {
    let database = TestDatabase::new().await;
    let consumer = stand_in(&database).await;
    let janitor = Janitor::start(database.url());
    // The consumer does not measure them.
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
    let driver = Driver::new(DriverOptions::new(database.url().clone(), "cron"));
    assert!(driver.run_once().await.expect("swept"));
    let mut conn = database.connect().await;
    let duties = store::duty::all(&mut conn).await.expect("duties");
    assert!(duties.iter().any(|duty| duty.holder == "cron"), "{duties:?}");
}
