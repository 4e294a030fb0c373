use std::time::Instant;

use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// Everything the killed consumer had begun is begun again by the other; how long after the kill.
async fn kill_one_of_two(fleet: &mut Fleet) -> std::time::Duration {
    let slow = Start { work_ms: 600_000, ..Start::default() };
    let ids = fleet.enqueue(16).await;
    let victim = fleet.start(&slow);
    fleet.until("all begun", async || fleet.begun(victim) == ids.len()).await;
    let other = fleet.start(&Start::default());
    fleet.until("both registered", async || registered(fleet).await == 2).await;
    fleet.signal(victim, Signal::KILL);
    let killed = Instant::now();
    fleet.until("all begun again", async || fleet.begun(other) == ids.len()).await;
    let took = killed.elapsed();
    fleet.drained().await;
    took
}

pub(crate) async fn registered(fleet: &Fleet) -> usize {
    let mut conn = fleet.database.connect().await;
    let workers = queue_core::store::worker::alive(&mut conn).await.expect("workers");
    workers.iter().filter(|worker| worker.conn.0 != 0).count()
}

/// The janitor is the consumers themselves (seed 000): the survivor sweeps.
#[tokio::test(flavor = "multi_thread")]
async fn the_claims_of_a_killed_consumer_run_again_without_a_janitor() {
    let mut fleet = Fleet::new().await;
    let took = kill_one_of_two(&mut fleet).await;
    println!("running again {} ms after the kill, no janitor", took.as_millis());
    for history in fleet.histories().values() {
        assert_eq!(history.starts, [(0, 1), (1, 2)], "once before and once after the kill");
        assert_eq!(history.ends, [(1, 2)]);
    }
}

/// H22: a crash takes its rows together the first time; innocents are charged nothing.
#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_killed_consumer_are_charged_no_failure() {
    let mut fleet = Fleet::new().await;
    let ids = fleet.enqueue(16).await;
    let victim = fleet.start(&Start { work_ms: 600_000, ..Start::default() });
    fleet.until("all begun", async || fleet.begun(victim) == ids.len()).await;
    fleet.signal(victim, Signal::KILL);
    let idle = fleet.start(&Start { work_ms: 600_000, ..Start::default() });
    fleet.until("all begun again", async || fleet.begun(idle) == ids.len()).await;
    let mut conn = fleet.database.connect().await;
    let messages = queue_core::store::inspect::peek(&mut conn, fleet.topic.id, 100).await;
    let messages = messages.expect("peeked");
    assert_eq!(messages.len(), ids.len());
    assert!(messages.iter().all(|message| message.failures == 0 && !message.suspect));
    assert!(messages.iter().all(|message| message.delivery_no == 2));
}
