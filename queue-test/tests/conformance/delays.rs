//! Messages that become ready later, are cancelled before, or come too late.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::handler::{Context, HandlerError, RawHandler};
use rowmq_core::store::scheduled::{self, Reach};
use rowmq_core::store::topic::server_time;
use rowmq_core::{
    AsyncMysqlConnection, Moment, MsgId, NewMessage, TopicName, cancel, enqueue, enqueue_all,
    reschedule,
};
use rowmq_test::{TestQueue, until};

use crate::moves::promote;
use crate::scene::{Scene, bodies, claim_n, wait_for_locks};

const HOUR: Duration = Duration::from_secs(3600);

/// Handles every message and does nothing.
struct Quiet;

impl RawHandler for Quiet {
    async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
        Ok(())
    }
}

async fn queue() -> (TestQueue, TopicName, AsyncMysqlConnection) {
    let queue = TestQueue::new().await;
    let topic = queue.topic("t").await.name;
    let conn = queue.connect().await;
    (queue, topic, conn)
}

async fn now(conn: &mut AsyncMysqlConnection) -> DateTime<Utc> {
    server_time(conn).await.unwrap().and_utc()
}

#[tokio::test]
async fn a_delayed_message_is_ready_when_its_time_has_come_and_not_before() {
    let (queue, topic, mut conn) = queue().await;
    let at = now(&mut conn).await + TimeDelta::hours(2);
    let messages = [
        NewMessage::new("now"),
        NewMessage::new("in an hour").with_delay(HOUR).with_key("k").with_header("a", "1"),
        NewMessage::new("at two").with_deliver_at(at).with_biz_id("b"),
    ];
    let all = async |conn: &mut _| enqueue_all(conn, &topic, &messages).await;
    transaction(&mut conn, "enqueue", all).await.unwrap();
    assert_eq!(queue.depth("t").await.scheduled, 2);
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 1);
    queue.advance(HOUR - Duration::from_secs(60)).await;
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 0);
    queue.advance(Duration::from_secs(60)).await;
    assert_eq!(promote(&mut conn, 10).await, 1);
    let found = queue.messages("t").await.remove(0);
    assert_eq!((found.msg_id, found.body), (messages[1].msg_id, b"in an hour".to_vec()));
    assert_eq!((found.key.as_deref(), found.headers.get("a")), (Some("k"), Some("1")));
    assert!(queue.depth("t").await.oldest_age_ms < Some(3_600_000), "it is as old as its moment");
    queue.advance(HOUR).await;
    assert_eq!(promote(&mut conn, 10).await, 1);
    let found = queue.messages("t").await.remove(1);
    assert_eq!((found.msg_id, found.biz_id.as_deref()), (messages[2].msg_id, Some("b")));
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 2);
}

/// A message that was resent until its moment had passed is late, not wrong.
#[tokio::test]
async fn a_moment_that_has_passed_means_at_once() {
    let (queue, topic, mut conn) = queue().await;
    let past = now(&mut conn).await - TimeDelta::days(3000);
    let message = NewMessage::new("late").with_deliver_at(past);
    enqueue(&mut conn, &topic, &message).await.unwrap();
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 1);
}

#[tokio::test]
async fn what_never_could_be_handled_is_refused_before_anything_is_sent() {
    let (queue, topic, mut conn) = queue().await;
    let new = || NewMessage::new("x");
    let end = DateTime::<Utc>::MAX_UTC;
    for (message, part) in [
        (new().with_delay(Duration::MAX), "moment of delivery cannot be: it is more than ten"),
        (new().with_deliver_at(end), "moment of delivery cannot be: its year"),
        (new().with_expires_at(end), "expiry cannot be: its year"),
        (new().with_delay(HOUR).with_expiry(HOUR), "not after the moment of delivery"),
        (new().with_expiry(Duration::ZERO), "not after the moment of delivery"),
    ] {
        let refused = enqueue(&mut conn, &topic, &message).await.unwrap_err().to_string();
        assert!(refused.contains(part), "{refused}");
    }
    let id = MsgId::new();
    let refused = reschedule(&mut conn, &topic, id, Moment::After(Duration::MAX)).await;
    assert!(refused.unwrap_err().to_string().contains("more than ten years"));
    let nowhere = TopicName::new("nowhere").unwrap();
    assert!(cancel(&mut conn, &nowhere, id).await.unwrap_err().to_string().contains("no topic"));
    assert_eq!(queue.depth("t").await.scheduled, 0);
}

