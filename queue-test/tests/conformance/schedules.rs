//! Recurring messages: each tick is enqueued once, by any number of processes.

use std::num::NonZeroU64;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::join_all;
use rowmq_core::connection::transaction;
use rowmq_core::model::{
    Access, Backlog, Missed, Recurrence, Schedule, ScheduleName, TopicSettings,
};
use rowmq_core::schedule;
use rowmq_core::store::backlog;
use rowmq_core::store::schedule::{self as stored, ScheduleState};
use rowmq_core::store::topic::set_access;
use rowmq_core::{AsyncMysqlConnection, Error, NewMessage, TopicName, enqueue};
use rowmq_test::until;

use crate::scene::Scene;

fn schedule(cron: &str, zone: &str, missed: Missed) -> Schedule {
    let name = ScheduleName::new("nightly").unwrap();
    let topic = TopicName::new("t").unwrap();
    let recurrence = Recurrence::new(cron, zone).unwrap();
    let body = b"report".to_vec();
    Schedule { missed, body, ..Schedule::new(name, topic, recurrence) }
}

async fn tick(conn: &mut AsyncMysqlConnection, name: &ScheduleName) -> usize {
    transaction(conn, "tick", async |conn| schedule::tick(conn, name).await).await.unwrap()
}

async fn state(conn: &mut AsyncMysqlConnection) -> ScheduleState {
    stored::all(conn).await.unwrap().remove(0)
}

impl Scene {
    /// Sets the schedule with `next` as its next tick.
    async fn set_at(&mut self, schedule: &Schedule, next: &str) {
        schedule::set(&mut self.conn, schedule).await.unwrap();
        self.sql(&format!("UPDATE queue_schedule SET next_at = '{next}'")).await;
    }
}

/// About a thousand days in Berlin, over six clock changes, at an hour that is missing on one day a
/// year and comes twice on another.
#[tokio::test]
async fn a_thousand_ticks_of_two_processes_are_a_thousand_messages() {
    let mut scene = Scene::new().await;
    let nightly = schedule("30 2 * * *", "Europe/Berlin", Missed::All);
    scene.set_at(&nightly, "2024-01-31 01:30:00").await;
    let now = rowmq_core::store::topic::server_time(&mut scene.conn).await.unwrap().and_utc();
    let first: DateTime<Utc> = "2024-01-31T01:30:00Z".parse().unwrap();
    let expected = std::iter::successors(Some(first), |at| nightly.recurrence.next_after(*at))
        .take_while(|at| *at <= now)
        .count();
    assert!(expected > 1000 && expected as i64 == (now - first).num_days() + 1);
    let enqueued = join_all((0..2).map(async |_| {
        let mut conn = scene.db.connect().await;
        let mut enqueued = 0;
        loop {
            let n = tick(&mut conn, &nightly.name).await;
            enqueued += n;
            if n == 0 && state(&mut conn).await.next_at.is_some_and(|next| next > now) {
                return enqueued;
            }
        }
    }));
    let enqueued: usize = enqueued.await.iter().sum();
    assert_eq!(enqueued, expected);
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, expected as i64);
    let distinct = "SELECT COUNT(DISTINCT biz_id) FROM queue_message WHERE body = 'report'";
    assert_eq!(scene.number(distinct).await, expected as i64);
    assert_eq!(state(&mut scene.conn).await.ticks, expected as u64);
}

#[tokio::test]
async fn a_process_that_dies_in_its_tick_leaves_it_to_another() {
    use diesel_async::SimpleAsyncConnection;
    let mut scene = Scene::new().await;
    let nightly = schedule("0 2 * * *", "UTC", Missed::Once);
    scene.set_at(&nightly, "2026-01-01 02:00:00").await;
    let mut dying = scene.db.connect().await;
    dying.batch_execute("BEGIN").await.unwrap();
    assert_eq!(schedule::tick(&mut dying, &nightly.name).await.unwrap(), 1);
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 0, "another is at it");
    drop(dying);
    let mut enqueued = 0;
    until("the dead one's lock is gone", async || {
        enqueued += tick(&mut scene.conn, &nightly.name).await;
        enqueued > 0
    })
    .await;
    assert_eq!(scene.number("SELECT COUNT(*) FROM queue_message").await, 1);
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 0);
}

#[tokio::test]
async fn a_schedule_that_recurs_as_before_keeps_its_next_tick() {
    let mut scene = Scene::new().await;
    let mut nightly = schedule("0 2 * * *", "UTC", Missed::Once);
    scene.set_at(&nightly, "2026-01-01 02:00:00").await;
    nightly.body = b"other".to_vec();
    schedule::set(&mut scene.conn, &nightly).await.unwrap();
    let kept = state(&mut scene.conn).await;
    assert_eq!(kept.next_at, Some("2026-01-01T02:00:00Z".parse().unwrap()));
    assert_eq!(kept.schedule, nightly);
    nightly.recurrence = Recurrence::new("0 3 * * *", "UTC").unwrap();
    let set = schedule::set(&mut scene.conn, &nightly).await.unwrap();
    assert_eq!(state(&mut scene.conn).await, set);
    scene.sql("UPDATE queue_schedule SET next_at = next_at + INTERVAL 1 YEAR").await;
    let again = schedule::set(&mut scene.conn, &nightly).await.unwrap();
    assert_eq!(again.next_at, set.next_at, "a clock that was ahead does not silence it");
}

