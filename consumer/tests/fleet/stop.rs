use rowmq_test::proxy::FaultProxy;
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// F25: the consumer finishes what it has begun, gives the rest back uncharged, and its worker
/// leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_told_to_stop_finishes_what_runs_and_releases_the_rest() {
    let mut fleet = Fleet::new().await;
    fleet.enqueue(40).await;
    let member = fleet.start(&Start { work_ms: 6_000, concurrency: 4, ..Start::default() });
    fleet.until("begun", async || fleet.begun(member) == 4).await;
    fleet.signal(member, Signal::TERM);
    assert!(fleet.ended(member).await.success(), "{}", fleet.said(member));
    assert_eq!(fleet.begun(member), 4, "nothing begins after the signal");
    let mut conn = fleet.database.connect().await;
    let left = rowmq_core::store::inspect::peek(&mut conn, fleet.topic.id, 100).await;
    let left = left.expect("peeked");
    assert_eq!(left.len(), 36, "the four that ran are acked");
    assert!(left.iter().all(|message| message.conn_id.is_none() && message.failures == 0));
    assert_eq!(rowmq_core::store::worker::alive(&mut conn).await.expect("workers"), []);
    let workers = rowmq_core::store::worker::latest(&mut conn, 10).await.expect("workers");
    assert_eq!(workers[0].state, "stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_releases_at_once_what_still_runs() {
    let mut fleet = Fleet::new().await;
    fleet.enqueue(4).await;
    let member = fleet.start(&Start { work_ms: 600_000, concurrency: 4, ..Start::default() });
    fleet.until("begun", async || fleet.begun(member) == 4).await;
    fleet.signal(member, Signal::TERM);
    fleet.signal(member, Signal::TERM);
    assert!(fleet.ended(member).await.success(), "{}", fleet.said(member));
    let mut conn = fleet.database.connect().await;
    let left = rowmq_core::store::inspect::peek(&mut conn, fleet.topic.id, 100).await;
    let left = left.expect("peeked");
    assert_eq!(left.len(), 4);
    assert!(left.iter().all(|message| message.conn_id.is_none() && message.failures == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_time_to_drain_is_over_the_rest_is_released() {
    let mut fleet = Fleet::new().await;
    fleet.enqueue(2).await;
    let settings = [("ROWMQ_CONSUMER_DRAIN", "200ms")];
    let start = Start { work_ms: 600_000, concurrency: 4, settings: &settings, ..Start::default() };
    let member = fleet.start(&start);
    fleet.until("begun", async || fleet.begun(member) == 2).await;
    fleet.signal(member, Signal::TERM);
    assert!(fleet.ended(member).await.success(), "{}", fleet.said(member));
    let next = fleet.start(&Start::default());
    fleet.drained().await;
    assert_eq!(fleet.begun(next), 2);
}

/// A claim waits behind a settlement that is tried again and again. What the consumer holds is not
/// lost: another one handles it.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_cannot_settle_stops_all_the_same() {
    let mut fleet = Fleet::new().await;
    let direct = fleet.database.url().clone();
    let proxy = FaultProxy::start(&direct).await;
    fleet.enqueue(2).await;
    fleet.through(&proxy.url(&direct));
    let settings = [("ROWMQ_CONSUMER_LEASE", "2s"), ("ROWMQ_CONSUMER_BEAT", "500ms")];
    let settings = [settings.as_slice(), &[("ROWMQ_CONSUMER_DRAIN", "1s")]].concat();
    let start = Start { work_ms: 1_000, settings: &settings, ..Start::default() };
    let member = fleet.start(&start);
    fleet.until("begun", async || fleet.begun(member) == 2).await;
    proxy.refuse();
    let says = async |text: &str| fleet.said(member).contains(text);
    fleet.until("cut off", async || says("silent for almost a lease").await).await;
    fleet.until("it cannot settle", async || says("Settling fails").await).await;
    fleet.signal(member, Signal::TERM);
    assert!(fleet.ended(member).await.success(), "{}", fleet.said(member));
    fleet.through(&direct);
    let next = fleet.start(&Start::default());
    fleet.drained().await;
    assert_eq!(fleet.begun(next), 2);
}