#[tokio::test]
async fn a_message_can_be_cancelled_and_rescheduled_until_it_is_ready() {
    let (queue, topic, mut conn) = queue().await;
    let [cancelled, moved, ready] =
        ["cancelled", "moved", "ready"].map(|body| NewMessage::new(body).with_delay(HOUR));
    for message in [&cancelled, &moved, &ready] {
        enqueue(&mut conn, &topic, message).await.unwrap();
    }
    let soon = Moment::After(Duration::ZERO);
    assert!(reschedule(&mut conn, &topic, moved.msg_id, Moment::After(HOUR * 5)).await.unwrap());
    assert!(reschedule(&mut conn, &topic, ready.msg_id, soon).await.unwrap());
    assert!(cancel(&mut conn, &topic, cancelled.msg_id).await.unwrap());
    assert!(!cancel(&mut conn, &topic, cancelled.msg_id).await.unwrap(), "it is gone");
    assert_eq!(promote(&mut conn, 10).await, 1);
    for id in [ready.msg_id, MsgId::new()] {
        assert!(!cancel(&mut conn, &topic, id).await.unwrap());
        assert!(!reschedule(&mut conn, &topic, id, soon).await.unwrap());
    }
    queue.advance(HOUR * 4).await;
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 1);
    queue.advance(HOUR).await;
    assert_eq!(queue.drain_raw("t", &Quiet).await.acked, 1);
    assert_eq!(queue.depth("t").await.scheduled, 0);
}

/// The main use: cancel the old reminder and schedule another, in the kind of transaction that both
/// servers begin by default. The old one may be gone already; the cancel must then lock nothing.
#[tokio::test]
async fn two_who_cancel_in_vain_and_enqueue_anew_do_not_wait_for_each_other() {
    let (queue, topic, mut a) = queue().await;
    let mut b = queue.connect().await;
    let old = NewMessage::new("old").with_delay(HOUR);
    for conn in [&mut a, &mut b] {
        let begin = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
             SET SESSION innodb_lock_wait_timeout = 1; BEGIN";
        conn.batch_execute(begin).await.unwrap();
        assert!(!cancel(conn, &topic, MsgId::new()).await.unwrap());
        conn.batch_execute(&format!("CALL queue_cancel('t', '{}')", MsgId::new())).await.unwrap();
    }
    for conn in [&mut a, &mut b] {
        enqueue(conn, &topic, &old).await.unwrap();
    }
    for conn in [&mut a, &mut b] {
        conn.batch_execute("COMMIT").await.unwrap();
    }
    assert_eq!(queue.depth("t").await.scheduled, 2);
}

/// Each message is either promoted or cancelled, whichever comes first, and never both.
#[tokio::test]
async fn cancelling_what_is_being_promoted_leaves_each_message_in_one_place() {
    const N: usize = 200;
    let (queue, topic, mut conn) = queue().await;
    let messages: Vec<_> =
        (0..N).map(|_| NewMessage::new("x").with_delay(Duration::ZERO)).collect();
    enqueue_all(&mut conn, &topic, &messages).await.unwrap();
    let mut promoter = queue.connect().await;
    wait_for_locks(&mut promoter).await;
    let promoting = async {
        let mut promoted = 0;
        while queue.depth("t").await.scheduled > 0 {
            promoted += promote(&mut promoter, 3).await;
        }
        promoted
    };
    let cancelling = join_all(messages.chunks(N / 2).map(async |messages| {
        let mut conn = queue.connect().await;
        wait_for_locks(&mut conn).await;
        let mut cancelled = 0;
        for message in messages.iter().rev() {
            let work = async |conn: &mut _| cancel(conn, &topic, message.msg_id).await;
            cancelled += usize::from(transaction(&mut conn, "cancel", work).await.unwrap());
        }
        cancelled
    }));
    let (promoted, cancelled) = tokio::join!(promoting, cancelling);
    assert_eq!(promoted + cancelled.iter().sum::<usize>(), N);
    assert_eq!(queue.messages("t").await.len(), promoted);
}

/// Late promotions leave entries that a recent look need not read, and a message that commits long
/// after its due time is found nevertheless.
#[tokio::test]
async fn a_recent_look_passes_over_what_is_long_due_and_a_full_look_finds_it() {
    let mut scene = Scene::new().await;
    let message = NewMessage::new("x").with_delay(Duration::ZERO);
    enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    until("what has just come due is found", async || {
        scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
        scheduled::lock_due(&mut scene.conn, Reach::Recent, 10).await.unwrap().len() == 1
    })
    .await;
    scene.sql("UPDATE queue_scheduled SET due_at = due_at - INTERVAL 1 MINUTE").await;
    let conn = &mut scene.conn;
    assert_eq!(scheduled::lock_due(conn, Reach::Recent, 10).await.unwrap(), []);
    assert_eq!(scheduled::next_due(conn, Reach::Recent).await.unwrap(), None);
    assert_eq!(scheduled::next_due(conn, Reach::All).await.unwrap(), Some(Duration::ZERO));
    let due = scheduled::lock_due(conn, Reach::All, 10).await.unwrap();
    assert!(due[0].late >= Duration::from_secs(60));
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR").await;
    let wait = scheduled::next_due(&mut scene.conn, Reach::Recent).await.unwrap().unwrap();
    assert!(wait > HOUR - Duration::from_secs(60) && wait <= HOUR);
}

