use std::time::Instant;

use rustix::process::Signal;

use crate::fleet::{Fleet, Start};
use crate::kill::registered;

/// F3: a consumer that is frozen past its lease changes nothing when it wakes up.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_consumer_is_rescued_and_after_waking_up_it_is_fenced() {
    let mut fleet = Fleet::new().await;
    let ids = fleet.enqueue(16).await;
    let frozen = fleet.start(&Start { work_ms: 8_000, ..Start::default() });
    fleet.until("all begun", async || fleet.begun(frozen) == ids.len()).await;
    fleet.signal(frozen, Signal::STOP);
    let stopped = Instant::now();
    let other = fleet.start(&Start { work_ms: 20_000, ..Start::default() });
    fleet.until("all begun again", async || fleet.begun(other) == ids.len()).await;
    println!("running again {} ms after the freeze", stopped.elapsed().as_millis());

    // The frozen consumer wakes up while the other one works: its handlers finish at once, and
    // their acks are fenced.
    fleet.signal(frozen, Signal::CONT);
    fleet.until("registered anew", async || registered(&fleet).await == 2).await;
    let mut conn = fleet.database.connect().await;
    let messages = rowmq_core::store::inspect::peek(&mut conn, fleet.topic.id, 100).await;
    let messages = messages.expect("peeked");
    assert_eq!(messages.len(), ids.len(), "nothing was acked under the other's claims");
    assert!(messages.iter().all(|message| message.conn_id.is_some() && message.delivery_no == 2));
    assert!(fleet.said(frozen).contains("declared dead"), "{}", fleet.said(frozen));

    fleet.drained().await;
    for history in fleet.histories().values() {
        let ends = history.ends.iter().filter(|(member, _)| *member == other).count();
        assert_eq!(ends, 1, "acked once, by the one that held the claim: {history:?}");
        assert_eq!(history.starts.len(), 2);
    }
}
