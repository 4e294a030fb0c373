use crate::fleet::{Fleet, Start};

/// Sixteen processes over one backlog: each message exactly once, and no conflict of the
/// database reaches a handler or ends a process.
#[tokio::test(flavor = "multi_thread")]
async fn sixteen_consumers_handle_each_message_exactly_once() {
    const MESSAGES: usize = 20_000;
    let mut fleet = Fleet::new().await;
    let ids = fleet.enqueue(MESSAGES).await;
    for _ in 0..16 {
        fleet.start(&Start::default());
    }
    fleet.drained().await;
    let histories = fleet.histories();
    assert_eq!(histories.len(), ids.len(), "none is lost, none is made up");
    for id in &ids {
        let history = &histories[id];
        assert_eq!((history.starts.len(), history.ends.len()), (1, 1), "{id}: {history:?}");
        let first = history.starts[0].1 == 1;
        assert!(first, "not the first delivery: {history:?}; they said:\n{}", fleet.all_said());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn update_then_select_handles_each_message_exactly_once_too() {
    let mut fleet = Fleet::new().await;
    let ids = fleet.enqueue(5_000).await;
    let settings = [("ROWMQ_CONSUMER_CLAIM_STRATEGY", "update-then-select")];
    for _ in 0..8 {
        fleet.start(&Start { settings: &settings, ..Start::default() });
    }
    fleet.drained().await;
    let histories = fleet.histories();
    assert_eq!(histories.len(), ids.len());
    assert!(histories.values().all(|history| history.starts.len() == 1));
}