#[tokio::test]
async fn a_paused_schedule_does_not_tick_and_what_it_left_out_is_not_missed() {
    let mut scene = Scene::new().await;
    let nightly = schedule("0 2 * * *", "UTC", Missed::All);
    scene.set_at(&nightly, "2026-01-01 02:00:00").await;
    stored::pause(&mut scene.conn, &nightly.name).await.unwrap();
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 0);
    assert_eq!(stored::next(&mut scene.conn, 10).await.unwrap(), []);
    assert!(schedule::set(&mut scene.conn, &nightly).await.unwrap().paused, "it stays so");
    schedule::resume(&mut scene.conn, &nightly.name).await.unwrap();
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 0);
    scene.sql("UPDATE queue_schedule SET next_at = '2026-01-01 02:00:00'").await;
    schedule::resume(&mut scene.conn, &nightly.name).await.unwrap();
    assert!(tick(&mut scene.conn, &nightly.name).await > 0, "it was not paused: ticks are missed");
    scene.sql("UPDATE queue_schedule SET next_at = UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE").await;
    let next = stored::next(&mut scene.conn, 10).await.unwrap();
    assert!(next.len() == 1 && next[0].wait <= Duration::from_secs(60));
    stored::delete(&mut scene.conn, &nightly.name).await.unwrap();
    for result in [
        stored::pause(&mut scene.conn, &nightly.name).await,
        schedule::resume(&mut scene.conn, &nightly.name).await,
        stored::delete(&mut scene.conn, &nightly.name).await,
    ] {
        assert!(matches!(result, Err(Error::UnknownSchedule { .. })), "{result:?}");
    }
}

/// The ticks of a paused topic wait, and then count as missed.
#[tokio::test]
async fn a_paused_topic_holds_its_schedules_back() {
    let mut scene = Scene::new().await;
    let nightly = schedule("* * * * *", "UTC", Missed::Once);
    scene.set_at(&nightly, "2026-01-01 02:00:00").await;
    set_access(&mut scene.conn, &scene.topic.name, Access::ReadOnly).await.unwrap();
    assert_eq!(stored::next(&mut scene.conn, 10).await.unwrap(), []);
    let paused = transaction(&mut scene.conn, "tick", async |conn| {
        schedule::tick(conn, &nightly.name).await
    });
    assert!(matches!(paused.await, Err(Error::TopicPaused { .. })));
    set_access(&mut scene.conn, &scene.topic.name, Access::ReadWrite).await.unwrap();
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 1);
    let state = state(&mut scene.conn).await;
    assert!(state.next_at.unwrap() - state.last_at.unwrap() == TimeDelta::minutes(1));
}

/// Ticks that a schedule promised before are not refused.
#[tokio::test]
async fn a_full_topic_takes_the_ticks_of_its_schedules() {
    let max_depth = NonZeroU64::new(1000);
    let mut scene = Scene::with(&TopicSettings { max_depth, ..TopicSettings::default() }).await;
    let nightly = schedule("* * * * *", "UTC", Missed::Once);
    scene.set_at(&nightly, "2026-01-01 02:00:00").await;
    let (topic, full) = (scene.topic.clone(), Backlog { depth: 1000, bytes: None, full: true });
    let write = async |conn: &mut _| backlog::publish(conn, &topic, full).await;
    assert!(transaction(&mut scene.conn, "write", write).await.unwrap());
    let refused = enqueue(&mut scene.conn, &topic.name, &NewMessage::new("m")).await;
    assert!(matches!(refused, Err(Error::TopicFull { .. })), "{refused:?}");
    assert_eq!(tick(&mut scene.conn, &nightly.name).await, 1);
}

#[tokio::test]
async fn what_cannot_recur_or_be_taken_is_refused() {
    let mut scene = Scene::new().await;
    let mut wrong = schedule("0 0 30 2 *", "UTC", Missed::Once);
    let refused = schedule::set(&mut scene.conn, &wrong).await.unwrap_err().to_string();
    assert!(refused.contains("has no tick"), "{refused}");
    wrong = schedule("* * * * *", "UTC", Missed::Once);
    wrong.body = vec![0; scene.topic.settings.body_limit as usize + 1];
    let refused = schedule::set(&mut scene.conn, &wrong).await;
    assert!(matches!(refused, Err(Error::BodyTooLarge { .. })));
    wrong.topic = TopicName::new("nowhere").unwrap();
    let refused = schedule::set(&mut scene.conn, &wrong).await;
    assert!(matches!(refused, Err(Error::UnknownTopic { .. })));
    assert_eq!(stored::all(&mut scene.conn).await.unwrap(), []);
}

#[tokio::test]
async fn the_schedules_of_a_topic_go_and_those_of_others_stay() {
    let mut scene = Scene::new().await;
    let other = scene.db.topic("other").await;
    let nightly = schedule("@daily", "UTC", Missed::Once);
    let daily = Schedule {
        name: ScheduleName::new("daily").unwrap(),
        topic: other.name.clone(),
        ..nightly.clone()
    };
    let next = "2999-01-01T00:00:00Z".parse().unwrap();
    stored::put(&mut scene.conn, &nightly, scene.topic.id, next).await.unwrap();
    stored::put(&mut scene.conn, &daily, other.id, next).await.unwrap();
    assert_eq!(stored::delete_of_topic(&mut scene.conn, other.id).await.unwrap(), 1);
    let left = state(&mut scene.conn).await;
    assert_eq!((left.schedule, left.next_at), (nightly, Some(next)));
}
