//! Schedules under janitors that take turns.

#![allow(clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rowmq_core::model::{Missed, Recurrence, Schedule, ScheduleName};
use rowmq_core::schedule;
use rowmq_core::store;
use rowmq_janitor::{Driver, DriverOptions};
use rowmq_test::TestQueue;
use tokio_util::sync::CancellationToken;

/// How long it may take, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fast schedule: a tick every second, and half a minute of ticks missed, under two janitors; the
/// one that sweeps leaves half-way.
#[tokio::test]
async fn each_tick_is_enqueued_once_and_none_is_left_out() {
    let queue = TestQueue::new().await;
    let topic = queue.topic("reports").await.name;
    let mut conn = queue.connect().await;
    let recurrence = Recurrence::new("* * * * * *", "UTC").expect("a recurrence");
    let name = ScheduleName::new("each-second").expect("a name");
    let schedule = Schedule { missed: Missed::All, ..Schedule::new(name, topic, recurrence) };
    let set = schedule::set(&mut conn, &schedule).await.expect("set");
    let first = set.next_at.expect("a tick");
    queue.advance(Duration::from_secs(30)).await;
    let janitor = |n: usize, stop: CancellationToken| {
        let driver = Driver::new(DriverOptions::new(queue.url().clone(), format!("janitor {n}")));
        driver.run(stop, |_| {})
    };
    let start = Instant::now();
    for wanted in [31, 33] {
        let stop = CancellationToken::new();
        let watch = async {
            while queue.messages("reports").await.len() < wanted {
                assert!(start.elapsed() < PATIENCE, "{wanted} messages do not come");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            stop.cancel();
        };
        tokio::join!(watch, join_all((0..2).map(|n| janitor(n, stop.clone()))));
    }
    let messages = queue.messages("reports").await;
    let ticks: BTreeSet<_> =
        messages.iter().map(|m| m.headers.get("tick").expect("a tick")).collect();
    let state = store::schedule::all(&mut conn).await.expect("read").remove(0);
    let last = state.last_at.expect("it ticked");
    let between = (last - (first - chrono::TimeDelta::seconds(30))).num_seconds() + 1;
    assert_eq!(ticks.len(), messages.len(), "each tick once");
    assert_eq!(i64::try_from(ticks.len()), Ok(between), "none is left out");
    assert_eq!(state.ticks, ticks.len() as u64);
}
