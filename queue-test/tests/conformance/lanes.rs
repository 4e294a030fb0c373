//! Lanes: how a producer learns whether a batch without a reply was committed.

use std::time::Duration;

use diesel_async::SimpleAsyncConnection;
use rowmq_core::connection::transaction;
use rowmq_core::store::enqueue::{insert, insert_in_lane};
use rowmq_core::store::inspect::{depth, peek};
use rowmq_core::store::lane::{self, Fenced, LaneId, LaneKind};
use rowmq_core::{AsyncMysqlConnection, Error, Fault, NewMessage, Result, Topic, store};
use rowmq_test::proxy::FaultProxy;
use rowmq_test::{connected, until};
use uuid::Uuid;

use crate::scene::{Scene, number, wait_for_locks};

/// Enqueues `n` messages in the lane, as its batch number `seq`.
async fn send(
    conn: &mut AsyncMysqlConnection,
    topic: &Topic,
    n: usize,
    lane: LaneId,
    seq: u64,
) -> Result<()> {
    let messages: Vec<_> = (0..n).map(|_| NewMessage::new("m")).collect();
    insert_in_lane(conn, topic.id, &messages, lane, seq).await
}

async fn open(conn: &mut AsyncMysqlConnection) -> LaneId {
    lane::open(conn, LaneKind::Passing, Uuid::new_v4()).await.unwrap()
}

