//! The lookup of searchable topics: it contains every message, with the message's actual row.

use std::time::Duration;

use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::{
    OnDone, Recurrence, RowId, Schedule, ScheduleName, Settlement, TopicSettings,
};
use rowmq_core::schedule;
use rowmq_core::store::enqueue::insert_in_lane;
use rowmq_core::store::lane::LaneKind;
use rowmq_core::store::lookup::{self, Placed};
use rowmq_core::store::{lane, topic};
use rowmq_core::worker::Settled;
use rowmq_core::{MsgId, NewMessage, TopicName, enqueue, enqueue_all};
use uuid::Uuid;

use crate::find::searchable;
use crate::moves::promote;
use crate::scene::{Scene, claim_n, retry, settle, wait_for_locks};

const DAY: Duration = Duration::from_secs(86_400);

impl Scene {
    /// Counts the messages that the lookup lacks, and the entries that name another row than the
    /// message's.
    async fn astray(&mut self) -> (i64, i64) {
        let missing = "SELECT (SELECT COUNT(*) FROM queue_message m LEFT JOIN queue_lookup l \
             ON l.topic_id = m.topic_id AND l.msg_id = m.msg_id AND l.row_id = m.id \
             WHERE m.topic_id > 0 AND l.msg_id IS NULL) + (SELECT COUNT(*) FROM queue_scheduled s \
             LEFT JOIN queue_lookup l ON l.topic_id = s.topic_id AND l.msg_id = s.msg_id \
             WHERE l.msg_id IS NULL)";
        let wrong = "SELECT COUNT(*) FROM queue_lookup l LEFT JOIN queue_message m \
             ON m.id = l.row_id WHERE l.row_id IS NOT NULL AND (m.id IS NULL OR m.msg_id <> l.msg_id)";
        (self.number(missing).await, self.number(wrong).await)
    }
}

fn mixed(n: usize) -> Vec<NewMessage> {
    let message = |at: usize| match at % 5 {
        0 => NewMessage::new("later").with_delay(DAY),
        1 => NewMessage::new("keyed").with_key("k").with_biz_id(at.to_string()),
        2 => NewMessage::new("ends").with_expiry(DAY),
        _ => NewMessage::new("bare"),
    };
    (0..n).map(message).collect()
}

/// By the library, by lanes, by SQL and by a schedule, all at once: each asks the server which ids
/// its rows got, while others get theirs.
#[tokio::test]
async fn every_way_to_enqueue_enters_the_row_that_the_message_has() {
    let mut scene = Scene::with(&searchable()).await;
    let name = &scene.topic.name;
    let library = join_all((0..3).map(async |_| {
        let mut conn = scene.db.connect().await;
        for n in [1, 2, 7, 100, 1000, 1500] {
            let messages = mixed(n);
            let all = async |conn: &mut _| enqueue_all(conn, name, &messages).await;
            transaction(&mut conn, "enqueue", all).await.unwrap();
        }
    }));
    let lanes = join_all((0..3).map(async |_| {
        let mut conn = scene.db.connect().await;
        let lane = lane::open(&mut conn, LaneKind::Passing, Uuid::new_v4()).await.unwrap();
        for (n, seq) in [1, 3, 64, 500, 1000].into_iter().zip(1..) {
            let messages: Vec<_> = (0..n).map(|_| NewMessage::new("m")).collect();
            let send = async |conn: &mut _| {
                insert_in_lane(conn, scene.topic.id, &messages, lane, seq).await?;
                lookup::insert(conn, scene.topic.id, &messages, Placed::Ready).await
            };
            transaction(&mut conn, "send", send).await.unwrap();
        }
    }));
    let sql = async {
        let mut conn = scene.db.connect().await;
        for _ in 0..100 {
            for call in [
                r#"CALL queue_send('t', 'b', '{"key":"k","biz_id":"z"}')"#,
                r#"CALL queue_send('t', 'b', '{"deliver_at":"2099-01-01","biz_id":"z"}')"#,
            ] {
                diesel_async::SimpleAsyncConnection::batch_execute(&mut conn, call).await.unwrap();
            }
        }
    };
    let ticks = async {
        let mut conn = scene.db.connect().await;
        let recurrence = Recurrence::new("* * * * *", "UTC").unwrap();
        let schedule = Schedule::new(
            ScheduleName::new("s").unwrap(),
            TopicName::new("t").unwrap(),
            recurrence,
        );
        schedule::set(&mut conn, &schedule).await.unwrap();
        for _ in 0..20 {
            let past = "UPDATE queue_schedule SET next_at = UTC_TIMESTAMP(6) - INTERVAL 1 MINUTE";
            diesel_async::SimpleAsyncConnection::batch_execute(&mut conn, past).await.unwrap();
            let tick = async |conn: &mut _| schedule::tick(conn, &schedule.name).await;
            assert!(transaction(&mut conn, "tick", tick).await.unwrap() > 0);
        }
    };
    tokio::join!(library, lanes, sql, ticks);
    assert_eq!(scene.astray().await, (0, 0));
    let all = 3 * 2610 + 3 * 1568 + 200;
    assert!(scene.number("SELECT COUNT(*) FROM queue_lookup").await >= all + 20);
}

