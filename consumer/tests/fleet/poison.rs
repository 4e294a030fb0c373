use std::time::{Duration, Instant};

use rowmq_core::store::inspect::{self, MessageTable};
use rowmq_core::{NewMessage, enqueue};

use crate::fleet::{Fleet, PATIENCE, Start};

/// F20, F21, H22, I7: a message that crashes its worker is identified and dead-lettered, and the
/// innocent messages claimed with it are all handled.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_kills_its_worker_is_dead_lettered_and_its_neighbours_are_handled() {
    const MAX_CRASHES: usize = 3;
    let mut fleet = Fleet::new().await;
    let mut conn = fleet.database.connect().await;
    let mut ids = fleet.enqueue(20).await;
    let poison = NewMessage::new("poison");
    enqueue(&mut conn, &fleet.topic.name, &poison).await.expect("enqueued");
    ids.extend(fleet.enqueue(20).await);
    // Another consumer on another topic: it sweeps, and never gets the poison message.
    let other = fleet.database.topic("other").await;
    let sweeper = rowmq_core::worker::WorkerOptions::new(fleet.database.url().clone(), "idle");
    let sweeper = rowmq_core::worker::Worker::start(sweeper).await.expect("registered");
    assert!(sweeper.claim(other.id, 1).await.expect("claimed").deliveries.is_empty());
    let careless = Start { work_ms: 50, crash_on: Some("poison"), ..Start::default() };
    let (start, mut crashes) = (Instant::now(), 0);
    let mut member = fleet.start(&careless);
    loop {
        let depth = inspect::depth(&mut conn, fleet.topic.id).await.expect("a depth");
        if depth.dead == 1 && depth.unsettled == 0 && depth.claimed == 0 {
            break;
        }
        if !fleet.runs(member) {
            crashes += 1;
            assert!(crashes <= MAX_CRASHES + 2, "two in company, then three alone");
            member = fleet.start(&careless);
        }
        assert!(start.elapsed() < PATIENCE, "{crashes} crashes, and no end");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let histories = fleet.histories();
    for id in &ids {
        let handled = histories.get(id).is_some_and(|history| !history.ends.is_empty());
        assert!(handled, "an innocent neighbour was not handled: {id}");
    }
    assert!(histories[&poison.msg_id].ends.is_empty());
    assert!(histories[&poison.msg_id].starts.len() >= MAX_CRASHES);
    sweeper.stop().await.expect("stopped");
    let purged = inspect::purge_some(&mut conn, MessageTable::Dead, fleet.topic.id, 10).await;
    assert_eq!(purged.expect("purged"), 1, "the poison alone, with its body");
}
