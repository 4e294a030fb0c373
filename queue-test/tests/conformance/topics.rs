//! Topics: their names, settings and pauses.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use rowmq_core::model::{
    Access, HeaderFilter, Limits, OnDone, Retention, RetryPolicy, Sampling, TopicSettings, WhenFull,
};
use rowmq_core::store::topic;
use rowmq_core::{Error, TopicName};

use crate::scene::Scene;

fn name(text: &str) -> TopicName {
    TopicName::new(text).unwrap()
}

#[tokio::test]
async fn names_are_compared_byte_for_byte() {
    let mut scene = Scene::new().await;
    for text in ["Mail", "mail", "mail.", "mail-", "m", &"x".repeat(64), "0", "a_b"] {
        topic::create(&mut scene.conn, &name(text), &TopicSettings::default()).await.unwrap();
    }
    let found = topic::find(&mut scene.conn, &name("Mail")).await.unwrap().unwrap();
    let other = topic::find(&mut scene.conn, &name("mail")).await.unwrap().unwrap();
    assert_ne!(found.id, other.id);
    assert_eq!(topic::find(&mut scene.conn, &name("MAIL")).await.unwrap(), None);
    let listed: Vec<_> = topic::all(&mut scene.conn).await.unwrap();
    assert!(listed.is_sorted_by(|a, b| a.name < b.name));
    assert_eq!(listed.len(), 9);
}

#[tokio::test]
async fn settings_come_back_as_they_were_set() {
    let mut scene = Scene::new().await;
    let settings = TopicSettings {
        body_limit: 123,
        max_attempts: 1,
        max_crashes: u32::MAX,
        retry: RetryPolicy::Ladder(vec![Duration::from_millis(1), Duration::from_secs(86_400)]),
        max_run_time: Some(Duration::from_millis(1500)),
        on_done: OnDone::Keep(Duration::from_secs(60)),
        keep_dead: Some(Duration::from_secs(90 * 86_400)),
        dead_letter_topic: Some(scene.topic.name.clone()),
        ledger_window: Some(Duration::from_secs(7 * 86_400)),
        max_depth: NonZeroU64::new(u64::MAX),
        max_bytes: NonZeroU64::new(1),
        when_full: WhenFull::Reject,
        limits: Limits {
            max_running: NonZeroU32::new(u32::MAX),
            max_running_per_key: NonZeroU32::new(1),
            rate: Some("7/1m30s".parse().unwrap()),
        },
        searchable: Some(Duration::from_secs(30 * 86_400)),
        dedupe_window: Some(Duration::from_secs(86_400)),
        retention: Retention {
            time: Some(Duration::from_secs(86_400)),
            bytes: Some(u64::MAX),
            hard: true,
            handled: true,
        },
        trace: Sampling::per_million(1),
        // Only for a group: covered by the tests of streams.
        filter: HeaderFilter::default(),
    };
    let (a, b) = (name("a"), name("b"));
    topic::create(&mut scene.conn, &a, &settings).await.unwrap();
    let found = topic::find(&mut scene.conn, &a).await.unwrap().unwrap();
    assert_eq!((found.settings, found.access), (settings.clone(), Access::ReadWrite));
    topic::create(&mut scene.conn, &b, &TopicSettings::default()).await.unwrap();
    let found = topic::find(&mut scene.conn, &b).await.unwrap().unwrap();
    assert_eq!(found.settings, TopicSettings::default());
    topic::set(&mut scene.conn, &b, &settings).await.unwrap();
    let found = topic::find(&mut scene.conn, &b).await.unwrap().unwrap();
    assert_eq!(found.settings, settings);
    // To its current value: the row matches, so no error.
    topic::set(&mut scene.conn, &b, &settings).await.unwrap();
}