#[tokio::test]
async fn moves_of_many_among_others_enter_the_new_rows() {
    let mut scene = Scene::with(&searchable()).await;
    let plain = scene.db.topic("plain").await;
    let worker = scene.worker().await;
    for round in 0..4 {
        scene.enqueue(300).await;
        let noise: Vec<_> = (0..50).map(|_| NewMessage::new("n").with_delay(DAY)).collect();
        enqueue_all(&mut scene.conn, &plain.name, &noise).await.unwrap();
        let got = claim_n(&worker, scene.topic.id, 300).await;
        let settled: Vec<_> = got
            .iter()
            .map(|one| Settled::new(one, retry(Duration::ZERO), OnDone::Delete))
            .collect();
        settle(&worker, settled).await;
        scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND").await;
        // Two promoters, and a producer that enqueues at the same time.
        let (mut a, mut b, mut c) =
            (scene.db.connect().await, scene.db.connect().await, scene.db.connect().await);
        wait_for_locks(&mut c).await;
        let promoting = async |conn: &mut _| while promote(conn, 90).await > 0 {};
        let more = async {
            for _ in 0..30 {
                enqueue(&mut c, &plain.name, &NewMessage::new("m")).await.unwrap();
            }
        };
        tokio::join!(promoting(&mut a), promoting(&mut b), more);
        scene.sql(&format!("DELETE FROM queue_message WHERE topic_id = {}", plain.id.0)).await;
        assert_eq!(scene.astray().await, (0, 0), "{round}");
    }
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_lookup").await, 1200);
}

#[tokio::test]
async fn topics_that_are_not_searchable_enter_nothing() {
    let mut scene = Scene::new().await;
    enqueue_all(&mut scene.conn, &scene.topic.name, &mixed(50)).await.unwrap();
    scene.sql("CALL queue_send('t', 'b', NULL)").await;
    scene.sql("UPDATE queue_scheduled SET due_at = UTC_TIMESTAMP(6)").await;
    assert!(promote(&mut scene.conn, 100).await > 0);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_lookup").await, 0);
    // Once it is switched on, messages are entered as they are moved.
    let name = scene.topic.name.clone();
    topic::set(&mut scene.conn, &name, &searchable()).await.unwrap();
    let worker = scene.worker().await;
    let got = claim_n(&worker, scene.topic.id, 5).await;
    let back = got.iter().map(|one| Settled::new(one, retry(Duration::ZERO), OnDone::Delete));
    settle(&worker, back.collect()).await;
    assert_eq!(promote(&mut scene.conn, 100).await, 5);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_lookup").await, 5);
}

/// An id that is sent again is entered again, and no caller's transaction locks a gap.
#[tokio::test]
async fn an_id_that_comes_again_is_the_last_one() {
    let mut scene = Scene::with(&searchable()).await;
    let message = NewMessage::new("m");
    let twice = [message.clone(), message.clone()];
    enqueue_all(&mut scene.conn, &scene.topic.name, &twice).await.unwrap();
    enqueue(&mut scene.conn, &scene.topic.name, &message).await.unwrap();
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_lookup").await, 1);
    let last = "SELECT MAX(id) - (SELECT row_id FROM queue_lookup) FROM queue_message";
    assert_eq!(scene.number(last).await, 0);
}

#[tokio::test]
async fn an_entry_goes_when_its_time_is_over_and_its_message_is_nowhere() {
    let mut scene =
        Scene::with(&TopicSettings { on_done: OnDone::Keep(DAY), ..searchable() }).await;
    let id = scene.topic.id;
    let sent = scene.enqueue(6).await;
    let later = NewMessage::new("m").with_delay(DAY);
    enqueue(&mut scene.conn, &scene.topic.name, &later).await.unwrap();
    let worker = scene.worker().await;
    let got = claim_n(&worker, id, 4).await;
    settle(&worker, vec![Settled::new(&got[0], Settlement::Ack, OnDone::Delete)]).await;
    settle(&worker, vec![Settled::new(&got[1], Settlement::Ack, OnDone::Keep(DAY))]).await;
    settle(&worker, vec![Settled::new(&got[2], Settlement::Ack, OnDone::Delete)]).await;
    let conn = &mut scene.conn;
    assert_eq!(lookup::topics(conn).await.unwrap()[0].time, Some(DAY));
    assert_eq!(lookup::aged(conn, id, DAY, None, 10).await.unwrap(), lookup::Aged::default());
    let none = Duration::ZERO;
    let ended =
        |which: &[usize]| -> Vec<MsgId> { which.iter().map(|at| sent[*at].msg_id).collect() };
    let aged = lookup::aged(conn, id, none, None, 10).await.unwrap();
    assert_eq!((aged.ended.clone(), aged.next), (ended(&[0, 2]), None));
    // The same, stretch by stretch.
    let (mut from, mut found, mut rounds) = (None, Vec::new(), 0);
    loop {
        let some = lookup::aged(conn, id, none, from, 2).await.unwrap();
        found.extend(some.ended);
        (from, rounds) = (some.next, rounds + 1);
        if from.is_none() {
            break;
        }
    }
    assert_eq!((found, rounds), (ended(&[0, 2]), 4));
    // One of them is enqueued again before it is pruned.
    assert_eq!(lookup::prune(conn, id, DAY, &aged.ended).await.unwrap(), 0);
    assert_eq!(lookup::prune(conn, id, none, &aged.ended).await.unwrap(), 2);
    assert_eq!(lookup::topics(conn).await.unwrap().len(), 1);
    assert_eq!(lookup::drop_some(conn, id, 3).await.unwrap(), 3);
    assert_eq!(lookup::drop_some(conn, id, 3).await.unwrap(), 2);
    lookup::follow(conn, id, id, RowId(0), &[sent[4].msg_id]).await.unwrap();
    assert!(lookup::is_kept_for(conn, id).await.unwrap());
}