#[tokio::test]
async fn an_expired_message_is_discarded_and_its_reason_kept() {
    let (queue, topic, mut conn) = queue().await;
    let at = now(&mut conn).await + TimeDelta::minutes(30);
    for message in [
        NewMessage::new("lasting"),
        NewMessage::new("expired").with_expiry(HOUR / 2),
        NewMessage::new("expired").with_expires_at(at),
        NewMessage::new("expired while it waited").with_delay(HOUR / 2).with_expiry(HOUR / 4 * 3),
        NewMessage::new("in time").with_expiry(HOUR * 2),
    ] {
        enqueue(&mut conn, &topic, &message).await.unwrap();
    }
    queue.advance(HOUR).await;
    let drained = queue.drain_raw("t", &Quiet).await;
    assert_eq!((drained.acked, drained.discarded), (2, 3));
    let mut scene = conn;
    let sql = "SELECT COUNT(*) FROM queue_archive WHERE outcome = 'discarded' \
         AND reason LIKE '%expired before its handler%'";
    assert_eq!(crate::scene::number(&mut scene, sql).await, 3);
}

/// A retry takes the expiry with it.
#[tokio::test]
async fn a_message_that_expires_between_its_attempts_is_not_tried_again() {
    struct Fails;
    impl RawHandler for Fails {
        async fn handle(&self, _: &Context) -> Result<(), HandlerError> {
            Err(HandlerError::RetryAfter(HOUR, "not yet".into()))
        }
    }
    let (queue, topic, mut conn) = queue().await;
    let message = NewMessage::new("x").with_expiry(HOUR / 2);
    enqueue(&mut conn, &topic, &message).await.unwrap();
    assert_eq!(queue.drain_raw("t", &Fails).await.retried, 1);
    queue.advance(HOUR).await;
    assert_eq!(queue.drain_raw("t", &Fails).await.discarded, 1);
}

/// Seed 002: five stars 48 hours after the ride, unless the passenger has rated it.
#[tokio::test]
async fn a_ride_that_nobody_rates_gets_five_stars_after_48_hours() {
    struct FiveStars;
    impl RawHandler for FiveStars {
        async fn handle(&self, context: &Context) -> Result<(), HandlerError> {
            let ride = String::from_utf8_lossy(&context.delivery.body).into_owned();
            assert_eq!(ride, "2", "only the second ride was not rated");
            Ok(())
        }
    }
    let (queue, topic, mut conn) = queue().await;
    let table = "CREATE TABLE ride (id INT PRIMARY KEY, stars INT, reminder BINARY(16))";
    conn.batch_execute(table).await.unwrap();
    let ends = async |conn: &mut AsyncMysqlConnection, ride: i32| {
        let message = NewMessage::new(ride.to_string()).with_delay(HOUR * 48);
        let id = enqueue(conn, &topic, &message).await?.msg_id();
        diesel::sql_query("INSERT INTO ride VALUES (?, NULL, ?)")
            .bind::<diesel::sql_types::Integer, _>(ride)
            .bind::<diesel::sql_types::Binary, _>(id.as_bytes().to_vec())
            .execute(conn)
            .await
            .unwrap();
        rowmq_core::Result::Ok(id)
    };
    let first = transaction(&mut conn, "end a ride", async |conn| ends(conn, 1).await);
    let first = first.await.unwrap();
    transaction(&mut conn, "end a ride", async |conn| ends(conn, 2).await).await.unwrap();
    queue.advance(HOUR * 47).await;
    let rate = transaction(&mut conn, "rate a ride", async |conn| {
        conn.batch_execute("UPDATE ride SET stars = 3 WHERE id = 1").await.unwrap();
        cancel(conn, &topic, first).await
    });
    assert!(rate.await.unwrap());
    assert_eq!(queue.drain_raw("t", &FiveStars).await.acked, 0);
    queue.advance(HOUR).await;
    assert_eq!(queue.drain_raw("t", &FiveStars).await.acked, 1);
}

/// A batch takes several statements: all of it or nothing, and in order.
#[tokio::test]
async fn what_is_due_together_is_promoted_in_the_order_in_which_it_was_enqueued() {
    let mut scene = Scene::new().await;
    let at = now(&mut scene.conn).await;
    let messages: Vec<_> =
        (0..50).map(|n| NewMessage::new(n.to_string()).with_deliver_at(at)).collect();
    enqueue_all(&mut scene.conn, &scene.topic.name, &messages).await.unwrap();
    while promote(&mut scene.conn, 20).await > 0 {}
    let got = claim_n(&scene.worker().await, scene.topic.id, 50).await;
    let expected: Vec<_> = (0..50).map(|n: usize| n.to_string()).collect();
    assert_eq!(bodies(&got), expected);
}