#[tokio::test]
async fn a_rule_is_set_and_changes_nothing_else() {
    let mut scene = Scene::new().await;
    let t = scene.topic.name.clone();
    for access in Access::ALL.into_iter().rev() {
        topic::set_access(&mut scene.conn, &t, access).await.unwrap();
        let found = topic::find(&mut scene.conn, &t).await.unwrap().unwrap();
        assert_eq!((found.access, &found.settings), (access, &scene.topic.settings));
        assert_eq!(found.effective_access, access);
    }
}

#[tokio::test]
async fn what_does_not_exist_cannot_be_set_and_what_exists_cannot_be_made() {
    let mut scene = Scene::new().await;
    let (unknown, settings) = (name("unknown"), TopicSettings::default());
    let refused = topic::set(&mut scene.conn, &unknown, &settings).await.unwrap_err();
    assert!(matches!(refused, Error::UnknownTopic { .. }), "{refused}");
    let refused = topic::set_access(&mut scene.conn, &unknown, Access::Denied).await;
    assert!(matches!(refused, Err(Error::UnknownTopic { .. })), "{refused:?}");
    let t = scene.topic.name.clone();
    let refused = topic::create(&mut scene.conn, &t, &settings).await.unwrap_err();
    assert!(matches!(refused, Error::TopicExists { .. }), "{refused}");
    assert_eq!(topic::delete(&mut scene.conn, scene.topic.id).await.unwrap(), 1);
    assert_eq!(topic::delete(&mut scene.conn, scene.topic.id).await.unwrap(), 0);
    assert_eq!(topic::find(&mut scene.conn, &t).await.unwrap(), None);
}

#[tokio::test]
async fn settings_as_large_as_they_come_are_kept_or_refused_but_never_wrapped_round() {
    let mut scene = Scene::new().await;
    let settings = TopicSettings {
        max_run_time: Some(Duration::MAX),
        on_done: OnDone::Keep(Duration::MAX),
        ..TopicSettings::default()
    };
    let t = scene.topic.name.clone();
    if topic::set(&mut scene.conn, &t, &settings).await.is_ok() {
        let found = topic::find(&mut scene.conn, &t).await.unwrap().unwrap().settings;
        let ages = Duration::from_secs(10 * 365 * 24 * 3600);
        assert!(found.max_run_time.unwrap() >= ages, "{found:?}");
        assert!(matches!(found.on_done, OnDone::Keep(time) if time >= ages), "{found:?}");
    }
}

#[tokio::test]
async fn a_retry_policy_that_cannot_be_kept_is_refused_and_an_unreadable_one_is_the_default() {
    let mut scene = Scene::new().await;
    let t = scene.topic.name.clone();
    let second = Duration::from_secs(1);
    for retry in [
        RetryPolicy::Ladder(vec![]),
        RetryPolicy::Ladder(vec![second; 1000]),
        RetryPolicy::Fixed(Duration::ZERO),
        RetryPolicy::Exponential { base: Duration::MAX, cap: Duration::MAX },
    ] {
        let settings = TopicSettings { retry, ..TopicSettings::default() };
        let refused = topic::set(&mut scene.conn, &t, &settings).await.unwrap_err();
        assert!(matches!(refused, Error::InvalidRetry { .. }), "{refused}");
    }
    let retry = RetryPolicy::Fixed(second);
    let settings = TopicSettings { retry, ..TopicSettings::default() };
    topic::set(&mut scene.conn, &t, &settings).await.unwrap();
    scene.sql("UPDATE queue_topic SET retry = 'now and then'").await;
    let found = topic::find(&mut scene.conn, &t).await.unwrap().unwrap();
    assert_eq!(found.settings, TopicSettings::default());
}

/// The server's clock is the only one that counts.
#[tokio::test]
async fn the_servers_time_is_utc_and_moves() {
    let mut scene = Scene::new().await;
    scene.sql("SET time_zone = '+08:00'").await;
    let first = topic::server_time(&mut scene.conn).await.unwrap();
    let second = topic::server_time(&mut scene.conn).await.unwrap();
    assert!(second >= first);
    let unix = scene.number("SELECT UNIX_TIMESTAMP()").await;
    assert!((first.and_utc().timestamp() - unix).abs() <= 60);
}
