use std::time::Instant;

use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// Kills one of two consumers; returns how long after the kill the other consumer has begun
/// everything that the killed one had begun.
async fn kill_one_of_two(fleet: &mut Fleet) -> std::time::Duration {
    let ids = fleet.enqueue(16).await;
    kill_one_of_two_with(fleet, ids.len(), &[]).await
}

/// Does the same with a victim that has begun `begun` messages, and another consumer with the same
/// settings.
async fn kill_one_of_two_with(
    fleet: &mut Fleet,
    begun: usize,
    settings: &[(&str, &str)],
) -> std::time::Duration {
    let slow = Start { work_ms: 600_000, settings, ..Start::default() };
    let victim = fleet.start(&slow);
    fleet.until("all begun", async || fleet.begun(victim) == begun).await;
    let other = fleet.start(&Start { settings, ..Start::default() });
    fleet.until("both registered", async || registered(fleet).await == 2).await;
    fleet.signal(victim, Signal::KILL);
    let killed = Instant::now();
    let again = fleet.begun_by(victim);
    fleet.until("all begun again", async || fleet.begun_by(other).is_superset(&again)).await;
    let took = killed.elapsed();
    fleet.drained().await;
    took
}

/// The messages of a group, an ordered group and a broadcast group wait no longer than those of a
/// queue.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_member_had_begun_runs_again_in_groups_of_every_kind() {
    const NAMED: [(&str, &str); 1] = [("ROWMQ_CONSUMER_MEMBER", "a")];
    let groups = [
        ("a group", Fleet::of_group(1, false).await, 16, &[][..], 2),
        ("an ordered group", Fleet::of_group(1, true).await, 1, &[], 2),
        ("a broadcast group", Fleet::of_broadcast(1).await, 16, &NAMED, 1),
    ];
    for (what, mut fleet, begun, settings, delivery) in groups {
        fleet.enqueue(16).await;
        let took = kill_one_of_two_with(&mut fleet, begun, settings).await;
        println!("{what}: running again {} ms after the kill", took.as_millis());
        let histories = fleet.histories();
        assert_eq!(histories.len(), 16);
        let starts: Vec<_> = histories.values().map(|it| it.starts.as_slice()).collect();
        let again = starts.iter().filter(|it| **it == [(0, 1), (1, delivery)]).count();
        assert_eq!(again, begun, "{what}: {starts:?}");
    }
}

pub(crate) async fn registered(fleet: &Fleet) -> usize {
    let mut conn = fleet.database.connect().await;
    let workers = rowmq_core::store::worker::alive(&mut conn).await.expect("workers");
    workers.iter().filter(|worker| worker.conn.0 != 0).count()
}

/// The consumers themselves are the janitor (seed 000): the survivor sweeps.
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

/// H22: a first crash returns all of its rows together; innocent messages are not charged.
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
    let messages = rowmq_core::store::inspect::peek(&mut conn, fleet.topic.id, 100).await;
    let messages = messages.expect("peeked");
    assert_eq!(messages.len(), ids.len());
    assert!(messages.iter().all(|message| message.failures == 0 && !message.suspect));
    assert!(messages.iter().all(|message| message.delivery_no == 2));
}