#[tokio::test]
async fn a_lane_advances_one_by_one_and_a_batch_that_comes_otherwise_is_refused_whole() {
    for strict in [true, false] {
        let mut scene = Scene::new().await;
        if !strict {
            scene.sql("SET SESSION sql_mode = ''").await;
        }
        let (topic, conn) = (scene.topic.clone(), &mut scene.conn);
        let lane = open(conn).await;
        assert_eq!(lane::seq(conn, lane).await.unwrap(), Some(0));
        let mut stored = 0;
        for (seq, fits) in
            [(2, false), (1, true), (1, false), (3, false), (2, true), (1, false), (3, true)]
        {
            let sent = send(conn, &topic, 3, lane, seq).await;
            assert_eq!(sent.is_ok(), fits, "to {seq}: {sent:?}");
            if let Err(error) = sent {
                assert!(error.to_string().contains("out of range"), "{error}");
                assert!(!error.is_transient());
            }
            stored += if fits { 3 } else { 0 };
            assert_eq!(depth(conn, topic.id).await.unwrap().unsettled, stored, "to {seq}");
        }
        assert_eq!(lane::seq(conn, lane).await.unwrap(), Some(3));
        let other = LaneId { name: Uuid::new_v4(), ..lane };
        assert!(send(conn, &topic, 1, other, 4).await.is_err(), "its number is another lane's");
        assert_eq!(lane::seq(conn, other).await.unwrap(), None);
        lane::close(conn, other).await.unwrap();
        assert_eq!(lane::seq(conn, lane).await.unwrap(), Some(3));
        lane::close(conn, lane).await.unwrap();
        assert_eq!(lane::seq(conn, lane).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_lane_that_lost_its_row_gets_it_back_and_its_batch_is_stored() {
    let mut scene = Scene::new().await;
    let (topic, conn) = (scene.topic.clone(), &mut scene.conn);
    let lane = open(conn).await;
    send(conn, &topic, 1, lane, 1).await.unwrap();
    lane::close(conn, lane).await.unwrap();
    send(conn, &topic, 2, lane, 2).await.unwrap();
    assert_eq!(lane::seq(conn, lane).await.unwrap(), Some(2));
    assert_eq!(depth(conn, topic.id).await.unwrap().unsettled, 3);
    // Once the lane is closed, a batch in doubt stays in doubt.
    lane::close(conn, lane).await.unwrap();
    assert_eq!(lane::fence(conn, lane, 2).await.unwrap(), Fenced::Gone);
}

/// The query runs while the old connection's commit may still be in flight: it waits for that
/// commit.
#[tokio::test]
async fn a_fence_waits_until_every_transaction_on_the_lane_has_ended() {
    for (end, fenced) in [("COMMIT", Fenced::Stored), ("ROLLBACK", Fenced::NotStored)] {
        let mut scene = Scene::new().await;
        let (topic, lane) = (scene.topic.clone(), open(&mut scene.conn).await);
        let (mut sending, mut asking) = (scene.db.connect().await, scene.db.connect().await);
        wait_for_locks(&mut asking).await;
        sending.batch_execute("BEGIN").await.unwrap();
        send(&mut sending, &topic, 1, lane, 1).await.unwrap();
        let end = async {
            until("the question waits", async || scene.lock_waits().await > 0).await;
            sending.batch_execute(end).await.unwrap();
        };
        let (answer, ()) = tokio::join!(lane::fence(&mut asking, lane, 0), end);
        assert_eq!(answer.unwrap(), fenced);
    }
}

#[tokio::test]
async fn a_batch_that_arrives_after_its_lane_was_fenced_is_refused_and_may_be_asked_for_again() {
    let mut scene = Scene::new().await;
    let (topic, conn) = (scene.topic.clone(), &mut scene.conn);
    let lane = open(conn).await;
    for again in 0..2 {
        assert_eq!(lane::fence(conn, lane, 0).await.unwrap(), Fenced::NotStored, "{again}");
    }
    assert!(send(conn, &topic, 1, lane, 1).await.is_err());
    assert_eq!(depth(conn, topic.id).await.unwrap().unsettled, 0);
}

/// The whole sequence, as the producer uses it: the batch and the lane are committed together, so
/// after a lost reply the lane shows whether the messages are there.
#[tokio::test]
async fn after_a_lost_reply_the_lane_tells_whether_the_batch_was_committed() {
    let mut scene = Scene::new().await;
    let proxy = FaultProxy::start(scene.db.url()).await;
    let url = proxy.url(scene.db.url());
    let (topic, mut sent) = (scene.topic.clone(), 0);
    for in_transaction in [true, false] {
        let statement = if in_transaction { "COMMIT" } else { "INSERT INTO queue_message" };
        for arrives in [true, false] {
            let lane = open(&mut scene.conn).await;
            let mut conn = connected(&url).await;
            if arrives {
                proxy.drop_reply_after(statement);
            } else {
                proxy.cut_before(statement);
            }
            let lost = if in_transaction {
                let messages: Vec<_> = (0..10).map(|_| NewMessage::new("m")).collect();
                transaction(&mut conn, "send", async |conn| {
                    insert(conn, topic.id, &messages).await?;
                    send(conn, &topic, 10, lane, 1).await
                })
                .await
            } else {
                send(&mut conn, &topic, 20, lane, 1).await
            };
            assert_eq!(lost.unwrap_err().fault(), Fault::Gone);
            let fenced = lane::fence(&mut scene.conn, lane, 0).await.unwrap();
            assert_eq!(fenced, if arrives { Fenced::Stored } else { Fenced::NotStored });
            sent += if arrives { 20 } else { 0 };
            assert_eq!(scene.hot().await.0, sent);
        }
    }
}

#[tokio::test]
async fn a_batch_of_a_lane_that_stands_elsewhere_is_rolled_back_whole() {
    let mut scene = Scene::new().await;
    let lane = open(&mut scene.conn).await;
    let topic = scene.topic.clone();
    let refused = transaction(&mut scene.conn, "send", async |conn| {
        insert(conn, topic.id, &[NewMessage::new("m")]).await?;
        send(conn, &topic, 1, lane, 7).await
    });
    assert!(matches!(refused.await, Err(Error::Database { .. })));
    assert_eq!(scene.hot().await.0, 0);
}

#[tokio::test]
async fn a_lane_is_no_message() {
    let mut scene = Scene::new().await;
    let (topic, conn) = (scene.topic.clone(), &mut scene.conn);
    let lane = open(conn).await;
    assert_eq!(depth(conn, topic.id).await.unwrap().unsettled, 0);
    send(conn, &topic, 2, lane, 1).await.unwrap();
    let found = depth(conn, topic.id).await.unwrap();
    assert_eq!((found.unsettled, found.claimed), (2, 0));
    assert_eq!(peek(conn, topic.id, 10).await.unwrap().len(), 2);
    assert_eq!(scene.hot().await.0, 2);
}

#[tokio::test]
async fn a_durable_lane_stores_once_is_fenced_and_is_kept_when_passing_ones_are_pruned() {
    let mut scene = Scene::new().await;
    let (conn, topic) = (&mut scene.conn, scene.topic.clone());
    let lane = lane::open(conn, LaneKind::Durable, Uuid::new_v4()).await.unwrap();
    send(conn, &topic, 2, lane, 1).await.unwrap();
    send(conn, &topic, 2, lane, 1).await.expect_err("it stands elsewhere");
    assert_eq!(lane::fence(conn, lane, 0).await.unwrap(), Fenced::Stored);
    assert_eq!(lane::fence(conn, lane, 1).await.unwrap(), Fenced::NotStored);
    send(conn, &topic, 1, lane, 2).await.expect_err("it is late");
    scene.sql("UPDATE queue_message SET enqueued_at = enqueued_at - INTERVAL 2 HOUR").await;
    let (conn, hour) = (&mut scene.conn, Duration::from_secs(3600));
    assert_eq!(store::prune::lanes(conn, LaneKind::Passing, hour, 10).await.unwrap(), 0);
    assert_eq!(lane::seq(conn, lane).await.unwrap(), Some(3));
    assert_eq!(store::prune::lanes(conn, LaneKind::Durable, hour, 10).await.unwrap(), 1);
    assert_eq!(lane::seq(conn, lane).await.unwrap(), None);
    assert_eq!(scene.hot().await.0, 2, "no message is pruned");
}

#[tokio::test]
async fn idle_lanes_are_pruned_and_used_ones_are_not_nor_waited_for() {
    let mut scene = Scene::new().await;
    let topic = scene.topic.clone();
    let (idle, used) = (open(&mut scene.conn).await, open(&mut scene.conn).await);
    let busy = open(&mut scene.conn).await;
    scene.sql("UPDATE queue_message SET enqueued_at = enqueued_at - INTERVAL 2 HOUR").await;
    for lane in [used, busy] {
        send(&mut scene.conn, &topic, 1, lane, 1).await.unwrap();
    }
    let mut sending = scene.db.connect().await;
    sending.batch_execute("BEGIN").await.unwrap();
    send(&mut sending, &topic, 1, busy, 2).await.unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!(store::prune::lanes(&mut scene.conn, LaneKind::Passing, hour, 10).await.unwrap(), 1);
    sending.batch_execute("COMMIT").await.unwrap();
    assert_eq!(lane::seq(&mut scene.conn, idle).await.unwrap(), None);
    assert_eq!(lane::seq(&mut scene.conn, used).await.unwrap(), Some(1));
    assert_eq!(lane::seq(&mut scene.conn, busy).await.unwrap(), Some(2));
    let lanes = "SELECT COUNT(*) FROM queue_message WHERE topic_id = 0";
    assert_eq!(number(&mut scene.conn, lanes).await, 2);
    assert_eq!(scene.hot().await.0, 3, "no message is pruned");
}
