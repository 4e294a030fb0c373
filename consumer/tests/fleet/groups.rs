use std::collections::HashMap;

use rowmq_core::store::inspect::{self, MessageTable};
use rowmq_core::{NewMessage, enqueue, enqueue_to};
use rustix::process::Signal;

use crate::fleet::{Fleet, Start};

/// A killed member loses nothing, and messages that it had handled below its mark are not handled
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_member_had_claimed_is_handled_by_the_others() {
    let mut fleet = Fleet::of_group(2, false).await;
    let mut ids = fleet.enqueue(2000).await;
    let mut conn = fleet.database.connect().await;
    let start = Start { work_ms: 5, ..Start::default() };
    let members: Vec<_> = (0..3).map(|_| fleet.start(&start)).collect();
    for victim in &members[..2] {
        // The work lasts until the victim has had some of it, even if it is slow to start.
        fleet
            .until("at work", async || {
                if fleet.left(&mut conn).await < 400 {
                    ids.extend(fleet.enqueue(400).await);
                }
                fleet.begun(*victim) > 50
            })
            .await;
        fleet.signal(*victim, Signal::KILL);
        fleet.ended(*victim).await;
    }
    fleet.drained().await;
    let histories = fleet.histories();
    let ends = |id| histories.get(id).map_or(0, |history| history.ends.len());
    assert!(ids.iter().all(|id| ends(id) > 0), "a message was not handled");
    let again = ids.iter().filter(|id| ends(id) > 1).count();
    println!("{again} of {} messages were handled again after two kills", ids.len());
    assert!(again < ids.len() / 2, "{again} messages were handled again");
}

/// Invariant I5, with kills: an ordered group may repeat what it was handling, but goes neither
/// further back nor ahead of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_group_keeps_its_keys_in_order_though_members_are_killed() {
    const KEYS: usize = 16;
    const MEMBERS: usize = 8;
    let mut fleet = Fleet::of_group(4, true).await;
    let mut conn = fleet.database.connect().await;
    let message = |n: usize| NewMessage::new(n.to_string()).with_key(format!("k{}", n % KEYS));
    let mut messages = Vec::new();
    let start = Start { work_ms: 2, concurrency: 4, ..Start::default() };
    let mut members: Vec<_> = (0..MEMBERS).map(|_| fleet.start(&start)).collect();
    for round in 0..MEMBERS + 2 {
        let victim = members[round % MEMBERS];
        // The work lasts until each member has had some of it, even the slowest to start.
        fleet
            .until("at work", async || {
                if fleet.left(&mut conn).await < 400 {
                    let next: Vec<_> = (messages.len()..).map(message).take(25 * KEYS).collect();
                    enqueue_to(&mut conn, &fleet.topic, &next).await.expect("enqueued");
                    messages.extend(next);
                }
                fleet.begun(victim) > 5
            })
            .await;
        fleet.signal(victim, Signal::KILL);
        fleet.ended(victim).await;
        members[round % MEMBERS] = fleet.start(&start);
    }
    fleet.drained().await;
    let number: HashMap<_, _> =
        messages.iter().enumerate().map(|(n, message)| (message.msg_id, n)).collect();
    let ended = fleet.ended_in_order();
    let mut last: HashMap<usize, usize> = HashMap::new();
    for id in &ended {
        let n = number[id];
        let before = last.insert(n % KEYS, n);
        // A message whose mark was not reported yet when its member died is handled again.
        let fits = before.is_none_or(|before| n == before + KEYS || n <= before);
        assert!(fits, "key {}: {n} after {before:?}", n % KEYS);
    }
    let handled: std::collections::HashSet<_> = ended.into_iter().collect();
    assert_eq!(handled.len(), messages.len(), "no key starves");
}

/// F20, F21, I7, in a stream: a poison message is dead-lettered alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_stream_that_kills_its_worker_is_dead_lettered() {
    const MAX_CRASHES: usize = 3;
    let mut fleet = Fleet::of_group(1, false).await;
    let mut conn = fleet.database.connect().await;
    let mut ids = fleet.enqueue(20).await;
    let poison = NewMessage::new("poison");
    enqueue(&mut conn, &fleet.topic.name, &poison).await.expect("enqueued");
    ids.extend(fleet.enqueue(20).await);
    let other = fleet.database.topic("other").await;
    let sweeper = rowmq_core::worker::WorkerOptions::new(fleet.database.url().clone(), "idle");
    let sweeper = rowmq_core::worker::Worker::start(sweeper).await.expect("registered");
    assert!(sweeper.claim(other.id, 1).await.expect("claimed").deliveries.is_empty());
    let careless = Start { work_ms: 20, crash_on: Some("poison"), ..Start::default() };
    let mut member = fleet.start(&careless);
    let mut crashes = 0;
    while fleet.left(&mut conn).await > 0 {
        if !fleet.runs(member) {
            crashes += 1;
            assert!(crashes <= MAX_CRASHES + 2, "two in company, then three alone");
            member = fleet.start(&careless);
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let histories = fleet.histories();
    for id in &ids {
        let handled = histories.get(id).is_some_and(|history| !history.ends.is_empty());
        assert!(handled, "an innocent neighbour was not handled: {id}");
    }
    sweeper.stop().await.expect("stopped");
    let purged = inspect::purge_some(&mut conn, MessageTable::Dead, fleet.consumed.id, 10).await;
    assert_eq!(purged.expect("purged"), 1, "the poison alone, with its body");
}
