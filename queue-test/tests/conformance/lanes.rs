//! Lanes: how a producer learns whether a batch without an answer was committed.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use queue_core::connection::{SessionKind, connect, transaction};
use queue_core::store::lane::{self, LaneId};
use queue_core::{Error, Fault, NewMessage, enqueue_all, store};
use queue_test::proxy::FaultProxy;
use uuid::Uuid;

use crate::scene::{Scene, number, until};

#[tokio::test]
async fn a_lane_advances_one_by_one_and_no_other_way() {
    let mut scene = Scene::new().await;
    let (lane, other) = (LaneId(Uuid::new_v4()), LaneId(Uuid::new_v4()));
    let conn = &mut scene.conn;
    lane::open(conn, lane).await.unwrap();
    assert_eq!(lane::settled_seq(conn, lane).await.unwrap(), Some(0));
    for (seq, advanced) in [(1, 1), (1, 0), (3, 0), (2, 1), (0, 0), (1, 0), (3, 1)] {
        assert_eq!(lane::advance(conn, lane, seq).await.unwrap(), advanced, "to {seq}");
    }
    assert_eq!(lane::settled_seq(conn, lane).await.unwrap(), Some(3));
    assert_eq!(lane::advance(conn, other, 1).await.unwrap(), 0, "it was never opened");
    assert_eq!(lane::settled_seq(conn, other).await.unwrap(), None);
    lane::close(conn, lane).await.unwrap();
    assert_eq!(lane::settled_seq(conn, lane).await.unwrap(), None);
    assert_eq!(lane::advance(conn, lane, 4).await.unwrap(), 0);
}

#[tokio::test]
async fn opening_a_lane_twice_is_a_duplicate() {
    let mut scene = Scene::new().await;
    let lane = LaneId(Uuid::new_v4());
    lane::open(&mut scene.conn, lane).await.unwrap();
    let again = lane::open(&mut scene.conn, lane).await.unwrap_err();
    assert_eq!(again.fault(), Fault::Duplicate, "{again}");
}

/// The question is asked while the old connection's commit may be under way still: the answer
/// waits for it.
#[tokio::test]
async fn the_sequence_is_read_only_once_every_transaction_on_it_has_ended() {
    for (end, seq) in [("COMMIT", 1), ("ROLLBACK", 0)] {
        let mut scene = Scene::new().await;
        let lane = LaneId(Uuid::new_v4());
        lane::open(&mut scene.conn, lane).await.unwrap();
        let (mut sending, mut asking) = (scene.db.connect().await, scene.db.connect().await);
        sending.batch_execute("BEGIN").await.unwrap();
        assert_eq!(lane::advance(&mut sending, lane, 1).await.unwrap(), 1);
        let end = async {
            until("the question waits", async || scene.lock_waits().await > 0).await;
            sending.batch_execute(end).await.unwrap();
        };
        let (answer, ()) = tokio::join!(lane::settled_seq(&mut asking, lane), end);
        assert_eq!(answer.unwrap(), Some(seq));
    }
}

/// The whole of it, as the producer uses it: the batch and the lane commit together, so the
/// sequence tells after a lost reply whether the messages are there.
#[tokio::test]
async fn after_a_lost_reply_the_sequence_tells_whether_the_batch_was_committed() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let lane = LaneId(Uuid::new_v4());
    lane::open(&mut scene.conn, lane).await.unwrap();
    let name = scene.topic.name.clone();
    let mut sent = 0;
    for (seq, arrives) in [(1, true), (2, false), (2, true)] {
        let mut conn = connect(&url, SessionKind::Plain).await.unwrap();
        if arrives {
            proxy.drop_reply_after("COMMIT");
        } else {
            proxy.cut_before("COMMIT");
        }
        let messages: Vec<_> = (0..10).map(|_| NewMessage::new("m")).collect();
        let lost = transaction(&mut conn, "send", async |conn| {
            assert_eq!(lane::advance(conn, lane, seq).await?, 1);
            enqueue_all(conn, &name, &messages).await
        });
        let lost = lost.await.unwrap_err();
        assert!(matches!(lost, Error::UnknownOutcome { .. }), "{lost}");
        let committed = lane::settled_seq(&mut scene.conn, lane).await.unwrap() == Some(seq);
        assert_eq!(committed, arrives);
        sent += if committed { 10 } else { 0 };
        assert_eq!(scene.hot().await.0, sent);
    }
}

#[tokio::test]
async fn a_batch_of_a_lane_that_stands_elsewhere_is_rolled_back_whole() {
    let mut scene = Scene::new().await;
    let lane = LaneId(Uuid::new_v4());
    lane::open(&mut scene.conn, lane).await.unwrap();
    let (name, message) = (scene.topic.name.clone(), NewMessage::new("m"));
    let refused = transaction(&mut scene.conn, "send", async |conn| {
        enqueue_all(conn, &name, std::slice::from_ref(&message)).await?;
        match lane::advance(conn, lane, 7).await? {
            1 => Ok(()),
            found => Err(Error::Counts { operation: "send", expected: 1, found }),
        }
    });
    assert!(matches!(refused.await, Err(Error::Counts { .. })));
    assert_eq!(scene.hot().await.0, 0);
}

#[tokio::test]
async fn idle_lanes_are_pruned_and_used_ones_are_not() {
    let mut scene = Scene::new().await;
    let (idle, used) = (LaneId(Uuid::new_v4()), LaneId(Uuid::new_v4()));
    for lane in [idle, used] {
        lane::open(&mut scene.conn, lane).await.unwrap();
    }
    scene.sql("UPDATE queue_lane SET used_at = used_at - INTERVAL 2 HOUR").await;
    lane::advance(&mut scene.conn, used, 1).await.unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(store::prune::lanes(&mut scene.conn, hour, 10).await.unwrap(), 1);
    assert_eq!(lane::settled_seq(&mut scene.conn, idle).await.unwrap(), None);
    assert_eq!(lane::settled_seq(&mut scene.conn, used).await.unwrap(), Some(1));
    assert_eq!(number(&mut scene.conn, "SELECT COUNT(*) FROM queue_lane").await, 1);
}
